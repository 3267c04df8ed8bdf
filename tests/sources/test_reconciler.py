"""What is wanted ends in order: nothing is closed under the thread that reads, and who waits for it is told."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from appliance.config.repository import ReloadConfig, RepositoryConfig
from appliance.domain.errors import Stopping
from appliance.engine.engine import Engine
from appliance.engine.versions.records import MemoryRecords
from appliance.reconciler.reconciler import Reconciler
from appliance.repository.directory import RepositoryScan
from appliance.sources.directory import DirectorySource


class SlowSource(DirectorySource):
    """Reads for as long as it is not ``let``."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, RepositoryConfig())
        self.asked, self.let = threading.Event(), threading.Event()
        self.busy = self.closed = False

    def read(self) -> RepositoryScan:
        self.busy = True
        self.asked.set()
        assert self.let.wait(20)
        self.busy = False
        return super().read()

    def close(self) -> None:
        assert not self.busy, "closed while it is read"
        self.closed = True
        super().close()


def _desired(source: SlowSource, told: list[str]) -> Reconciler:
    def report(event: str, **more: Any) -> None:
        told.append(event)

    nothing_serves = cast("Engine", None)  # it is not asked before a scan is taken
    return Reconciler(source, nothing_serves, ReloadConfig(), RepositoryConfig(), MemoryRecords(), report)


async def _asked(source: SlowSource) -> None:
    assert await asyncio.to_thread(source.asked.wait, 10), "it was never read"


@pytest.mark.timeout(20)
def test_a_source_is_closed_when_nobody_reads_it_any_more(tmp_path: Path) -> None:
    source = SlowSource(tmp_path)

    async def stop_while_it_begins() -> None:
        desired = _desired(source, [])
        beginning = asyncio.create_task(desired.begin())
        await _asked(source)
        beginning.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beginning
        closing = asyncio.create_task(desired.close())
        for _ in range(5):
            await asyncio.sleep(0)
        source.let.set()
        await closing

    asyncio.run(stop_while_it_begins())
    assert source.closed


@pytest.mark.timeout(20)
def test_who_waits_to_have_models_read_is_told_of_the_stop(tmp_path: Path) -> None:
    source, told = SlowSource(tmp_path), list[str]()

    async def stop_while_some_wait() -> None:
        desired = _desired(source, told)
        reading = asyncio.create_task(desired.reread())
        await _asked(source)
        waiting = asyncio.gather(desired.reread(), desired.load("m", None, {}), return_exceptions=True)
        await asyncio.sleep(0)
        await desired.stop()
        reread, load = await waiting
        assert reread is None
        assert isinstance(load, Stopping)
        with pytest.raises(Stopping):
            await desired.load("m", None, {})
        source.let.set()
        await reading
        await desired.close()

    asyncio.run(stop_while_some_wait())
    assert not told
