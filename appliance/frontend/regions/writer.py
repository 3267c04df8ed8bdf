"""A thread for what can take long with the memory of one user, who alone waits for it.

Writing to a file of /dev/shm waits for whoever has its lock, which its owner may hold for ever (a write from memory
that never comes), and a process that waits there cannot be ended. So nothing is written by write(2): the kernel copies
into a mapping of the file, for which it takes no such lock, from memory of this thread's own. It says EFAULT for what
the file has not, or the machine has no memory for; touching the mapping from here would end the process by SIGBUS.
What is left to wait for are a hole that is made in the file, and the freeing of its memory with its last descriptor:
these take as long as the memory is large, and end.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Final
from weakref import finalize

_LOG = logging.getLogger(__name__)
PIECE_BYTES: Final = 1 << 20
"""What is copied at once: it is still in a processor's cache when it is copied on."""


class Scratch:
    """Memory from which the kernel copies into mapped memory. Owner: the writer's thread."""

    def __init__(self) -> None:
        self._descriptor = -1

    def copy(self, data: memoryview, place: memoryview) -> None:
        """Copy ``data`` to ``place``, mapped memory of as many bytes. Raises OSError: EFAULT where there is none."""
        if self._descriptor < 0:
            self._descriptor = os.memfd_create("appliance-answers", os.MFD_CLOEXEC)
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            os.pwrite(self._descriptor, piece, 0)
            if os.preadv(self._descriptor, [place[start : start + len(piece)]], 0) < len(piece):
                raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))

    def close(self) -> None:
        """Give it back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)


Job = Callable[[Scratch], object]


class Writer:
    """Does jobs one after another on its thread, which ends when nobody can have more for it."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        # A daemon: a process that stops does not wait for the memory of a client.
        Thread(target=_work, args=(self._jobs,), name="regions", daemon=True).start()
        finalize(self, self._jobs.put, None).atexit = False

    def do(self, job: Job) -> None:
        """Have it done after those before it. By any thread, and at any point of it."""
        self._jobs.put(job)


def _work(jobs: SimpleQueue[Job | None]) -> None:
    scratch = Scratch()
    while (job := jobs.get()) is not None:
        try:
            job(scratch)
        except Exception:  # noqa: BLE001  others wait for the thread
            _LOG.exception("a job with the memory of a client met a defect")
        del job  # with what it holds, before the next one comes
    scratch.close()
