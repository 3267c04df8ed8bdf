"""The daemon has its store scrubbed by a process that yields to everybody, and says what is damaged."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.config.store import StoreConfig
from appliance.maintenance import scrubbing as scrubbing_module
from appliance.maintenance.scrubbing import Scrubbing
from appliance.maintenance.store_figures import store_figures
from appliance.store.layout import SCRUB, blob_path
from appliance.store.scrub import Damage, ScrubRecord, encode, forget_damage
from appliance.store.writer import open_store
from tests.store.arrivals import arrival
from tests.store.stores import install

Lines = list[tuple[str, dict[str, Any]]]


def installed(state: Path) -> str:
    """A store with one version; gives the path of one of its blobs."""
    with open_store(state, StoreConfig(free_floor_bytes=0)) as store:
        install(store, arrival("digits", 1), want=True, now_ms=1)
        (_, version) = next(store.catalog.installed())
    return blob_path(next(file.digest for file in version.files if file.path.endswith("weights.bin")))


async def scrubbed(state: Path, until: Callable[[Scrubbing], bool]) -> tuple[Scrubbing, Lines]:
    lines: Lines = []
    met = asyncio.Event()

    def report(text: str, **fields: Any) -> None:
        lines.append((text, fields))
        if until(scrubbing):
            met.set()

    scrubbing = Scrubbing(state, StoreConfig(), lambda: time.time_ns() // 1_000_000, report)
    scrubbing.start()
    try:
        await asyncio.wait_for(met.wait(), 30)
    finally:
        await scrubbing.stop()
    return scrubbing, lines


async def test_a_sound_store_is_read_once_and_then_left_alone(tmp_path: Path) -> None:
    installed(tmp_path / "state")
    scrubbing, lines = await scrubbed(tmp_path / "state", lambda scrubbing: scrubbing.passes == 1)
    assert lines[-1][0] == "the store was scrubbed"
    assert scrubbing.record.finished_ms > 0
    assert not scrubbing.record.damaged
    again = Scrubbing(tmp_path / "state", StoreConfig(), lambda: time.time_ns() // 1_000_000, print)
    again.start()
    await again.stop()
    assert again.passes == 0


async def test_bit_rot_is_told_with_what_to_do(tmp_path: Path) -> None:
    blob = tmp_path / "state" / installed(tmp_path / "state")
    data = bytearray(blob.read_bytes())
    data[3] ^= 4
    blob.chmod(0o644)
    blob.write_bytes(data)
    scrubbing, lines = await scrubbed(tmp_path / "state", lambda scrubbing: scrubbing.passes == 1)
    (fields,) = [fields for text, fields in lines if "install its package again" in text]
    assert fields["digest"] == blob.name
    with open_store(tmp_path / "state", StoreConfig(free_floor_bytes=0)) as store:
        figures = store_figures(store.catalog, scrubbing, StoreConfig(), 7, "")
    assert (figures.versions, figures.wanted, figures.unsigned, figures.damaged) == (1, 1, 1, 1)


async def test_a_repair_is_seen_without_another_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubbing_module, "DAMAGE_LOOK_S", 0.01)
    state = tmp_path / "state"
    digest = Path(installed(state)).name
    now_ms = time.time_ns() // 1_000_000
    damage = Damage(digest=digest, text="has other bytes", found_ms=now_ms)
    (state / SCRUB).write_bytes(encode(ScrubRecord(finished_ms=now_ms, damaged=(damage,))))
    told, mended = asyncio.Event(), asyncio.Event()

    def wall_ms() -> int:
        """What the time is after each look at the record."""
        if not scrubbing.record.damaged:
            mended.set()
        return now_ms

    scrubbing = Scrubbing(state, StoreConfig(), wall_ms, lambda *_, **__: told.set())
    scrubbing.start()
    async with asyncio.timeout(30):
        await told.wait()
        assert not mended.is_set()
        forget_damage(state, {digest})
        await mended.wait()
    await scrubbing.stop()
    assert scrubbing.passes == 0


async def test_a_store_that_cannot_be_read_is_told_and_tried_again_later(tmp_path: Path) -> None:
    state = tmp_path / "state"
    installed(state)
    (state / "catalog.json").write_text("nonsense")
    scrubbing, lines = await scrubbed(state, lambda scrubbing: scrubbing.failures == 1)
    (fields,) = [fields for text, fields in lines if text == "the store cannot be scrubbed"]
    assert "catalog" in fields["reason"]
    assert scrubbing.passes == 0


async def test_a_pass_that_cannot_begin_is_told_and_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path / "state")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    scrubbing, lines = await scrubbed(tmp_path / "state", lambda scrubbing: scrubbing.failures == 1)
    (fields,) = [fields for text, fields in lines if text == "the store cannot be scrubbed"]
    assert "No such file" in fields["reason"]
    assert scrubbing.passes == 0


async def test_what_nobody_foresaw_is_told_and_keeps_it_from_stopping_no_more_than_from_going_on(
    tmp_path: Path,
) -> None:
    installed(tmp_path / "state")
    lines: Lines = []
    told = asyncio.Event()

    def report(text: str, **fields: Any) -> None:
        lines.append((text, fields))
        told.set()

    def broken() -> int:
        raise ValueError("the clock is gone")

    scrubbing = Scrubbing(tmp_path / "state", StoreConfig(), broken, report)
    scrubbing.start()
    await asyncio.wait_for(told.wait(), 30)
    await scrubbing.stop()
    assert lines[0][0] == "the store cannot be scrubbed"
    assert "the clock is gone" in lines[0][1]["reason"]
    assert scrubbing.failures == 1
