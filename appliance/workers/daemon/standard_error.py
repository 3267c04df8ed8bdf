"""What the zygote or a worker writes to standard error: a bounded pipe that the daemon reads and logs by line.

Each has a pipe of its own, so none can take another's lines, nor keep it or the daemon waiting. One that writes more
than the log shall hold is not waited for: the pipe is left alone for a while, and what finds no room in it is lost to
its writer. Owner: the event loop's thread.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

LINES_A_SECOND: Final = 20
LAST_LINES: Final = 5
LINE_BYTES_MAX: Final = 1000
READ_BYTES: Final = LINES_A_SECOND * LINE_BYTES_MAX


class StandardError:
    """One pipe; ``say`` gets each line as text without control characters."""

    def __init__(self, loop: asyncio.AbstractEventLoop, say: Callable[[str], None]) -> None:
        """Raise OSError where there are no descriptors for it."""
        self._loop = loop
        self._say = say
        self._rest = b""
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._resume: asyncio.TimerHandle | None = None
        self._readable, self.writable = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        loop.add_reader(self._readable, self._read)

    @property
    def last_words(self) -> str:
        """The last lines."""
        return "; ".join(self._last)

    def given(self) -> None:
        """The process has the end to which is written."""
        if self.writable >= 0:
            os.close(self.writable)
            self.writable = -1

    def close(self) -> None:
        """Say what is there, and read no more."""
        self.given()
        if self._readable < 0:
            return
        self._read()
        if self._readable >= 0:
            self._end()

    def _read(self) -> None:
        try:
            data = os.read(self._readable, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._end()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines[:LINES_A_SECOND]:
            self._tell(_plain(line))
        if len(lines) > LINES_A_SECOND:
            self._say(f"{len(lines) - LINES_A_SECOND} more lines are left out")
        self._pause()

    def _tell(self, text: str) -> None:
        self._last.append(text)
        self._say(text)

    def _pause(self) -> None:
        self._loop.remove_reader(self._readable)
        self._resume = self._loop.call_later(1.0, self._go_on)

    def _go_on(self) -> None:
        self._resume = None
        self._loop.add_reader(self._readable, self._read)

    def _end(self) -> None:
        if self._rest:
            self._tell(_plain(self._rest))
            self._rest = b""
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
        with suppress(OSError, ValueError):
            self._loop.remove_reader(self._readable)
        os.close(self._readable)
        self._readable = -1


def _plain(line: bytes) -> str:
    text = line[:LINE_BYTES_MAX].decode(errors="replace")
    return "".join(each if each.isprintable() else "?" for each in text)
