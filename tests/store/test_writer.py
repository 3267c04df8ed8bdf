"""The writer on a real disk: what it acknowledges is there, what it refuses has changed nothing."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.config.repository import RepositoryConfig
from appliance.domain.digest import digest_of
from appliance.domain.errors import (
    ApplianceError,
    ArtefactError,
    BlobMismatch,
    CatalogInvalid,
    PackageInvalid,
    Problem,
    StoreBusy,
    StoreRefused,
    StoreUnavailable,
)
from appliance.domain.manifest_codec import encode as encode_manifest
from appliance.store.catalog import Catalog, Trial, TrialMode
from appliance.store.catalog_file import read_catalog
from appliance.store.incoming import Stream
from appliance.store.layout import CATALOG, INCOMING, LOCK, VIEWS, blob_path, view_root
from appliance.store.running import RunningRecord, RunningVersion
from appliance.store.writer import StoreWriter, locked, open_store
from models.generate import write_model
from tests.domain.manifests import manifest_of
from tests.repository.scanning import scan
from tests.store.arrivals import arrival, arrival_of, assert_served, contents_of, lying, renamed
from tests.store.stores import NO_FLOOR, blob_of, blobs_in, install


def test_an_installed_version_is_there_for_every_reader(store: StoreWriter, state: Path) -> None:
    told = install(store, arrival(), want=True, now_ms=7)
    assert told.changed
    assert told.written_bytes == sum(file.size for file in store.catalog.models[0].versions[0].files)
    assert read_catalog(state) == store.catalog
    assert_served(state, store.catalog)
    assert [(model.name, version.version) for model, version in store.catalog.wanted()] == [("digits", 1)]
    assert not os.listdir(state / INCOMING)


def test_a_view_is_a_model_directory(store: StoreWriter, state: Path, tmp_path: Path) -> None:
    write_model("mlp", tmp_path / "models")
    home = tmp_path / "models" / "mlp"
    contents = {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()}
    told = install(store, arrival("mlp", 1, contents), want=True, now_ms=1)
    (found,) = scan(view_root(state, told.digest), RepositoryConfig()).servable
    assert (found.model.name, found.model.version) == ("mlp", 1)


def test_installing_again_changes_nothing_and_says_so(store: StoreWriter, state: Path) -> None:
    install(store, arrival(), want=True, now_ms=7)
    before = store.catalog
    files = {path: path.stat().st_ino for path in state.rglob("*") if path.is_file()}
    told = install(store, arrival(), want=True, now_ms=99)
    assert not told.changed
    assert told.written_bytes == 0
    assert store.catalog == before
    assert {path: path.stat().st_ino for path in state.rglob("*") if path.is_file()} == files


def test_another_package_of_the_same_version_is_refused(store: StoreWriter, state: Path) -> None:
    install(store, arrival(), want=True, now_ms=7)
    before = blobs_in(state)
    with pytest.raises(StoreRefused, match="digits/1 is installed as"):
        install(store, arrival(contents=contents_of(1, b"other")), want=True, now_ms=8)
    assert blobs_in(state) == before


def test_contents_that_versions_share_are_stored_once(store: StoreWriter, state: Path) -> None:
    first = install(store, arrival(version=1), want=True, now_ms=1)
    second = install(store, arrival(version=2), want=True, now_ms=2)
    assert first.written_bytes > second.written_bytes
    assert blob_of(store, "digits", 1, "config.pbtxt") == blob_of(store, "digits", 2, "config.pbtxt")
    assert_served(state, store.catalog)


def test_a_signature_that_comes_later_is_kept_and_not_lost_again(store: StoreWriter, state: Path) -> None:
    install(store, arrival(), want=True, now_ms=1)
    signed = install(store, arrival(signatures=b"{}", trust="key abc"), want=True, now_ms=2)
    assert signed.changed
    assert (view_root(state, signed.digest) / "SIGNATURE.json").read_bytes() == b"{}"
    for later in (arrival(), arrival(signatures=b"[]", trust="key other")):
        assert not install(store, later, want=True, now_ms=3).changed
        assert store.catalog.models[0].versions[0].trust == "key abc"
    assert_served(state, store.catalog)


def test_wishes_pins_and_the_way_back(store: StoreWriter) -> None:
    for number in (1, 2, 3):
        install(store, arrival(version=number), want=number < 3, now_ms=number)
    store.want("digits", 3, now_ms=4)
    assert store.roll_back("digits", now_ms=5) == 2
    assert store.roll_back("digits", now_ms=6) == 1
    with pytest.raises(StoreRefused, match="nothing to go back to"):
        store.roll_back("digits", now_ms=7)
    with pytest.raises(StoreRefused, match="digits/1 is wanted"):
        store.uninstall("digits", 1)
    store.pin("digits", 3, pinned=True)
    with pytest.raises(StoreRefused, match="digits/3 is pinned"):
        store.uninstall("digits", 3)
    with pytest.raises(StoreRefused, match="pinned"):
        store.uninstall("digits")
    store.pin("digits", 3, pinned=False)
    store.try_out("digits", Trial(version=3, mode=TrialMode.CANARY, percent=5))
    with pytest.raises(StoreRefused, match="nothing to compare"):
        store.try_out("digits", Trial(version=1, mode=TrialMode.CANARY, percent=5))
    store.uninstall("digits", 3)
    assert store.catalog.models[0].trial is None
    with pytest.raises(StoreRefused, match="digits/9 is not installed; versions here: 1, 2"):
        store.want("digits", 9, now_ms=1)
    with pytest.raises(StoreRefused, match="no such model: 'none'; there are 'digits'"):
        store.want("none", 1, now_ms=1)
    store.uninstall("digits")
    assert not store.catalog.models


def test_what_an_operator_names_is_an_order_and_what_is_installed_a_proposal(store: StoreWriter) -> None:
    def orders() -> tuple[int, bool]:
        (model,) = store.catalog.models
        return model.wanted, model.order

    for number in (1, 2):
        install(store, arrival(version=number), want=True, now_ms=number)
        assert orders() == (number, False)
    store.roll_back("digits", now_ms=3)
    assert orders() == (1, True)
    install(store, arrival(version=3), want=True, now_ms=4)
    assert orders() == (3, False)
    store.want("digits", 3, now_ms=5)
    assert orders() == (3, False), "nothing is changed"
    store.ask_again("digits", 3, now_ms=5)
    assert orders() == (3, False)
    store.ask_again("digits", 3, now_ms=5, order=True)
    assert orders() == (3, True)
    install(store, arrival(version=4), want=True, now_ms=6)
    store.want("digits", 2, now_ms=7)
    assert orders() == (2, True)
    install(store, arrival(version=5), want=True, now_ms=8)
    store.try_out("digits", Trial(version=1, mode=TrialMode.CANARY, percent=5))
    assert orders() == (5, False)
    store.try_out("digits", None)
    assert orders() == (5, True)


def test_that_clients_change_along_is_part_of_the_wish_and_may_be_said_later(store: StoreWriter) -> None:
    def wish() -> tuple[int, bool]:
        (model,) = store.catalog.models
        return model.wanted, model.interface_change

    install(store, arrival(version=1), want=True, now_ms=1)
    install(store, arrival(version=2), want=True, now_ms=2)
    assert wish() == (2, False)
    before = store.catalog
    store.want("digits", 2, now_ms=3)
    assert store.catalog is before
    install(store, arrival(version=2), want=True, interface_change=True, now_ms=3)
    assert wish() == (2, True)
    store.want("digits", 2, now_ms=4)
    assert wish() == (2, True), "it was said"
    store.want("digits", 1, now_ms=5)
    assert wish() == (1, False)
    store.want("digits", 2, now_ms=6, interface_change=True)
    assert wish() == (2, True)
    store.roll_back("digits", now_ms=7)
    assert wish() == (1, True), "going back always works"
    install(store, arrival(version=3), want=True, now_ms=8)
    assert wish() == (3, False)


def test_a_trial_ends_with_a_change_of_what_is_wanted(store: StoreWriter) -> None:
    """Or what is wanted would wait for it, for as long as nobody ends it."""
    changes = (lambda: store.want("digits", 2, now_ms=4), lambda: store.roll_back("digits", now_ms=5))
    for number in (1, 2, 3):
        install(store, arrival(version=number), want=number == 1, now_ms=number)
    for change in changes:
        store.try_out("digits", Trial(version=3, mode=TrialMode.CANARY, percent=5))
        store.want("digits", store.catalog.models[0].wanted, now_ms=3)
        assert store.catalog.models[0].trial is not None, "nothing else is wanted than before"
        change()
        assert store.catalog.models[0].trial is None


def test_what_nobody_needs_any_more_goes_and_nothing_else(store: StoreWriter, state: Path) -> None:
    install(store, arrival(version=1), want=True, now_ms=1)
    install(store, arrival(version=2), want=True, now_ms=2)
    own = blob_of(store, "digits", 1, "1/weights.bin")
    gone = store.uninstall("digits", 1)
    assert own in {digest for digest, _ in gone.blobs}
    assert len(gone.views) == 1
    assert own not in blobs_in(state)
    assert_served(state, store.catalog)
    store.uninstall("digits")
    assert blobs_in(state) == set()
    assert os.listdir(state / VIEWS) == []


def test_what_a_daemon_runs_stays_until_it_does_not(store: StoreWriter, state: Path) -> None:
    told = install(store, arrival(version=1), want=True, now_ms=1)
    record = RunningRecord(state)
    record.publish([RunningVersion(name="digits", version=1, digest=told.digest)])
    before = blobs_in(state)
    store.uninstall("digits")
    assert blobs_in(state) == before
    assert (view_root(state, told.digest) / "digits" / "1" / "graph.onnx").read_bytes() == b"graph 1"
    record.close()
    store.collect()
    assert blobs_in(state) == set()


def test_nothing_is_collected_while_nobody_knows_what_runs(store: StoreWriter, state: Path) -> None:
    install(store, arrival(version=1), want=True, now_ms=1)
    record = RunningRecord(state)
    (state / "serve" / "running.json").write_text("{")
    before = blobs_in(state)
    with pytest.raises(StoreUnavailable, match="does not tell what the daemon runs"):
        store.uninstall("digits")
    assert blobs_in(state) == before
    record.close()


def test_a_second_writer_is_told_who_the_first_is(store: StoreWriter, state: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom appliance.domain.errors import StoreBusy\n"
        "from appliance.config.store import StoreConfig\nfrom appliance.store.writer import open_store\n"
        "try:\n    with open_store(Path(sys.argv[1]), StoreConfig()): pass\n"
        "except StoreBusy as error: print(error.pid, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(state)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"{os.getpid()} process {os.getpid()} is writing to '{state}'")


def test_the_number_in_the_lock_of_a_writer_that_has_gone_means_nothing(state: Path) -> None:
    with open_store(state, NO_FLOOR):
        assert (state / LOCK).read_text() == f"{os.getpid()}\n"
    (state / LOCK).write_text("1\n")
    with open_store(state, NO_FLOOR), pytest.raises(StoreBusy), open_store(state, NO_FLOOR):
        pass


def test_there_is_a_catalog_before_the_first_blob(state: Path) -> None:
    """Blobs without one mean that it was lost."""

    class Killed(BaseException):
        pass

    def killed(count: int) -> None:
        raise Killed

    with open_store(state, NO_FLOOR) as store, pytest.raises(Killed):
        install(store, arrival(), want=True, now_ms=1, progress=killed)
    assert read_catalog(state) == Catalog()


def test_opening_removes_what_a_killed_writer_left(state: Path) -> None:
    with open_store(state, NO_FLOOR) as store:
        install(store, arrival(), want=True, now_ms=1)
    (state / INCOMING / "half").write_bytes(b"x")
    (state / INCOMING / "view-x" / "digits").mkdir(parents=True)
    with open_store(state, NO_FLOOR) as store:
        assert os.listdir(state / INCOMING) == []
        assert_served(state, store.catalog)


def test_a_package_that_cannot_be_read_between_its_contents_is_no_trouble_of_the_store(
    store: StoreWriter,
) -> None:
    """A reader passes over what the store has already, and the package's own disk may fail there."""

    def contents() -> Iterator[tuple[str, int, Stream]]:
        yield from arrival().contents
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(ArtefactError, match="the package cannot be read: Input/output error"):
        install(store, replace(arrival(), contents=contents()), want=True, now_ms=1)


def test_why_a_package_is_refused_is_told_also_where_nothing_can_be_collected(
    store: StoreWriter, state: Path
) -> None:
    record = RunningRecord(state)  # and says nothing, as a daemon on a full disk

    def refuse(digest: str) -> None:
        raise PackageInvalid([Problem(file="digits/1", key="", text="holds no model")])

    with pytest.raises(PackageInvalid, match="holds no model"):
        install(store, arrival(), want=True, now_ms=1, accept=refuse)
    record.close()
    assert store.collect().blobs


def test_the_name_of_the_state_directory_is_on_the_disk_before_anything_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was killed after making it may have left it unsynced, so the next one does that, too."""
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    state = tmp_path / "state"
    with locked(state):
        assert synced == [str(tmp_path)]
    with open_store(state, NO_FLOOR) as store:
        assert synced[:2] == [str(tmp_path)] * 2
        install(store, arrival(), want=True, now_ms=1)
    synced.clear()
    with locked(state):
        assert synced == [], "what has a catalog was synced before"


def test_an_interrupted_install_goes_on_where_it_was(store: StoreWriter, state: Path) -> None:
    class Torn(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(5, "Input/output error")

    manifest = manifest_of(contents_of(1), name="digits", version=1)
    torn = replace(
        arrival_of(manifest, contents_of(1)),
        contents=[
            (
                entry.digest,
                entry.size,
                Torn() if "weights" in entry.path else io.BytesIO(contents_of(1)[entry.path]),
            )
            for entry in manifest.blobs
        ],
    )
    with pytest.raises(ArtefactError, match="the package cannot be read: Input/output error"):
        install(store, torn, want=True, now_ms=1)
    assert not store.catalog.models
    there = sum((state / blob_path(digest)).stat().st_size for digest in blobs_in(state))
    whole = install(store, arrival(), want=True, now_ms=2)
    assert whole.written_bytes == store.catalog.models[0].versions[0].bytes - there
    assert_served(state, store.catalog)


LIES = {
    "fewer bytes": ({"a": b"12345678"}, {"a": b"1234567"}, "has 7 bytes and not the 8"),
    "more bytes": ({"a": b"12345678"}, {"a": b"123456789"}, "has more than the 8 bytes"),
    "other bytes": ({"a": b"12345678"}, {"a": b"12345679"}, "has bytes whose digest is"),
    "no bytes": ({"a": b"12345678"}, {"a": b""}, "has 0 bytes and not the 8"),
}


@pytest.mark.parametrize("lie", LIES)
def test_packages_that_lie_leave_nothing_behind(store: StoreWriter, state: Path, lie: str) -> None:
    claimed, brought, words = LIES[lie]
    base = contents_of(1)
    with pytest.raises(BlobMismatch, match=words):
        install(
            store,
            lying("digits", 1, {**base, "1/a": claimed["a"]}, {**base, "1/a": brought["a"]}),
            want=True,
            now_ms=1,
        )
    assert not store.catalog.models
    assert os.listdir(state / INCOMING) == []
    assert os.listdir(state / VIEWS) == []
    store.collect()
    assert blobs_in(state) == set()


def test_packages_without_a_blob_or_with_another_size_beside_it_are_refused(store: StoreWriter) -> None:
    whole = arrival()
    with pytest.raises(BlobMismatch, match="came without 3 of its blobs"):
        install(store, replace(whole, contents=[]), want=True, now_ms=1)
    entry = whole.manifest.blobs[0]
    with pytest.raises(BlobMismatch, match=f"comes with {entry.size + 1} bytes"):
        install(
            store,
            replace(whole, contents=[(entry.digest, entry.size + 1, io.BytesIO(b""))]),
            want=True,
            now_ms=1,
        )
    assert not store.catalog.models


def test_blobs_that_the_manifest_does_not_name_are_not_stored(store: StoreWriter, state: Path) -> None:
    whole = arrival()
    extra = (digest_of(b"extra"), 5, io.BytesIO(b"extra"))
    install(store, replace(whole, contents=[*whole.contents, extra]), want=True, now_ms=1)
    assert digest_of(b"extra") not in blobs_in(state)


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".x", "A", "x" * 65, "x\0", "x\n", "MANIFEST.json", "ä"])
def test_a_model_of_a_name_that_leads_elsewhere_is_refused(
    store: StoreWriter, state: Path, name: str
) -> None:
    before = sorted(str(path) for path in state.parent.rglob("*"))
    with pytest.raises(PackageInvalid):
        install(store, renamed(arrival(), name), want=True, now_ms=1)
    assert sorted(str(path) for path in state.parent.rglob("*")) == before


@pytest.mark.parametrize(
    "path", ["../x", "/x", "1/../../x", "1//x", "./x", ".hidden", "1/x\0", "1/graph.onnx/x"]
)
def test_a_file_whose_path_leads_elsewhere_is_refused(store: StoreWriter, state: Path, path: str) -> None:
    whole = arrival()
    entry = replace(whole.manifest.files[0], path=path)
    tricked = replace(whole.manifest, files=(*whole.manifest.files, entry))
    with pytest.raises(PackageInvalid, match="file"):
        install(store, replace(whole, manifest=tricked), want=True, now_ms=1)
    assert blobs_in(state) == set()


@pytest.mark.parametrize("where", ["blobs", "views", "incoming", "blobs/ab"])
def test_a_link_in_the_store_leads_nowhere(state: Path, tmp_path: Path, where: str) -> None:
    """Whoever can put links there is root or the store's own user; even so nothing outside is written."""
    outside = tmp_path / "outside"
    outside.mkdir()
    state.mkdir()
    digest = digest_of(b"graph 1")
    place = state / where.replace("ab", digest[:2])
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(outside)
    with (
        pytest.raises(StoreUnavailable, match=r"[Nn]ot a directory|symbolic links|File exists"),
        open_store(state, NO_FLOOR) as store,
    ):
        install(store, arrival(), want=True, now_ms=1)
    assert list(outside.iterdir()) == []


def test_a_broken_catalog_is_never_written_over(state: Path) -> None:
    with open_store(state, NO_FLOOR) as store:
        install(store, arrival(), want=True, now_ms=1)
    data = bytearray((state / CATALOG).read_bytes())
    data[40] ^= 1
    (state / CATALOG).write_bytes(data)
    with pytest.raises(CatalogInvalid), open_store(state, NO_FLOOR):
        pass
    assert (state / CATALOG).read_bytes() == data


def test_a_state_directory_that_went_away_is_no_empty_store(store: StoreWriter, state: Path) -> None:
    install(store, arrival(version=1), want=True, now_ms=1)
    aside = state.with_name("aside")
    state.rename(aside)
    state.mkdir()
    with pytest.raises(StoreUnavailable, match="is not where it was"):
        install(store, arrival(version=2), want=True, now_ms=2)
    assert list(state.iterdir()) == []


def test_the_state_directory_must_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "none" / "state"):
        with pytest.raises(ApplianceError, match="cannot open the store"), open_store(place, NO_FLOOR):
            pass


def test_manifests_are_kept_as_they_came(store: StoreWriter, state: Path) -> None:
    whole = arrival()
    told = install(store, whole, want=True, now_ms=1)
    kept = (view_root(state, told.digest) / "MANIFEST.json").read_bytes()
    assert kept == encode_manifest(whole.manifest)
    assert digest_of(kept) == told.digest
