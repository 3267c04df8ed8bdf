"""The store on disks that are full, read-only, or gone: small file systems in memory, mounted for each test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from appliance.config.repository import RepositoryConfig
from appliance.config.store import StoreConfig
from appliance.domain.digest import digest_of
from appliance.domain.errors import StoreFull, StoreUnavailable
from appliance.sources.source import Look
from appliance.sources.store import StoreSource
from appliance.store.catalog_file import read_catalog
from appliance.store.full_disk import WAY_OUT
from appliance.store.layout import BLOBS, INCOMING, blob_path
from appliance.store.running import read_running
from appliance.store.scrub import Scrub
from appliance.store.writer import open_store
from tests.repository.onnx_files import plain_model
from tests.store.arrivals import arrival, assert_served, contents_of
from tests.store.stores import install

CONFIG = StoreConfig(free_floor_bytes=0)
SIZE = 512 << 10
MODEL = {
    "config.pbtxt": b'default_model_filename: "graph.onnx"',
    "1/graph.onnx": plain_model().SerializeToString(),
}


@cache
def may_mount() -> bool:
    """Whether file systems can be mounted here, in a name space of its own that ends with the attempt."""
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not may_mount(), reason="mounting needs root, and leave to do it")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "state"
    place.mkdir()
    mount("-t", "tmpfs", "-o", f"size={SIZE}", "none", str(place))
    yield place
    subprocess.run(["umount", "--lazy", str(place)], capture_output=True, check=False)


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


def fill_up(place: Path) -> None:
    """Write until nothing more can be written."""
    with suppress(OSError), place.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def test_a_package_that_does_not_fit_is_refused_before_a_byte_is_written(state: Path) -> None:
    with open_store(state, CONFIG) as store:
        install(store, arrival(), want=True, now_ms=1)
        before = store.catalog
        with pytest.raises(StoreFull, match="make room there"):
            install(store, arrival(version=2, contents=contents_of(2, b"2" * SIZE)), want=True, now_ms=2)
        assert store.catalog == before
        assert os.listdir(state / INCOMING) == []
        assert_served(state, before)


def test_a_disk_that_fills_up_meanwhile_costs_that_install_and_nothing_else(state: Path) -> None:
    def fill(_: int) -> None:
        if os.listdir(state / INCOMING) and not filler.exists():
            fill_up(filler)

    filler = state / "filler"
    with open_store(state, CONFIG) as store:
        install(store, arrival(), want=True, now_ms=1)
        before = store.catalog
        with pytest.raises(
            StoreFull,
            match=r"cannot install digits/2 .* No space left on device: .* free .*, 4..* KiB are needed; make room",
        ):
            install(
                store,
                arrival(version=2, contents=contents_of(2, b"2" * 50_000)),
                want=True,
                now_ms=2,
                progress=fill,
            )
        assert store.catalog == before
    with open_store(state, CONFIG) as store:
        assert_served(state, store.catalog)
        store.collect()
        filler.unlink()
        install(store, arrival(version=2, contents=contents_of(2, b"2" * 50_000)), want=True, now_ms=3)
        assert_served(state, store.catalog)


def test_garbage_can_be_removed_from_a_disk_that_is_full(state: Path) -> None:
    with open_store(state, CONFIG) as store:
        install(store, arrival(), want=True, now_ms=1)
    digest = digest_of(b"x")
    place = state / blob_path(digest)
    place.parent.mkdir(exist_ok=True)
    fill_up(place)
    with open_store(state, CONFIG) as store:
        assert store.collect().bytes > SIZE // 2
        assert_served(state, store.catalog)


def test_what_takes_room_itself_says_where_room_is_to_come_from(state: Path) -> None:
    """Uninstalling writes a catalog; to uninstall something is no way to have room for that."""
    with open_store(state, CONFIG) as store:
        install(store, arrival(), want=True, now_ms=1)
        install(store, arrival(version=2), want=True, now_ms=2)
        before = store.catalog
    fill_up(state / "logs")
    with (
        open_store(state, CONFIG) as store,
        pytest.raises(
            StoreFull,
            match=r"'appliance store gc' frees what a store does not need, and needs no room itself",
        ),
    ):
        store.uninstall("digits", 1)
    with open_store(state, CONFIG) as store:
        assert store.catalog == before
        assert store.collect().bytes == 0
        assert store.free_bytes == 0
    (state / "logs").unlink()
    with open_store(state, CONFIG) as store:
        assert store.uninstall("digits", 1).bytes > 0
        assert_served(state, store.catalog)


def test_a_read_only_disk_serves_readers_and_refuses_writers(state: Path) -> None:
    with open_store(state, CONFIG) as store:
        install(store, arrival(), want=True, now_ms=1)
        catalog = store.catalog
    mount("-o", "remount,ro", str(state))
    with (
        pytest.raises(StoreUnavailable, match="Read-only file system; mount it writable"),
        open_store(state, CONFIG),
    ):
        pass
    assert read_catalog(state) == catalog
    assert_served(state, catalog)


def test_a_daemon_starts_on_a_disk_that_is_full(state: Path) -> None:
    """As it is after a power cut with logs all over the disk. It says what it runs as soon as there is room."""
    with open_store(state, CONFIG) as store:
        install(store, arrival("digits", 1, MODEL), want=True, now_ms=1)
    StoreSource(state, RepositoryConfig(), list).close()
    fill_up(state / "logs")
    told: list[str] = []
    source = StoreSource(state, RepositoryConfig(), list, told.append)
    assert [each.model.name for each in source.read().servable] == ["digits"]
    assert source.look() == Look()
    assert told == [f"No space left on device; {WAY_OUT}"]
    with (
        open_store(state, CONFIG) as store,
        pytest.raises(StoreUnavailable, match="does not tell what the daemon"),
    ):
        store.collect()
    (state / "logs").unlink()
    assert source.look() == Look()
    assert [each.name for each in read_running(state)] == ["digits"]
    source.close()


def test_a_daemon_starts_on_a_disk_that_is_read_only(state: Path) -> None:
    """As the kernel leaves it after an error."""
    with open_store(state, CONFIG) as store:
        install(store, arrival("digits", 1, MODEL), want=True, now_ms=1)
    StoreSource(state, RepositoryConfig(), list).close()
    mount("-o", "remount,ro", str(state))
    told: list[str] = []
    source = StoreSource(state, RepositoryConfig(), list, told.append)
    assert [each.model.name for each in source.read().servable] == ["digits"]
    assert told == ["Read-only file system"]
    mount("-o", "remount,rw", str(state))
    assert source.look() == Look()
    assert [each.name for each in read_running(state)] == ["digits"]
    source.close()


def test_a_mount_that_vanished_is_no_empty_store_to_a_writer_that_is_at_work(state: Path) -> None:
    with open_store(state, CONFIG) as store:
        install(store, arrival(), want=True, now_ms=1)
        subprocess.run(["umount", "--lazy", str(state)], check=True, capture_output=True)
        with pytest.raises(StoreUnavailable, match="is not where it was any more; was its disk unmounted"):
            install(store, arrival(version=2), want=True, now_ms=2)
    assert os.listdir(state) == []
    assert read_catalog(state) is None


def test_a_file_system_in_memory_is_scrubbed_through_memory(state: Path) -> None:
    """It may know no direct I/O."""
    with open_store(state, CONFIG) as store:
        install(store, arrival(), want=True, now_ms=1)
    scrub = Scrub(state, CONFIG, wall_ms=lambda: 1, elapsed_s=lambda: 0.0, pause=lambda _: None)
    assert scrub.run_pass().damaged == ()
    scrub.close()


def test_a_store_may_not_span_file_systems(state: Path) -> None:
    with open_store(state, CONFIG):
        pass
    mount("-t", "tmpfs", "-o", "size=100k", "none", str(state / BLOBS))
    try:
        with (
            pytest.raises(StoreUnavailable, match="all of the directory must be on one file system"),
            open_store(state, CONFIG) as store,
        ):
            install(store, arrival(), want=True, now_ms=1)
    finally:
        subprocess.run(["umount", "--lazy", str(state / BLOBS)], check=True, capture_output=True)
