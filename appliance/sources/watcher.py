"""Look at a source whenever something happened there, and now and then anyway. Owner: the event loop's thread.

Reading happens on a thread of its own, one look at a time; what it finds is given to ``take`` on the loop. A notice
(Linux' inotify) says that something happened, never what: the watcher looks by itself. Where the kernel gives no more
of them it relies on looking now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import traceback
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from inotify_simple import INotify, flags

from appliance.config.repository import ReloadConfig
from appliance.domain.errors import OperatorError, Stopping
from appliance.process.priority import USUAL_TURN_NS, take_turns
from appliance.repository.directory import RepositoryScan
from appliance.sources.source import Look, Source

T = TypeVar("T")

STOPPING: Final = "the appliance is stopping: models are not read any more"
MASK: Final = (
    flags.CREATE
    | flags.DELETE
    | flags.MODIFY
    | flags.ATTRIB
    | flags.CLOSE_WRITE
    | flags.MOVED_FROM
    | flags.MOVED_TO
    | flags.DELETE_SELF
    | flags.MOVE_SELF
    | flags.ONLYDIR
)


class Watcher:
    """Keeps ``take`` told of what ``source`` holds. ``report`` writes a log line; ``troubled`` is told why the source
    cannot be read, and "" when it can again: right before ``take`` is told all that it holds."""

    def __init__(
        self,
        source: Source,
        config: ReloadConfig,
        take: Callable[[RepositoryScan], None],
        report: Callable[..., None],
        troubled: Callable[[str], None] = lambda trouble: None,
    ) -> None:
        self._source = source
        self._config = config
        self._take = take
        self._report = report
        self._troubled = troubled
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="models", initializer=take_turns, initargs=(USUAL_TURN_NS,)
        )  # a model is read for milliseconds: threads with the daemon's short turns go before it at once
        self._stirred = asyncio.Event()
        self._notices: Notices | None = None
        self._task: asyncio.Task[None] | None = None
        self._trouble = ""
        self._unwatched = ""
        self._failed = ""
        self._owed = False
        """Whether ``take`` has yet to hear of all that there is."""
        self._stopped = asyncio.Event()

    @property
    def trouble(self) -> str:
        """Why the source cannot be read at present; "" when it can."""
        return self._trouble

    def start(self) -> None:
        """Begin to watch, if that is wanted."""
        if not self._config.watch:
            return
        try:
            self._notices = Notices(asyncio.get_running_loop(), self._stirred.set)
        except OSError as error:
            self._cannot_watch(watch_problem(error, "fs.inotify.max_user_instances"))
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """End. What is being read is read to no purpose, and who waits for the turn to read gets none."""
        self._stopped.set()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        notices, self._notices = self._notices, None
        if notices is not None:
            notices.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def ended(self) -> None:
        """After ``stop``: until the thread has ended, and with it whatever it was reading."""
        await asyncio.to_thread(self._thread.shutdown)

    async def read(self) -> RepositoryScan:
        """Everything anew, whether it seems to have changed or not. Raises OperatorError, and Stopping as ``apart``."""
        return await self._asked(self._source.read)

    async def apart(self, call: Callable[[], T]) -> T:
        """Call on the thread that reads, which may block. Raises Stopping when its turn does not come any more."""
        if self._stopped.is_set():
            raise Stopping(STOPPING)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._stopped.is_set() or (task is not None and task.cancelling()):
                raise
            raise Stopping(STOPPING) from None  # its turn was cancelled, not the task that waited for it

    def later(self, call: Callable[[], object]) -> None:
        """Call on that thread when its turn comes; stopping before that prevents it."""
        self._thread.submit(call)

    async def _asked(self, call: Callable[[], T]) -> T:
        """What the source says. Raises OperatorError, whatever keeps it from saying so but the end."""
        try:
            return await self.apart(call)
        except (OperatorError, Stopping):
            raise
        except Exception as error:
            what = "".join(traceback.format_exception_only(error)).strip()
            raise OperatorError(f"for a reason that nobody foresaw: {what[:500]}") from error

    async def _watch(self) -> None:
        """What stirs is looked at at once, and again after a while: two equal looks tell that it has settled. So is
        what may have stirred before there were notices of it."""
        unsettled = await self._survived(self._rewatch) and await self._survived(self._look)
        while True:
            if unsettled:
                await asyncio.sleep(self._config.quiet_ms / 1000)
            else:
                # Not wait_for: before Python 3.12 that one takes no notice of being cancelled in the turn in which it
                # ends.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._config.poll_s):
                        await self._stirred.wait()
            self._stirred.clear()
            unsettled = await self._survived(self._look)

    async def _survived(self, step: Callable[[], Awaitable[bool]]) -> bool:
        """Do ``step``, after which the watch goes on, whatever becomes of it; whether another look is due soon."""
        try:
            return await step()
        except Stopping:
            return False  # and is cancelled
        except Exception as error:  # noqa: BLE001  what one look comes to must not be the last that is seen of models
            said = "".join(traceback.format_exception(error))
            if said != self._failed:
                self._failed = said
                self._report("what was seen of models could not be worked towards", error=said)
            return False

    async def _look(self) -> bool:
        """Look once; whether it is worth another one soon."""
        try:
            look: Look = await self._asked(self._source.look)
        except OperatorError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                self._report("models cannot be read; everything stays as it is", error=self._trouble)
                self._troubled(self._trouble)
            return False
        scan = look.scan
        if self._trouble:
            self._trouble = ""
            self._report("models can be read again")
            self._owed = True
            self._troubled("")
        if self._owed:
            scan = scan or await self._asked(self._source.scan)
        more = False
        if scan is not None:
            self._owed = True
            self._take(scan)
            self._owed = False
            more = await self._rewatch()
        return look.unsettled or more

    async def _rewatch(self) -> bool:
        """Have notices of all that is there now; whether of more than before, which may have changed since it was
        looked at."""
        notices = self._notices
        if notices is None:
            return False
        found = await self.apart(lambda: notices.watch(self._source.directories()))
        if found.problem:
            self._cannot_watch(found.problem)
        return found.more

    def _cannot_watch(self, reason: str) -> None:
        if reason != self._unwatched:
            self._unwatched = reason
            self._report(
                "changes of some models are only seen by looking now and then",
                reason=reason,
                every_s=self._config.poll_s,
            )


def watch_problem(error: OSError, limit: str, path: str = "") -> str:
    """Why the kernel gives no notices, of ``path`` or at all, and what to do: its ``limit`` is reached, or something
    else is wrong."""
    if error.errno in (errno.ENOSPC, errno.EMFILE):
        now = Path("/proc/sys", *limit.split(".")).read_text().strip()
        return f"{limit}, which is {now}, is reached; raise it, as by 'sysctl -w {limit}={int(now) * 4}'"
    said = os.strerror(error.errno or 0)
    if isinstance(error, PermissionError):
        said += "; let the user of the appliance read it"
    return f"'{path}': {said}" if path else said


class Watched(NamedTuple):
    """Why some directories cannot be watched, "" when all are; whether some are that were not, or are others of the
    same names."""

    problem: str
    more: bool


class Notices:
    """Calls ``changed`` when something happened in one of the directories, or when notices of it were lost.

    ``watch`` may be called from any thread, one call at a time; all else belongs to the event loop's. Raises OSError
    when the system has no inotify to give.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._notify = INotify(nonblocking=True)
        self._loop = loop
        self._watches: dict[str, int] = {}
        self._paths: dict[int, str] = {}
        loop.add_reader(self._notify.fileno(), self._read)

    def watch(self, directories: Collection[str]) -> Watched:
        """Watch exactly these."""
        wanted, more = set(directories), False
        for path in self._watches.keys() - wanted:
            self._drop(path)
        for path in wanted:
            try:
                number = self._notify.add_watch(path, MASK)
            except OSError as error:
                if isinstance(error, FileNotFoundError | NotADirectoryError):
                    continue  # it went meanwhile, of which its parent tells
                return Watched(watch_problem(error, "fs.inotify.max_user_watches", path), more)
            more = more or self._watches.get(path) != number
            self._paths[number], self._watches[path] = path, number
        return Watched("", more)

    def close(self) -> None:
        """No more notices."""
        self._loop.remove_reader(self._notify.fileno())
        self._notify.close()

    def _drop(self, path: str) -> None:
        number = self._watches.pop(path)
        self._paths.pop(number, None)
        try:
            self._notify.rm_watch(number)
        except OSError:
            return  # the directory is gone, and its watch with it

    def _read(self) -> None:
        for event in self._notify.read(timeout=0):
            if not event.mask & flags.IGNORED:
                self._changed()
            else:
                path = self._paths.pop(event.wd, None)
                if path is not None and self._watches.get(path) == event.wd:
                    del self._watches[path]
