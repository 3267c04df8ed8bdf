"""The store on a disk that loses what was not synced: cut at every file operation, killed at every one, failing at
every one. After each, the store opens, holds what it had acknowledged, and comes to where it was going.

``STORE_SWEEP=full`` looks at every history and many more ways to lose; ``STORE_SEED=N`` repeats what a failure names.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random

import pytest

from appliance.config.store import StoreConfig
from appliance.domain.digest import digest_of
from appliance.domain.errors import ApplianceError, StoreRefused, StoreUnavailable
from appliance.durable import READ_ONLY, NewFile, read_whole
from appliance.store.catalog import Catalog
from appliance.store.catalog_codec import decode
from appliance.store.layout import CATALOG, blob_path, view_path
from appliance.store.scrub import inspect
from appliance.store.writer import StoreWriter
from tests.store.arrivals import arrival
from tests.store.stores import install
from tests.store.volatile_disk import VolatileDisk

FULL = os.environ.get("STORE_SWEEP") == "full"
SEED = int(os.environ.get("STORE_SEED", "1"))
LOSSES = int(os.environ.get("STORE_LOSSES", "12" if FULL else "3"))
CONFIG = StoreConfig(free_floor_bytes=0, quota_bytes=3000)
"""Holds two versions, so that the third evicts the first."""

Operation = Callable[[StoreWriter], object]
OPERATIONS: dict[str, Operation] = {
    "install 1": lambda store: install(store, arrival(version=1), want=True, now_ms=1, downgrade=True),
    "install 2": lambda store: install(store, arrival(version=2), want=True, now_ms=2, downgrade=True),
    "install 3": lambda store: install(store, arrival(version=3), want=True, now_ms=3, downgrade=True),
    "sign 1": lambda store: install(
        store, arrival(version=1, signatures=b"{}", trust="key k"), want=False, now_ms=3
    ),
    "uninstall 1": lambda store: store.uninstall("digits", 1),
    "uninstall all": lambda store: store.uninstall("digits"),
    "roll back": lambda store: store.roll_back("digits", 4),
}
SOME = (
    ("install 1",),
    ("install 1", "install 2"),
    ("install 1", "sign 1"),
    ("install 1", "install 2", "uninstall 1"),
    ("install 1", "install 2", "roll back"),
    ("install 1", "uninstall all", "install 1"),
)
EVICTING = ("install 1", "install 2", "install 3")
HISTORIES = (
    [each for count in (1, 2, 3) for each in product(OPERATIONS, repeat=count)] if FULL else [*SOME, EVICTING]
)
REFUSED = HISTORIES if FULL else SOME
"""The longest takes too long there; ``test_failed_installs`` has what is its own."""


@dataclass
class Moment:
    """The disk before a file operation."""

    disk: VolatileDisk
    operation: str


def opened(disk: VolatileDisk) -> StoreWriter:
    return StoreWriter(disk, CONFIG, tuple)


def performed(disk: VolatileDisk, names: Sequence[str]) -> bool:
    """Do these one after the other; gives whether the store could do them all."""
    for name in names:
        try:
            OPERATIONS[name](opened(disk))
        except StoreRefused:
            return False
    return True


def moments(disk: VolatileDisk, name: str) -> tuple[list[Moment], Catalog]:
    """The disk before each file operation of opening the store and doing ``name``, and after the last; the catalog
    that was acknowledged at the end."""
    found: list[Moment] = []
    twin = disk.copy()
    twin.before = lambda operation, path: found.append(Moment(twin.copy(), f"{operation} {path}"))
    store = opened(twin)
    OPERATIONS[name](store)
    found.append(Moment(twin.copy(), "the end"))
    return found, store.catalog


def ways_to_lose(disk: VolatileDisk, random: Random) -> Iterator[VolatileDisk]:
    """Nothing, everything, and some; all of them where there are few."""
    yield disk.after_power_cut(lambda: False, random)
    yield disk.after_power_cut(lambda: True, random)
    count = disk.unsynced()
    if count <= 3:
        for choice in product((False, True), repeat=count):
            answers = iter(choice)
            yield disk.after_power_cut(lambda answers=answers: next(answers, True), random)  # type: ignore[misc]
    else:
        for _ in range(LOSSES):
            yield disk.after_power_cut(lambda: random.random() < 0.5, random)


def wishes(catalog: Catalog) -> object:
    """The catalog without what tells when and how often it was changed."""
    return [
        (model.name, model.wanted, model.wanted_before, each.version, each.digest, each.trust)
        for model, each in catalog.installed()
    ]


def assert_whole(disk: VolatileDisk, catalog: Catalog) -> None:
    """Everything that the catalog names is there byte by byte."""
    assert inspect(disk, lambda: catalog).findings == ()
    tree = disk.tree()
    for _, version in catalog.installed():
        for file in version.files:
            for path in (blob_path(file.digest), f"{view_path(version.digest)}/{file.path}"):
                data = tree[path]
                assert data is not None
                assert digest_of(data) == file.digest


def assert_readable(disk: VolatileDisk) -> Catalog:
    """What a daemon finds that starts before any writer does: all that the catalog names has the right bytes."""
    data = read_whole(disk, CATALOG, 1 << 20)
    catalog = Catalog() if data is None else decode(data, CATALOG)
    tree = disk.tree()
    for _, version in catalog.installed():
        for file in version.files:
            found = tree.get(f"{view_path(version.digest)}/{file.path}")
            assert found is not None, f"{file.path} of version {version.version} is missing"
            assert digest_of(found) == file.digest
    return catalog


def assert_converges(disk: VolatileDisk, name: str, goal: Catalog) -> None:
    """Doing it again, or finding it done, leads to ``goal`` and leaves nothing else."""
    store = opened(disk)
    if wishes(store.catalog) != wishes(goal) or not name.startswith(("uninstall", "roll")):
        OPERATIONS[name](store)
    assert wishes(store.catalog) == wishes(goal)
    assert_whole(disk, store.catalog)
    store.collect()
    reached = {blob_path(file.digest) for _, version in store.catalog.installed() for file in version.files}
    tree = disk.tree()
    assert {path for path in tree if path.startswith("blobs/") and tree[path] is not None} == reached
    views = {view_path(version.digest) for _, version in store.catalog.installed()}
    assert {path for path in tree if path.startswith("views/") and path.count("/") == 1} == views
    assert not [path for path in tree if path.startswith("incoming/")]


def assert_recovered(disk: VolatileDisk, name: str, before: Catalog, goal: Catalog) -> None:
    """The store opens with the catalog of before or after, whole, and goes on."""
    assert_readable(disk)
    store = opened(disk)
    assert wishes(store.catalog) in (wishes(before), wishes(goal))
    assert_whole(disk, store.catalog)
    assert_converges(disk, name, goal)


def prepared(history: Sequence[str]) -> tuple[VolatileDisk, Catalog]:
    """A disk on which all but the last of ``history`` was done and acknowledged. What was not synced since is not."""
    disk = VolatileDisk()
    if not performed(disk, history[:-1]):
        pytest.skip("the store refuses that")
    before = opened(disk.copy()).catalog
    try:
        OPERATIONS[history[-1]](opened(disk.copy()))
    except StoreRefused:
        pytest.skip("the store refuses that")
    return disk, before


def test_the_third_version_evicts_the_first() -> None:
    """Or the histories with it cut nothing but another install."""
    disk = VolatileDisk()
    assert performed(disk, EVICTING)
    assert [version.version for _, version in opened(disk).catalog.installed()] == [2, 3]


@pytest.mark.parametrize("history", HISTORIES, ids=" then ".join)
def test_power_is_cut_before_every_file_operation(history: Sequence[str]) -> None:
    disk, before = prepared(history)
    name = history[-1]
    random = Random(SEED)
    found, goal = moments(disk, name)
    for place, moment in enumerate(found):
        for lost in ways_to_lose(moment.disk, random):
            try:
                if moment.operation == "the end":
                    assert wishes(assert_readable(lost)) == wishes(goal), "what was acknowledged is lost"
                assert_recovered(lost, name, before, goal)
            except (AssertionError, ApplianceError) as error:
                raise AssertionError(f"cut at {place} ({moment.operation}), STORE_SEED={SEED}") from error


@pytest.mark.parametrize("history", HISTORIES, ids=" then ".join)
def test_the_writer_is_killed_and_power_is_cut_after_the_next_one_is_done(history: Sequence[str]) -> None:
    """What a killed writer renamed is there to see, but not yet there for good."""
    disk, before = prepared(history)
    name = history[-1]
    random = Random(SEED)
    found, goal = moments(disk, name)
    for place, moment in enumerate(found):
        killed = moment.disk.copy()
        try:
            assert_recovered(killed.copy(), name, before, goal)
            again = opened(killed)
            if wishes(again.catalog) != wishes(goal) or name.startswith(("install", "sign")):
                OPERATIONS[name](again)
            for lost in ways_to_lose(killed, random):
                assert wishes(assert_readable(lost)) == wishes(goal), "what was acknowledged is lost"
                assert_whole(lost, opened(lost).catalog)
        except (AssertionError, ApplianceError) as error:
            raise AssertionError(f"killed at {place} ({moment.operation}), STORE_SEED={SEED}") from error


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS], ids=errno.errorcode.get)
@pytest.mark.parametrize("history", REFUSED, ids=" then ".join)
def test_the_disk_refuses_every_file_operation_once(history: Sequence[str], number: int) -> None:
    disk, before = prepared(history)
    name = history[-1]
    random = Random(SEED)
    found, goal = moments(disk, name)
    for place, moment in enumerate(found[:-1]):
        refused = disk.copy()
        count = iter(range(len(found) * 2))

        def refuse(operation: str, path: str, place: int = place, count: Iterator[int] = count) -> None:
            if next(count, -1) == place:
                raise OSError(number, os.strerror(number))

        refused.before = refuse
        try:
            acknowledged = _acknowledged(refused, name)
            refused.before = lambda operation, path: None
            for lost in (refused.copy(), *ways_to_lose(refused, random)):
                if acknowledged:
                    assert wishes(assert_readable(lost)) == wishes(goal), "what was acknowledged is lost"
                assert_recovered(lost, name, before, goal)
        except (AssertionError, OSError) as error:
            raise AssertionError(f"refused at {place} ({moment.operation}), STORE_SEED={SEED}") from error


@pytest.mark.parametrize("history", HISTORIES, ids=" then ".join)
def test_the_same_writer_is_asked_again_after_the_disk_refused(history: Sequence[str]) -> None:
    """Without opening the store anew: what it left half done at first is there for good after the second attempt."""
    disk, _ = prepared(history)
    name = history[-1]
    random = Random(SEED)
    found, goal = moments(disk, name)
    for place, moment in enumerate(found[:-1]):
        refused = disk.copy()
        store = opened(refused)
        count = iter(range(len(found) * 2))

        def refuse(operation: str, path: str, place: int = place, count: Iterator[int] = count) -> None:
            if next(count, -1) == place:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        refused.before = refuse
        try:
            OPERATIONS[name](store)
        except ApplianceError:
            pass
        else:
            continue
        refused.before = lambda operation, path: None
        try:
            if wishes(store.catalog) != wishes(goal):
                OPERATIONS[name](store)
        except StoreUnavailable:
            continue  # it does not know which catalog is there, and says so
        for lost in ways_to_lose(refused, random):
            try:
                assert wishes(assert_readable(lost)) == wishes(goal), "what was acknowledged is lost"
            except (AssertionError, ApplianceError) as error:
                raise AssertionError(f"refused at {place} ({moment.operation}), STORE_SEED={SEED}") from error


def _acknowledged(disk: VolatileDisk, name: str) -> bool:
    """Whether the store said that it is done. It may raise its own errors and nothing else."""
    try:
        OPERATIONS[name](opened(disk))
    except ApplianceError:
        return False
    return True


@pytest.mark.parametrize(
    "history", [("install 1", "install 2"), ("install 1", "install 2", "uninstall 1")], ids=" then ".join
)
def test_power_is_cut_again_while_the_store_recovers(history: Sequence[str]) -> None:
    disk, before = prepared(history)
    name = history[-1]
    random = Random(SEED)
    found, goal = moments(disk, name)
    for place in range(0, len(found), 1 if FULL else 7):
        lost = found[place].disk.after_power_cut(lambda: random.random() < 0.5, random)
        recovering: list[VolatileDisk] = []
        twin = lost.copy()
        twin.before = lambda operation, path, twin=twin, into=recovering: into.append(twin.copy())  # type: ignore[misc]
        opened(twin)
        for each in recovering:
            again = each.after_power_cut(lambda: random.random() < 0.5, random)
            try:
                assert_recovered(again, name, before, goal)
            except (AssertionError, ApplianceError) as error:
                raise AssertionError(f"cut at {place} and while recovering, STORE_SEED={SEED}") from error


class NoDirectorySync(VolatileDisk):
    """Does not sync directories that it is told to."""

    def sync_directory(self, path: str) -> None:
        """Nothing."""


class NoFileSync(VolatileDisk):
    """Does not sync files that it is told to."""

    def create(self, path: str, mode: int = READ_ONLY) -> NewFile:
        """See Folder."""
        file = super().create(path, mode)
        file.sync = lambda: None  # type: ignore[method-assign]
        return file


@pytest.mark.parametrize("kind", [NoDirectorySync, NoFileSync])
def test_the_model_finds_a_sync_that_is_missing(kind: type[VolatileDisk]) -> None:
    """A test that cannot fail is none."""
    disk = kind()
    goal = opened(disk)
    OPERATIONS["install 1"](goal)
    with pytest.raises((AssertionError, ApplianceError)):
        _after_losing_what_was_not_synced(disk, goal.catalog)


def _after_losing_what_was_not_synced(disk: VolatileDisk, goal: Catalog) -> None:
    for lost in ways_to_lose(disk, Random(SEED)):
        store = opened(lost)
        assert wishes(store.catalog) == wishes(goal)
        assert_whole(lost, store.catalog)
