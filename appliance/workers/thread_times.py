"""What the kernel tells of a thread: what it has used of processors, how long it waited for one, where it ran last."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from appliance.core.scheduling.companions import Spent

_PROCESSOR: Final = 36
"""Place of the processor among the fields of /proc/PID/stat behind the name, which may hold anything (proc(5))."""


def spent_by(process: int, thread: int) -> Spent | None:
    """So far; None where the thread is gone, or the kernel keeps no such account (CONFIG_SCHED_INFO)."""
    with suppress(OSError, ValueError), open(f"/proc/{process}/task/{thread}/schedstat", "rb") as file:
        ran, waited, _ = file.read(200).split()
        return Spent(int(ran), int(waited)) if int(ran) else None
    return None


def processor_of(process: int, thread: int) -> int:
    """Where it runs, or ran last; -1 where it is gone."""
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{process}/task/{thread}/stat", "rb") as file:
        return int(file.read(2000).rpartition(b")")[2].split()[_PROCESSOR])
    return -1
