"""Where log lines and traces go: a file descriptor or a bounded file, written by a thread of its own.

``write`` never blocks and never raises: a full disk, a closed terminal or a reader that stopped reading costs lines,
which are counted, and nothing else. A file is opened again when it was moved away, and moved to ``NAME.1`` by itself
when it reaches its bound, so that at most twice the bound is on disk.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final, Protocol

BATCH_LINES: Final = 256
STALL_S: Final = 1.0
_END: Final = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStatistics:
    """Lines handed to the system, and lines lost to a full queue or a failed write."""

    written: int
    lost: int


class Target(Protocol):
    """What a sink writes to. Both may raise OSError; used by the sink's thread only."""

    def descriptor(self) -> int:
        """The descriptor to write the next lines to."""

    def wrote(self, nbytes: int) -> None:
        """Told after each successful write."""

    def close(self) -> None:
        """Give back what it opened; asked for a descriptor again, it opens anew."""


class DescriptorTarget:
    """A descriptor that was opened elsewhere, such as standard error."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def descriptor(self) -> int:
        """See Target."""
        return self._descriptor

    def wrote(self, nbytes: int) -> None:
        """See Target."""

    def close(self) -> None:
        """See Target; who opened it closes it."""


class FileTarget:
    """A file that is appended to; ``max_bytes`` bounds it. Raises OSError at once when it cannot be opened."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._descriptor = -1
        self._identity = (0, 0)
        self._open()

    def descriptor(self) -> int:
        """See Target."""
        if self._moved():
            self._open()
        return self._descriptor

    def wrote(self, nbytes: int) -> None:
        """See Target."""
        if os.fstat(self._descriptor).st_size >= self._max_bytes:
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))

    def close(self) -> None:
        """See Target."""
        os.close(self._descriptor)
        self._descriptor, self._identity = -1, (0, 0)

    def _moved(self) -> bool:
        try:
            now = self._path.stat()
        except FileNotFoundError:
            return True
        return (now.st_dev, now.st_ino) != self._identity

    def _open(self) -> None:
        opened = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = opened
        there = os.fstat(opened)
        self._identity = (there.st_dev, there.st_ino)


class Sink:
    """Takes lines from any thread; one thread of its own, ``name``, writes them in order, and calls ``failed`` when
    that begins to fail."""

    def __init__(
        self,
        target: Target,
        queue_lines: int,
        name: str = "log",
        failed: Callable[[OSError], None] = lambda error: None,
    ) -> None:
        self._target = target
        self._tell = failed
        self._queue_lines = queue_lines
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        self._refused = 0
        self._failed = 0
        self._written = 0
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Lines lost so far."""
        return self._refused + self._failed

    def write(self, line: bytes) -> None:
        """Queue one line, its newline included, or count it as lost."""
        if self._lines.qsize() >= self._queue_lines:
            self._refused += 1
        else:
            self._lines.put(line)

    def close(self, timeout_s: float) -> None:
        """Write what is queued, for at most ``timeout_s``; later lines are not written."""
        self._lines.put(_END)
        self._thread.join(timeout_s)

    def statistics(self) -> SinkStatistics:
        """A value to show."""
        return SinkStatistics(written=self._written, lost=self.lost)

    def _run(self) -> None:
        ended, failing = False, False
        while not ended:
            lines = self._next_lines()
            ended = _END in lines
            lines = lines[: lines.index(_END)] if ended else lines
            try:
                self._write_all(b"".join(lines))
                self._written += len(lines)
                failing = False
            except OSError as error:
                self._failed += len(lines)
                if not failing:
                    self._tell(error)
                failing = True
        self._target.close()

    def _next_lines(self) -> list[bytes]:
        lines = [self._lines.get()]
        try:
            while len(lines) < BATCH_LINES:
                lines.append(self._lines.get_nowait())
        except Empty:
            pass
        return lines

    def _write_all(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            descriptor = self._target.descriptor()
            try:
                written = os.write(descriptor, left)
            except BlockingIOError:
                _wait_writable(descriptor)
                continue
            left = left[written:]
            self._target.wrote(written)


def _wait_writable(descriptor: int) -> None:
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    if not poller.poll(STALL_S * 1_000):
        raise TimeoutError(f"descriptor {descriptor} took no byte for {STALL_S} s")
