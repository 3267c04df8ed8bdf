"""A catalog that is lost: no new store is begun beside what it named, nothing is removed, and it can be made anew."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from appliance.config.store import StoreConfig
from appliance.domain.errors import CatalogInvalid, CatalogLost, StoreRefused, StoreUnavailable
from appliance.durable import Bytes, RealFolder
from appliance.store.catalog import Catalog
from appliance.store.catalog_file import PAPER_BYTES_MAX, Rebuilt, read_catalog, rebuilt
from appliance.store.layout import CATALOG, DAMAGED_CATALOG, blob_path, view_path
from appliance.store.rebuild import rebuild_catalog
from appliance.store.writer import open_store
from tests.store.arrivals import arrival, assert_served
from tests.store.stores import install

CONFIG = StoreConfig(free_floor_bytes=0)
NOW_MS = 1_700_000_000_000


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Two versions of one model, the second wanted, and one of another, signed and pinned."""
    state = tmp_path / "state"
    with open_store(state, CONFIG) as store:
        install(store, arrival(version=1), want=True, now_ms=1)
        install(store, arrival(version=2), want=True, now_ms=2)
        signed = arrival("other", version=7, signatures=b"{}", trust="key k")
        install(store, signed, want=True, now_ms=3)
        store.pin("other", 7, pinned=True)
    return state


def catalog_in(state: Path) -> Catalog:
    found = read_catalog(state)
    assert found is not None
    return found


def remade(state: Path, served: Mapping[str, int]) -> Rebuilt:
    def trust_of(manifest: bytes, signatures: bytes | None) -> str:
        return "unsigned" if signatures is None else "key k"

    return rebuild_catalog(
        state, lambda folder: rebuilt(folder, trust_of=trust_of, served=served, now_ms=NOW_MS)
    )


def test_nobody_begins_a_new_store_beside_what_is_there(state: Path) -> None:
    before = sorted(path for path in state.rglob("*") if path.name != CATALOG)
    (state / CATALOG).unlink()
    for _ in range(2):
        with pytest.raises(CatalogLost, match="store check --rebuild"), open_store(state, CONFIG):
            raise AssertionError("it opened")
        with pytest.raises(CatalogLost, match="store check --rebuild"):
            read_catalog(state)
    assert sorted(state.rglob("*")) == before


def test_nothing_that_was_coming_in_is_removed_while_the_catalog_is_lost(state: Path) -> None:
    (state / "incoming" / "of a writer").write_bytes(b"that was killed")
    good = (state / CATALOG).read_bytes()
    (state / CATALOG).unlink()
    with pytest.raises(CatalogLost), open_store(state, CONFIG):
        raise AssertionError("it opened")
    (state / CATALOG).write_bytes(good[:-9])
    with pytest.raises(CatalogInvalid), open_store(state, CONFIG):
        raise AssertionError("it opened")
    assert (state / "incoming" / "of a writer").exists()
    (state / CATALOG).write_bytes(good)
    with open_store(state, CONFIG):
        assert not any((state / "incoming").iterdir()), "now it is known whose that is"


@pytest.mark.parametrize("theirs", ["incoming/order.csv", "incoming/catalog.json", "incoming/a/b"])
def test_a_directory_of_somebody_else_becomes_no_store(tmp_path: Path, theirs: str) -> None:
    (tmp_path / theirs).parent.mkdir(parents=True)
    (tmp_path / theirs).write_text("of somebody else")
    with pytest.raises(StoreUnavailable, match="holds no store, but"), open_store(tmp_path, CONFIG):
        raise AssertionError("it opened")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["incoming", "store.lock"]
    assert (tmp_path / theirs).read_text() == "of somebody else"


def test_no_catalog_is_made_anew_where_there_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "order.csv").write_text("of somebody else")
    with pytest.raises(StoreRefused, match="holds no store"):
        remade(tmp_path, {})
    assert read_catalog(tmp_path) is None


@pytest.mark.parametrize("left", ["views", "blobs"])
def test_blobs_alone_or_views_alone_say_enough(state: Path, left: str) -> None:
    (state / CATALOG).unlink()
    (state / {"views": "blobs", "blobs": "views"}[left]).rename(state / "elsewhere")
    with pytest.raises(CatalogLost):
        read_catalog(state)


def test_an_empty_state_directory_is_no_loss(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with open_store(state, CONFIG) as store:
        assert store.catalog == Catalog()
    assert read_catalog(state) is None
    (state / "blobs" / "ab").mkdir()
    (state / "blobs" / "ab" / "notes").write_text("of a person")
    assert read_catalog(state) is None
    with open_store(state, CONFIG) as store:
        install(store, arrival(), want=True, now_ms=1)
        store.uninstall("digits")
    assert catalog_in(state).models == ()


def test_it_is_made_anew_with_what_was_served_last(state: Path) -> None:
    before = catalog_in(state)
    (state / CATALOG).unlink()
    made = remade(state, {"digits": 1, "gone": 3})
    assert made.left_out == ()
    catalog = catalog_in(state)
    assert catalog == made.catalog
    assert [(model.name, model.wanted, model.pins) for model in catalog.models] == [
        ("digits", 1, ()),
        ("other", 0, ()),
    ]
    installed = [(version.digest, version.files, version.trust) for _, version in catalog.installed()]
    assert installed == [(version.digest, version.files, version.trust) for _, version in before.installed()]
    assert catalog.generation > before.generation
    with open_store(state, CONFIG) as store:
        assert store.collect().blobs == ()
        store.want("digits", 2, 5)
        assert_served(state, store.catalog)
        assert store.catalog.generation == catalog.generation + 1


def test_what_is_not_whole_is_left_out_and_told(state: Path) -> None:
    one, two = (version for model, version in catalog_in(state).installed() if model.name == "digits")
    weights = next(file for file in one.files if file.path.endswith("weights.bin"))
    blob = state / blob_path(weights.digest)
    blob.chmod(0o644)
    blob.write_bytes(b"x" * weights.size)
    paper = state / view_path(two.digest) / "MANIFEST.json"
    paper.unlink()
    (state / CATALOG).unlink()
    made = remade(state, {"digits": 1})
    assert [model.name for model in made.catalog.models] == ["other"]
    reasons = dict(made.left_out)
    assert "which has other bytes than its name says" in reasons[one.digest]
    assert "has no MANIFEST.json" in reasons[two.digest]
    with open_store(state, CONFIG) as store:
        install(store, arrival(version=1), want=True, now_ms=9)
        assert_served(state, store.catalog)


def spoil_with_a_link(view: Path) -> None:
    (view / "MANIFEST.json").rename(view / "elsewhere")
    (view / "MANIFEST.json").symlink_to("elsewhere")


def spoil_with_a_directory(view: Path) -> None:
    (view / "SIGNATURE.json").mkdir()


def spoil_with_too_much(view: Path) -> None:
    (view / "SIGNATURE.json").touch()
    os.truncate(view / "SIGNATURE.json", PAPER_BYTES_MAX + 1)


def spoil_with_a_file(view: Path) -> None:
    shutil.rmtree(view)
    view.write_text("was a directory before the file system was repaired")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (spoil_with_a_link, "cannot be read: "),
        (spoil_with_a_directory, "is not a regular file"),
        (spoil_with_too_much, "the limit is"),
        (spoil_with_a_file, "has no MANIFEST.json of that digest"),
    ],
)
def test_a_view_that_cannot_be_read_is_left_out_and_no_other(
    state: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    first = next(version for _, version in catalog_in(state).installed())
    spoil(state / view_path(first.digest))
    (state / "views" / "notes.txt").write_text("of a person")
    (state / CATALOG).unlink()
    made = remade(state, {"digits": 2})
    assert [(model.name, model.wanted) for model in made.catalog.models] == [("digits", 2), ("other", 0)]
    reasons = dict(made.left_out)
    assert reasons.keys() == {first.digest, "notes.txt"}
    assert reason in reasons[first.digest]


class Refusing(RealFolder):
    """A disk that refuses to read one kind of file."""

    code = errno.EIO

    def chunks(self, path: str) -> Iterator[Bytes]:
        if path.endswith("SIGNATURE.json"):
            raise OSError(self.code, os.strerror(self.code))
        return super().chunks(path)


class Exhausted(Refusing):
    """The machine has no room for more open files: it says nothing about the disk."""

    code = errno.EMFILE


def remade_from(state: Path, folder: type[RealFolder]) -> Rebuilt:
    disk = folder(state)
    try:
        return rebuild_catalog(
            state, lambda _: rebuilt(disk, trust_of=lambda *_: "unsigned", served={}, now_ms=NOW_MS)
        )
    finally:
        disk.close()


def test_a_paper_that_the_disk_refuses_leaves_out_its_view(state: Path) -> None:
    (state / CATALOG).unlink()
    made = remade_from(state, Refusing)
    assert [model.name for model in made.catalog.models] == ["digits"]
    assert [reason for _, reason in made.left_out] == ["cannot be read: Input/output error"]


def test_what_the_machine_refuses_for_the_moment_leaves_nothing_out(state: Path) -> None:
    """What is left out is garbage afterwards."""
    (state / CATALOG).unlink()
    with pytest.raises(StoreUnavailable, match="Too many open files"):
        remade_from(state, Exhausted)
    assert not (state / CATALOG).exists()


def test_a_catalog_that_cannot_be_believed_is_kept_beside_the_new_one(state: Path) -> None:
    damaged = (state / CATALOG).read_bytes().replace(b"other", b"o+her")
    (state / CATALOG).write_bytes(damaged)
    with pytest.raises(CatalogInvalid, match="store check --rebuild"):
        read_catalog(state)
    remade(state, {"other": 7})
    assert (state / DAMAGED_CATALOG).read_bytes() == damaged
    assert [model.name for model in catalog_in(state).models] == ["digits", "other"]


@pytest.mark.parametrize("format_number", [b"0", b"-1", b'"1"', b"null"])
def test_a_damaged_number_of_the_format_is_damage(state: Path, format_number: bytes) -> None:
    (state / CATALOG).write_bytes(
        (state / CATALOG).read_bytes().replace(b'"format":1', b'"format":' + format_number)
    )
    with pytest.raises(CatalogInvalid):
        read_catalog(state)
    remade(state, {})
    assert [model.name for model in catalog_in(state).models] == ["digits", "other"]


def test_generations_go_on_where_the_damaged_catalog_tells_its_own(state: Path) -> None:
    document = json.loads((state / CATALOG).read_bytes())
    document["catalog"]["generation"] = 1 << 50
    (state / CATALOG).write_bytes(json.dumps(document).encode())
    remade(state, {})
    assert catalog_in(state).generation == (1 << 50) + 1


def test_a_catalog_that_is_right_or_newer_is_left_alone(state: Path) -> None:
    before = (state / CATALOG).read_bytes()
    with pytest.raises(StoreRefused, match="nothing to make anew"):
        remade(state, {})
    newer = json.dumps({"catalog": {}, "checksum": "", "format": 99}).encode()
    (state / CATALOG).write_bytes(newer)
    with pytest.raises(CatalogInvalid, match="update the appliance"):
        remade(state, {})
    assert (state / CATALOG).read_bytes() == newer
    assert before != newer


def test_two_views_that_say_to_be_the_same_version_are_both_left_out(state: Path, tmp_path: Path) -> None:
    shutil.copytree(state, tmp_path / "copy")
    with open_store(state, CONFIG) as store:
        store.pin("other", 7, pinned=False)
        store.uninstall("other")
        another = arrival("other", 7, {"7/graph.onnx": b"another"})
        install(store, another, want=True, now_ms=4)
    shutil.copytree(tmp_path / "copy" / "views", state / "views", dirs_exist_ok=True)
    shutil.copytree(tmp_path / "copy" / "blobs", state / "blobs", dirs_exist_ok=True)
    (state / CATALOG).unlink()
    made = remade(state, {"other": 7})
    assert [model.name for model in made.catalog.models] == ["digits"]
    assert [reason for _, reason in made.left_out] == ["is one of several that say to be other/7"] * 2
