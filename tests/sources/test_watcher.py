"""Who looks at models now and then ends when told to, whatever happens in that moment."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from appliance.config.repository import ReloadConfig, RepositoryConfig
from appliance.domain.errors import OperatorError
from appliance.process.priority import SHORT_TURN_NS, USUAL_TURN_NS, take_turns, turn_ns
from appliance.repository.directory import RepositoryScan
from appliance.sources import watcher
from appliance.sources.directory import DirectorySource
from appliance.sources.source import Look
from appliance.sources.watcher import Notices, Watched, Watcher, watch_problem
from tests.repository.onnx_files import plain_model, write_version


class TimedNotices:
    """Notices that come when the test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop, noticed: Callable[[], None]) -> None:
        self.noticed = noticed
        self.watching = asyncio.Event()
        self._loop = loop
        made.append(self)

    def watch(self, directories: Collection[str]) -> Watched:
        self._loop.call_soon_threadsafe(self.watching.set)
        return Watched("", False)

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
        notices.noticed()
        await watched.stop()

    asyncio.run(stir_and_stop())


@pytest.mark.timeout(20)
@pytest.mark.parametrize("at_start", [True, False])
def test_what_stirs_before_there_are_notices_of_it_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_start: bool
) -> None:
    """A version comes after the look, in the moment in which the directories are named that are to be watched."""
    source, directories = DirectorySource(tmp_path, RepositoryConfig()), DirectorySource.directories
    source.read()
    coming = [at_start]

    def named(self: DirectorySource) -> Collection[str]:
        found = directories(self)
        if coming and coming[0]:
            coming.clear()
            write_version(tmp_path, "m", plain_model(), 2)
        return found

    monkeypatch.setattr(DirectorySource, "directories", named)

    async def look_on() -> None:
        taken: asyncio.Queue[RepositoryScan] = asyncio.Queue()
        config = ReloadConfig(poll_s=600, quiet_ms=10)
        watched = Watcher(source, config, taken.put_nowait, lambda event, **more: None)
        watched.start()
        if not at_start:
            await asyncio.sleep(0)  # the task has asked for the turn before this one
            await watched.apart(lambda: coming.__setitem__(0, True))
            write_version(tmp_path, "m", plain_model(), 1)
        while not any(each.model.version == 2 for each in (await taken.get()).servable):
            pass
        await watched.stop()

    asyncio.run(look_on())


def test_a_directory_that_another_one_replaced_is_more_to_look_at(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()

    async def look_on() -> None:
        notices = Notices(asyncio.get_running_loop(), lambda: None)
        assert [notices.watch([str(folder)]) for _ in range(2)] == [Watched("", True), Watched("", False)]
        folder.rename(tmp_path / "other")
        folder.mkdir()
        assert notices.watch([str(folder)]) == Watched("", True)
        notices.close()

    asyncio.run(look_on())


class TrippedSource(DirectorySource):
    """A source that fails in a way that nobody thought of, for as long as it is told to."""

    tripped = False

    def look(self) -> Look:
        if self.tripped:
            raise ZeroDivisionError("nobody thought of this")
        return super().look()

    def read(self) -> RepositoryScan:
        if self.tripped:
            raise ZeroDivisionError("nobody thought of this")
        return super().read()


@pytest.mark.timeout(20)
def test_a_source_that_trips_is_told_and_looked_at_again(tmp_path: Path) -> None:
    source = TrippedSource(tmp_path, RepositoryConfig())
    source.read()

    async def trip() -> None:
        reports: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        taken: asyncio.Queue[RepositoryScan] = asyncio.Queue()
        watched = Watcher(
            source,
            ReloadConfig(poll_s=0.01),
            taken.put_nowait,
            lambda event, **more: reports.put_nowait((event, str(more.get("error", "")))),
        )
        source.tripped = True
        watched.start()
        event, error = await reports.get()
        assert "cannot be read" in event
        assert "ZeroDivisionError: nobody thought of this" in error
        with pytest.raises(OperatorError, match="nobody thought of this"):
            await watched.read()
        source.tripped = False
        assert await reports.get() == ("models can be read again", "")
        await taken.get()
        await watched.stop()

    asyncio.run(trip())


class Tripped:
    """What trips so often before it does what it should."""

    def __init__(self, times: int) -> None:
        self.left = times

    def trip(self) -> None:
        if self.left:
            self.left -= 1
            raise ZeroDivisionError("nobody thought of this")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("where", ["take", "troubled", "directories"])
def test_no_look_is_the_last_one_whatever_it_comes_to(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = TrippedSource(tmp_path, RepositoryConfig())
    source.read()
    tripped = Tripped(2)

    async def look_on() -> None:
        reports: asyncio.Queue[str] = asyncio.Queue()
        taken: asyncio.Queue[RepositoryScan] = asyncio.Queue()

        def take(scan: RepositoryScan) -> None:
            if where == "take":
                tripped.trip()
            taken.put_nowait(scan)

        def troubled(trouble: str) -> None:
            if where == "troubled" and not trouble:
                tripped.trip()

        directories = source.directories

        def listed() -> Collection[str]:
            tripped.trip()
            return directories()

        if where == "directories":
            monkeypatch.setattr(source, "directories", listed)
        watched = Watcher(
            source,
            ReloadConfig(poll_s=0.01, quiet_ms=10),
            take,
            lambda event, **more: reports.put_nowait(f"{event}: {more.get('error')}"),
            troubled,
        )
        source.tripped = where == "troubled"
        watched.start()
        if source.tripped:
            assert "cannot be read" in await reports.get()
            source.tripped = False
            assert "can be read again" in await reports.get()
        write_version(tmp_path, "new", plain_model())
        assert "ZeroDivisionError" in await reports.get()
        while not (await taken.get()).servable:
            pass  # what was there before the model was
        await watched.stop()

    asyncio.run(look_on())


@pytest.mark.skipif(not turn_ns(), reason="a kernel before 6.12")
def test_who_reads_models_takes_turns_as_long_as_anybodys(tmp_path: Path) -> None:
    take_turns(USUAL_TURN_NS)  # a command run in this process may have left it short ones
    usual, turns = turn_ns(), list[int]()
    source = DirectorySource(tmp_path, RepositoryConfig())

    async def read_beside_short_turns() -> None:
        take_turns(SHORT_TURN_NS)
        watched = Watcher(source, ReloadConfig(watch=False), lambda scan: None, lambda event, **more: None)
        turns.append(turn_ns())
        turns.append(await watched.apart(turn_ns))
        await watched.stop()
        await watched.ended()

    try:
        asyncio.run(read_beside_short_turns())
    finally:
        take_turns(USUAL_TURN_NS)
    assert turns == [SHORT_TURN_NS, usual]


def test_a_limit_is_told_from_what_else_is_wrong() -> None:
    limit = "fs.inotify.max_user_watches"
    now = int(Path("/proc/sys/fs/inotify/max_user_watches").read_text())
    full = OSError(errno.ENOSPC, "No space left on device")
    assert watch_problem(full, limit, "/m") == (
        f"{limit}, which is {now}, is reached; raise it, as by 'sysctl -w {limit}={now * 4}'"
    )
    closed = PermissionError(errno.EACCES, "Permission denied")
    told = watch_problem(closed, limit, "/m")
    assert told == "'/m': Permission denied; let the user of the appliance read it"
