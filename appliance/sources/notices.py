"""Notices of changes in directories: Linux' inotify, through the only file that knows its library.

A notice says where something happened, never what: the watcher looks by itself. Where the kernel gives no more of
them the caller is told, and relies on looking now and then.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from typing import Final

from inotify_simple import INotify, flags

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


class Notices:
    """Tells ``changed`` the directory in which something happened; "" when notices were lost: it may be anywhere.

    ``watch`` may be called from any thread, one call at a time; all else belongs to the event loop's. Raises OSError
    when the system has no inotify to give.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, changed: Callable[[str], None]) -> None:
        self._changed = changed
        self._notify = INotify(nonblocking=True)
        self._loop = loop
        self._watches: dict[str, int] = {}
        self._paths: dict[int, str] = {}
        loop.add_reader(self._notify.fileno(), self._read)

    def watch(self, directories: Collection[str]) -> str:
        """Watch exactly these; gives why some cannot be watched, "" when all are."""
        wanted = set(directories)
        for path in self._watches.keys() - wanted:
            self._drop(path)
        for path in wanted:
            try:
                number = self._notify.add_watch(path, MASK)
            except OSError as error:
                if isinstance(error, FileNotFoundError | NotADirectoryError):
                    continue  # it went meanwhile, of which its parent tells
                return f"{os.strerror(error.errno or 0)} (fs.inotify.max_user_watches)"
            self._paths[number], self._watches[path] = path, number
        return ""

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
            if event.mask & flags.Q_OVERFLOW:
                self._changed("")
            elif event.wd in self._paths and not event.mask & flags.IGNORED:
                self._changed(self._paths[event.wd])
            elif event.mask & flags.IGNORED:
                path = self._paths.pop(event.wd, None)
                if path is not None and self._watches.get(path) == event.wd:
                    del self._watches[path]
