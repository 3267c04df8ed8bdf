"""Who looks at models now and then ends when told to, whatever happens in that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from appliance.repository.settings import RepositoryConfig
from appliance.sources import watcher
from appliance.sources.directory import DirectorySource
from appliance.sources.settings import ReloadConfig
from appliance.sources.watcher import Watcher


class TimedNotices:
    """Notices that come when the test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop, noticed: Callable[[str], None]) -> None:
        self.noticed = noticed
        self.watching = asyncio.Event()
        self._loop = loop
        made.append(self)

    def watch(self, directories: Collection[str]) -> str:
        self._loop.call_soon_threadsafe(self.watching.set)
        return ""

    def close(self) -> None:
        pass


made: list[TimedNotices] = []


@pytest.mark.timeout(20)
def test_it_ends_in_the_moment_in_which_something_stirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "Notices", TimedNotices)
    source = DirectorySource(tmp_path, RepositoryConfig())
    source.read()

    async def stir_and_stop() -> None:
        watched = Watcher(source, ReloadConfig(poll_s=60), lambda scan: None, lambda event, **more: None)
        watched.start()
        notices = made.pop()
        await notices.watching.wait()
        for _ in range(5):
            await asyncio.sleep(0)  # the task goes on to wait for the next notice
        notices.noticed("")
        await watched.stop()

    asyncio.run(stir_and_stop())
