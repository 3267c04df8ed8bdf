"""Damage in a store: told, and mended by opening it or by installing again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from appliance.domain.digest import digest_of
from appliance.durable import RealFolder
from appliance.store.layout import blob_path, view_root
from appliance.store.scrub import inspect
from appliance.store.writer import StoreWriter, open_store
from tests.store.arrivals import arrival, assert_served
from tests.store.stores import NO_FLOOR, blob_of, install


def test_a_damaged_blob_is_replaced_by_installing_again(store: StoreWriter, state: Path) -> None:
    told = install(store, arrival(), want=True, now_ms=1)
    blob = state / blob_path(blob_of(store, "digits", 1, "1/weights.bin"))
    with blob.open("rb") as mapped:
        before = mapped.fileno()
        os.chmod(blob, 0o644)
        with blob.open("r+b") as file:
            file.seek(11)
            file.write(b"!")
        os.chmod(blob, 0o444)
        again = install(store, arrival(), want=True, now_ms=2)
        assert again.changed
        assert again.written_bytes == blob.stat().st_size
        assert os.pread(before, 1, 11) == b"!", "who has the old file open keeps it as it was"
    assert_served(state, store.catalog)
    assert view_root(state, told.digest).exists()


def test_a_damaged_blob_is_replaced_for_every_version_that_has_it(store: StoreWriter, state: Path) -> None:
    first = install(store, arrival(version=1), want=True, now_ms=1)
    blob = state / blob_path(blob_of(store, "digits", 1, "config.pbtxt"))
    os.chmod(blob, 0o644)
    blob.write_bytes(b"?" * blob.stat().st_size)
    install(store, arrival(version=2), want=True, now_ms=2)
    assert_served(state, store.catalog)
    assert (view_root(state, first.digest) / "digits" / "config.pbtxt").read_bytes() == blob.read_bytes()


def test_opening_mends_views(state: Path) -> None:
    with open_store(state, NO_FLOOR) as store:
        told = install(store, arrival(), want=True, now_ms=1)
    (view_root(state, told.digest) / "digits" / "config.pbtxt").unlink()
    with open_store(state, NO_FLOOR) as store:
        assert_served(state, store.catalog)


@pytest.mark.parametrize("loss", ["file", "directory", "view", "extra", "file for a directory"])
def test_a_damaged_view_is_mended_by_installing_again(store: StoreWriter, state: Path, loss: str) -> None:
    home = view_root(state, install(store, arrival(), want=True, now_ms=1).digest) / "digits"
    if loss == "file":
        (home / "1" / "graph.onnx").unlink()
    elif loss == "directory":
        shutil.rmtree(home / "1")
    elif loss == "view":
        shutil.rmtree(home.parent)
    elif loss == "extra":
        (home / "1" / "more").mkdir()
        (home / "1" / "more" / "file").touch()
    else:
        shutil.rmtree(home / "1")
        (home / "1").touch()
    generation = store.catalog.generation
    assert install(store, arrival(), want=True, now_ms=1).changed
    assert store.catalog.generation == generation + 1, "readers look again"
    assert_served(state, store.catalog)
    assert not (home / "1" / "more").exists()


@pytest.mark.parametrize("step", ["", "digits", "digits/1"])
def test_a_file_where_a_view_has_a_directory_is_told_and_mended(state: Path, step: str) -> None:
    """So a file system may come out of a repair."""
    with open_store(state, NO_FLOOR) as store:
        digest = install(store, arrival(), want=True, now_ms=1).digest
    place = view_root(state, digest) / step
    shutil.rmtree(place)
    place.write_text("no directory")
    folder = RealFolder(state)
    found = inspect(folder, lambda: store.catalog).findings
    folder.close()
    assert {each.text for each in found} == {"is missing or not its blob"}
    with open_store(state, NO_FLOOR) as store:
        assert_served(state, store.catalog)
        assert not install(store, arrival(), want=True, now_ms=2).written_bytes


def test_a_file_where_blobs_have_a_directory_is_replaced_by_an_install(state: Path) -> None:
    with open_store(state, NO_FLOOR) as store:
        install(store, arrival(), want=True, now_ms=1)
    home = (state / blob_path(digest_of(b"graph 1"))).parent
    shutil.rmtree(home)
    home.write_text("no directory")
    with open_store(state, NO_FLOOR) as store:
        assert install(store, arrival(), want=True, now_ms=2).written_bytes >= len(b"graph 1")
        assert_served(state, store.catalog)
