"""Installs that lack room and fail: nothing leaves for a package that turns out to be bad, and what had to leave before
that was known is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.config.store import StoreConfig
from appliance.domain.digest import digest_of
from appliance.domain.errors import BlobMismatch, PackageInvalid, Problem, StoreFull, StoreUnavailable
from appliance.store.catalog import Catalog
from appliance.store.incoming import IncomingPackage
from appliance.store.layout import BLOBS, FORMS, blob_path
from appliance.store.running import RunningRecord, RunningVersion
from appliance.store.writer import StoreWriter, open_store
from tests.store.arrivals import arrival, assert_served, contents_of, lying
from tests.store.stores import NO_FLOOR, blobs_in, install
from tests.store.volatile_disk import VolatileDisk

QUOTA = replace(NO_FLOOR, quota_bytes=14_000)
"""Room for two versions of ``heavy``."""


def heavy(version: int) -> IncomingPackage:
    return arrival(version=version, contents=contents_of(version, b"%d" % version * 4000))


def damaged(version: int) -> IncomingPackage:
    """Its last content is not what the manifest says."""
    good = contents_of(version, b"%d" % version * 4000)
    return lying("digits", version, good | {"z": b"1"}, good | {"z": b"2"})


def accepting(digest: str) -> None:
    """Nothing."""


def refusing(digest: str) -> None:
    raise PackageInvalid([Problem(file=digest, key="", text="is refused here")])


def versions_in(store: StoreWriter) -> list[int]:
    return [version.version for _, version in store.catalog.installed()]


@pytest.mark.parametrize(("package", "accept"), [(damaged, accepting), (heavy, refusing)])
def test_a_bad_package_evicts_nothing(
    state: Path, package: Callable[[int], IncomingPackage], accept: Callable[[str], None]
) -> None:
    with open_store(state, QUOTA) as store:
        for number in (1, 2):
            install(store, heavy(number), want=True, now_ms=number * 100_000)
        form = state / FORMS / f"{'f' * 64}-{'1' * 16}"
        form.mkdir(parents=True)
        (form / "weights.bin").write_bytes(bytes(100))
        before, blobs = store.catalog, blobs_in(state)
        with pytest.raises((BlobMismatch, PackageInvalid)) as caught:
            install(store, package(3), want=True, now_ms=300_000, accept=accept)
        assert "evicted" not in str(caught.value)
        assert store.catalog == before
        assert blobs_in(state) == blobs, "what came does not stay above the quota"
        assert form.exists()
        assert_served(state, store.catalog)
        assert store.roll_back("digits", 400_000) == 1


def test_what_is_evicted_leaves_with_the_change_that_brings_the_new_version(state: Path) -> None:
    with open_store(state, QUOTA) as store:
        for number in (1, 2):
            install(store, heavy(number), want=True, now_ms=number * 100_000)
        seen: list[Catalog] = []
        generation = store.catalog.generation
        told = install(
            store, heavy(3), want=True, now_ms=300_000, accept=lambda digest: seen.append(store.catalog)
        )
        assert [version.version for _, version in seen[0].installed()] == [1, 2]
        assert (told.evicted, versions_in(store)) == (("digits/1",), [2, 3])
        assert store.catalog.generation == generation + 1
        assert digest_of(b"1" * 4000) not in blobs_in(state)
        assert_served(state, store.catalog)


def test_a_version_that_runs_by_the_time_the_package_is_known_to_be_good_stays(state: Path) -> None:
    with open_store(state, QUOTA) as store:
        first = install(store, heavy(1), want=True, now_ms=100_000)
        install(store, heavy(2), want=True, now_ms=200_000)
        record = RunningRecord(state)
        record.publish([])
        before, blobs = store.catalog, blobs_in(state)

        def published(digest: str) -> None:
            record.publish([RunningVersion(name="digits", version=1, digest=first.digest)])

        with pytest.raises(StoreFull, match=r"digits/3 needs .* more than"):
            install(store, heavy(3), want=True, now_ms=300_000, accept=published)
        assert (store.catalog, blobs_in(state)) == (before, blobs)
        record.close()


def test_what_a_killed_install_brought_counts_when_it_is_installed_again(state: Path) -> None:
    """All of it is there, above the quota, and the catalog does not name it."""

    class Killed(BaseException):
        pass

    def killed(digest: str) -> None:
        raise Killed

    with open_store(state, QUOTA) as store:
        for number in (1, 2):
            install(store, heavy(number), want=True, now_ms=number * 100_000)
        with pytest.raises(Killed):
            install(store, heavy(3), want=True, now_ms=300_000, accept=killed)
    with open_store(state, QUOTA) as store:
        assert versions_in(store) == [1, 2]
        told = install(store, heavy(3), want=True, now_ms=400_000)
        assert (told.written_bytes, told.evicted, versions_in(store)) == (0, ("digits/1",), [2, 3])
        assert sum((state / "blobs" / each[:2] / each).stat().st_size for each in blobs_in(state)) <= 14_000


class SmallDisk(VolatileDisk):
    """Has room for two versions of ``heavy``."""

    def free_bytes(self) -> int:
        """See Folder."""
        blobs = [data for path, data in self.tree().items() if path.startswith(BLOBS) and data is not None]
        return 14_000 - sum(map(len, blobs))


def filled(disk: SmallDisk) -> StoreWriter:
    store = StoreWriter(disk, StoreConfig(free_floor_bytes=0), tuple)
    for number in (1, 2):
        install(store, heavy(number), want=True, now_ms=number * 100_000)
    return store


def test_where_the_disk_has_no_room_to_check_a_package_what_leaves_for_it_is_told() -> None:
    store = filled(disk := SmallDisk())
    with pytest.raises(BlobMismatch, match=r"; evicted to make room: digits/1$"):
        install(store, damaged(3), want=True, now_ms=300_000)
    assert versions_in(store) == [2]
    assert disk.status(blob_path(digest_of(b"3" * 4000))) is not None, "it has its room, and may go on"
    store = filled(SmallDisk())
    with pytest.raises(PackageInvalid) as caught:
        install(store, heavy(3), want=True, now_ms=300_000, accept=refusing)
    assert "evicted to make room: digits/1" in str(caught.value.problems[-1])
    store = filled(SmallDisk())
    assert install(store, heavy(3), want=True, now_ms=300_000).evicted == ("digits/1",)
    assert versions_in(store) == [2, 3]


@pytest.mark.parametrize("what", ["rename incoming/gone-", "unlink blobs/"])
def test_a_disk_that_fails_after_the_change_is_told_with_what_was_evicted(what: str) -> None:
    disk = VolatileDisk()
    store = StoreWriter(disk, QUOTA, tuple)
    for number in (1, 2):
        install(store, heavy(number), want=True, now_ms=number * 100_000)
    armed: list[bool] = []
    disk.before = _failing(what, armed)
    with pytest.raises(StoreUnavailable, match=r"digits/3 is installed; evicted .*: digits/1$"):
        install(store, heavy(3), want=True, now_ms=300_000, accept=lambda digest: armed.append(True))
    disk.before = lambda operation, path: None
    assert versions_in(store) == [2, 3]
    assert store.collect().blobs


def test_what_was_being_done_is_told() -> None:
    """Before the change that is the install, after it the room for it."""
    disk = VolatileDisk()
    store = StoreWriter(disk, QUOTA, tuple)
    for number in (1, 2):
        install(store, heavy(number), want=True, now_ms=number * 100_000)
    form = f"{FORMS}/{'f' * 64}-{'1' * 16}"
    for step in (*Path(FORMS).parents, Path(FORMS), Path(form)):
        if disk.status(str(step)) is None:
            disk.make_directory(str(step))
    with disk.create(f"{form}/weights.bin") as file:
        file.write(bytes(100))
    for what, doing in (
        ("rename blobs/", "install digits/3"),
        ("rename incoming/form-", "make room for digits/3"),
    ):
        disk.before = _failing(what, [True])
        with pytest.raises(StoreUnavailable, match=f"^cannot {doing} in 'store'"):
            install(store, heavy(3), want=True, now_ms=300_000)


def _failing(what: str, armed: list[bool]) -> Callable[[str, str], None]:
    def before(operation: str, path: str) -> None:
        if armed and f"{operation} {path}".startswith(what):
            raise OSError(5, "Input/output error")

    return before
