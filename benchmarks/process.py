"""What the kernel says about processes: CPU time, memory and the load of everybody else.

Linux only (/proc). Readings of a process that has gone count as zero, because workers may end between two looks.
CPU times have the resolution of the kernel's clock tick (10 ms), so windows shorter than a second mean little.
"""

import contextlib
import os
import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
STAT_BUSY_FIELDS = (
    0,
    1,
    2,
    5,
    6,
)  # user, nice, system, irq, softirq; idle, iowait and steal are not our doing


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory in bytes, as smaps_rollup counts it, summed over the processes asked for."""

    rss: int
    pss: int
    private: int


def descendants(root: int) -> list[int]:
    """`root` and every living process below it, parents first."""
    found = [root]
    for pid in found:  # grows while it is walked
        found.extend(_children(pid))
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    for listing in (PROC / str(pid) / "task").glob("*/children"):
        with contextlib.suppress(OSError):
            children.extend(int(word) for word in listing.read_text().split())
    return children


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time of the processes and of their children already reaped."""
    return sum(_cpu_ticks(pid) for pid in pids) / TICKS_PER_SECOND


def _cpu_ticks(pid: int) -> int:
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()  # the command name may hold spaces and brackets
    return sum(int(field) for field in fields[11:15])


def memory(pids: Iterable[int]) -> Memory:
    """RSS, PSS and private memory of the processes together."""
    totals = dict.fromkeys(("Rss", "Pss", "Private_Clean", "Private_Dirty"), 0)
    for pid in pids:
        for key, value in _rollup(pid).items():
            if key in totals:
                totals[key] += value
    private = totals["Private_Clean"] + totals["Private_Dirty"]
    return Memory(rss=totals["Rss"], pss=totals["Pss"], private=private)


def _rollup(pid: int) -> dict[str, int]:
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines)
    return {key: int(rest.split()[0]) * 1024 for key, rest in pairs}


def mapped_rss(pid: int, library: str) -> int:
    """Resident bytes of the mappings of one process whose file has `library` in its path."""
    try:
        lines = (PROC / str(pid) / "smaps").read_text().splitlines()
    except OSError:
        return 0
    total, inside = 0, False
    for line in lines:
        if not line.split(" ", 1)[0].endswith(":"):  # a mapping begins
            inside = library in line
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMark:
    """One look at the clock, the machine's busy time, the time stolen by other guests and our own CPU time."""

    wall_s: float
    busy_s: float
    steal_s: float
    own_s: float


def mark(*server_roots: int) -> LoadMark:
    """Look now. Own time is this process, its reaped children and the trees under `server_roots`."""
    busy, steal = _machine_times()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own = sum(usage.ru_utime + usage.ru_stime for usage in used)
    own += sum(cpu_seconds(descendants(root)) for root in server_roots)
    return LoadMark(wall_s=time.monotonic(), busy_s=busy, steal_s=steal, own_s=own)


def _machine_times() -> tuple[float, float]:
    first = (PROC / "stat").read_text().split("\n", 1)[0].split()[1:]
    ticks = [int(field) for field in first]
    return sum(ticks[i] for i in STAT_BUSY_FIELDS) / TICKS_PER_SECOND, ticks[7] / TICKS_PER_SECOND


def foreign_cores(before: LoadMark, after: LoadMark) -> float:
    """Cores kept busy by others between two looks, steal included; 0.0 on a quiet machine."""
    wall = max(after.wall_s - before.wall_s, 1e-9)
    others = (after.busy_s - before.busy_s) - (after.own_s - before.own_s) + (after.steal_s - before.steal_s)
    return max(others, 0.0) / wall
