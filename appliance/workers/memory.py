"""What a worker process costs in memory, as the kernel counts it."""

from __future__ import annotations

import mmap
from collections.abc import Callable


class MemorySamples:
    """Remembers what each process was last seen to cost, for ``max_age_ns``: asking the kernel takes tens of
    microseconds, and many readers want to know at once. ``clock`` is monotonic nanoseconds."""

    def __init__(self, clock: Callable[[], int], max_age_ns: int = 1_000_000_000) -> None:
        self._clock = clock
        self._max_age_ns = max_age_ns
        self._taken_ns = 0
        self._bytes: dict[int, int] = {}

    def private_bytes(self, pid: int) -> int:
        """As ``private_bytes``, at most ``max_age_ns`` old."""
        now_ns = self._clock()
        if now_ns - self._taken_ns > self._max_age_ns:
            self._bytes.clear()
            self._taken_ns = now_ns
        if pid not in self._bytes:
            self._bytes[pid] = private_bytes(pid)
        return self._bytes[pid]


def private_bytes(pid: int) -> int:
    """Resident bytes of ``pid`` that are not file-backed or shared memory; 0 when the process is gone.

    Pages still shared copy-on-write with the zygote count too, so this is an upper bound that costs one small read;
    ``smaps_rollup`` would be exact and takes milliseconds.
    """
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            fields = file.read().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * mmap.PAGESIZE
