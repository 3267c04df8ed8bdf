"""Room in a store: what is refused, what is removed and evicted for an install, and what is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from appliance.domain.digest import digest_of
from appliance.domain.errors import (
    BlobMismatch,
    StoreFull,
)
from appliance.store.layout import blob_path
from appliance.store.running import RunningRecord, RunningVersion
from appliance.store.writer import open_store
from tests.store.arrivals import arrival, assert_served, contents_of, lying
from tests.store.stores import NO_FLOOR, blobs_in, install


def test_a_quota_is_kept_and_what_is_cheapest_to_lose_goes(state: Path) -> None:
    size = 4000
    with open_store(state, replace(NO_FLOOR, quota_bytes=16_000)) as store:
        for number in (1, 2, 3):
            install(
                store,
                arrival(version=number, contents=contents_of(number, b"%d" % number * size)),
                want=True,
                now_ms=number * 100_000,
            )
        told = install(
            store, arrival(version=4, contents=contents_of(4, b"4" * size)), want=True, now_ms=500_000
        )
        assert told.evicted == ("digits/1",)
        assert [version.version for _, version in store.catalog.installed()] == [2, 3, 4]
        store.pin("digits", 2, pinned=True)
        told = install(
            store, arrival(version=5, contents=contents_of(5, b"5" * size)), want=True, now_ms=600_000
        )
        assert told.evicted == ("digits/3",)
        before = store.catalog
        with pytest.raises(
            StoreFull,
            match=r"digits/6 needs .* more than there are within store.quota_bytes",
        ):
            install(
                store, arrival(version=6, contents=contents_of(6, b"6" * 6 * size)), want=True, now_ms=700_000
            )
        assert store.catalog == before
        assert_served(state, store.catalog)
        assert sum(path.stat().st_size for path in (state / "blobs").rglob("*") if path.is_file()) <= 16_000


def test_running_versions_are_not_evicted(state: Path) -> None:
    with open_store(state, replace(NO_FLOOR, quota_bytes=14_000)) as store:
        first = install(store, arrival(version=1, contents=contents_of(1, b"1" * 4000)), want=True, now_ms=1)
        install(store, arrival(version=2, contents=contents_of(2, b"2" * 4000)), want=True, now_ms=2)
        record = RunningRecord(state)
        record.publish([RunningVersion(name="digits", version=1, digest=first.digest)])
        with pytest.raises(StoreFull):
            install(store, arrival(version=3, contents=contents_of(3, b"3" * 4000)), want=True, now_ms=3)
        record.close()
        assert install(
            store, arrival(version=3, contents=contents_of(3, b"3" * 4000)), want=True, now_ms=3
        ).evicted == ("digits/1",)


def test_the_free_floor_is_kept(state: Path) -> None:
    with (
        open_store(state, replace(NO_FLOOR, free_floor_bytes=1 << 62)) as store,
        pytest.raises(StoreFull, match="free_floor"),
    ):
        install(store, arrival(), want=True, now_ms=1)


def test_garbage_makes_room_before_anything_is_evicted(state: Path) -> None:
    with open_store(state, replace(NO_FLOOR, quota_bytes=14_000)) as store:
        install(store, arrival(version=1, contents=contents_of(1, b"1" * 4000)), want=True, now_ms=1)
        with pytest.raises(BlobMismatch):
            install(
                store,
                lying("digits", 2, contents_of(2, b"2" * 4000, z=b"1"), contents_of(2, b"2" * 4000, z=b"2")),
                want=True,
                now_ms=2,
            )
        assert digest_of(b"2" * 4000) in blobs_in(state)
        told = install(store, arrival(version=3, contents=contents_of(3, b"3" * 4000)), want=True, now_ms=3)
        assert told.evicted == ()
        assert digest_of(b"2" * 4000) not in blobs_in(state)


def test_a_damaged_blob_that_is_replaced_counts_once(state: Path) -> None:
    """The documented cure needs no room within the quota, and nothing leaves for it."""
    heavy = {f"{number}/weights.bin": b"%d" % number * 8000 for number in (1, 2)}
    with open_store(state, replace(NO_FLOOR, quota_bytes=20_000)) as store:
        for number in (1, 2):
            files = {f"{number}/graph.onnx": b"g", f"{number}/weights.bin": heavy[f"{number}/weights.bin"]}
            install(store, arrival(version=number, contents=files), want=True, now_ms=number)
        blob = state / blob_path(digest_of(heavy["2/weights.bin"]))
        blob.chmod(0o644)
        blob.write_bytes(b"x" * 8000)
        again = {"2/graph.onnx": b"g", "2/weights.bin": heavy["2/weights.bin"]}
        told = install(store, arrival(version=2, contents=again), want=True, now_ms=3)
        assert (told.written_bytes, told.evicted) == (8000, ())
        assert_served(state, store.catalog)


def test_nothing_is_evicted_for_bytes_that_what_runs_keeps(state: Path) -> None:
    """The first runs and is uninstalled; the second has its weights, too, and would free nothing."""
    shared = b"w" * 8000
    with open_store(state, replace(NO_FLOOR, quota_bytes=14_000)) as store:
        first = install(
            store, arrival(version=1, contents={"1/graph.onnx": b"1", "1/w": shared}), want=True, now_ms=1
        )
        install(
            store, arrival("other", 2, contents={"2/graph.onnx": b"2", "2/w": shared}), want=False, now_ms=2
        )
        record = RunningRecord(state)
        record.publish([RunningVersion(name="digits", version=1, digest=first.digest)])
        store.uninstall("digits")
        with pytest.raises(StoreFull):
            install(
                store,
                arrival("third", 1, contents={"1/graph.onnx": b"3", "1/w": b"3" * 8000}),
                want=True,
                now_ms=3,
            )
        assert [model.name for model in store.catalog.models] == ["other"]
        record.close()
        told = install(
            store,
            arrival("third", 1, contents={"1/graph.onnx": b"3", "1/w": b"3" * 8000}),
            want=True,
            now_ms=3,
        )
        assert told.evicted == ("other/2",)


def test_nothing_is_evicted_for_a_damaged_blob_that_is_replaced(state: Path) -> None:
    """An arriving version shares it with one that may go, whose going would free what is counted already."""
    shared = b"w" * 8000
    with open_store(state, replace(NO_FLOOR, quota_bytes=16_000)) as store:
        install(
            store, arrival("other", 1, contents={"1/graph.onnx": b"1", "1/w": shared}), want=False, now_ms=1
        )
        blob = state / blob_path(digest_of(shared))
        blob.chmod(0o644)
        blob.write_bytes(b"x" * 8000)
        with pytest.raises(StoreFull):
            install(
                store,
                arrival("new", 1, contents={"1/graph.onnx": b"2", "1/w": shared, "1/v": b"v" * 8000}),
                want=True,
                now_ms=2,
            )
        assert [model.name for model in store.catalog.models] == ["other"]
