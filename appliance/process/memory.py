"""Memory as the kernel counts it: what a process costs, and how much this machine, or our control group, has for us."""

from __future__ import annotations

import mmap
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

EXACT_AGE_NS: Final = 60_000_000_000
"""So long it is believed how much a process shares with others."""
EXACT_AT_ONCE: Final = 2
"""Processes of which that is found out in one round: it takes the kernel about a millisecond each."""
MOVED_BYTES: Final = 4 << 20
"""Nor longer than until a process has so much more or less of either kind of pages: of a file what it maps twice counts
as shared, and so does what it lets go between the two readings of which that is the difference."""
KIB: Final = 1024
GROUPS: Final = Path("/sys/fs/cgroup")
OWN_GROUP: Final = Path("/proc/self/cgroup")
MEMORY: Final = Path("/proc/meminfo")


class Resident(NamedTuple):
    """What a process has in memory, shared with others or not, in bytes: pages of its own making, and of mapped files,
    each as often as it is mapped. No shared memory."""

    anonymous: int
    files: int

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.anonymous + self.files


class _Shared(NamedTuple):
    """What a process had in memory together with others, when that was found out, and of what."""

    bytes: int
    at_ns: int
    of: Resident

    def is_old(self, resident: Resident, now_ns: int) -> bool:
        """Whether it is to be found out anew of a process that has so much now."""
        moved = max(abs(now - then) for now, then in zip(resident, self.of, strict=True))
        return now_ns - self.at_ns > EXACT_AGE_NS or moved > MOVED_BYTES


class MemorySamples:
    """What each process has in memory for itself, mapped files included: what would be free without it. What it shares,
    above all with the process that it was forked from, is asked for seldom and of few processes at a time, because
    ``smaps_rollup`` walks all their pages; what it has, every ``max_age_ns``. A process that was not asked yet counts
    as sharing what the others do, one that cannot be asked as sharing nothing: too much is safe, too little is not.
    ``clock`` is monotonic nanoseconds; ``alone`` gives 0 for a process that cannot be asked."""

    def __init__(
        self,
        clock: Callable[[], int],
        max_age_ns: int = 1_000_000_000,
        resident: Callable[[int], Resident] | None = None,
        alone: Callable[[int], int] | None = None,
    ) -> None:
        self._clock = clock
        self._max_age_ns = max_age_ns
        self._resident = resident or resident_of
        self._alone = alone or unshared_bytes
        self._taken_ns = 0
        self._exact_left = EXACT_AT_ONCE
        self._bytes: dict[int, int] = {}
        self._shared: dict[int, _Shared] = {}

    def private_bytes(self, pid: int) -> int:
        """At most ``max_age_ns`` old; 0 when the process is gone."""
        now_ns = self._clock()
        if now_ns - self._taken_ns > self._max_age_ns:
            self._shared = {known: shared for known, shared in self._shared.items() if self._bytes.get(known)}
            self._bytes.clear()
            self._taken_ns, self._exact_left = now_ns, EXACT_AT_ONCE
        if pid not in self._bytes:
            self._bytes[pid] = self._look(pid, now_ns)
        return self._bytes[pid]

    def _look(self, pid: int, now_ns: int) -> int:
        resident = self._resident(pid)
        known = self._shared.get(pid)
        if resident.bytes and self._exact_left and (known is None or known.is_old(resident, now_ns)):
            alone = self._alone(pid) or resident.bytes
            self._exact_left -= 1
            known = self._shared[pid] = _Shared(max(resident.bytes - alone, 0), now_ns, resident)
        shared = known.bytes if known is not None else self._usual()
        return max(resident.bytes - shared, 0)

    def _usual(self) -> int:
        known = [shared.bytes for shared in self._shared.values()]
        return int(statistics.median(known)) if known else 0


def resident_of(pid: int) -> Resident:
    """As the kernel has it; nothing when the process is gone, or of what the kernel does not tell."""
    sizes = _sizes(f"/proc/{pid}/status", ("RssAnon", "RssFile"))
    return Resident(sizes.get("RssAnon", 0), sizes.get("RssFile", 0))


def unshared_bytes(pid: int) -> int:
    """Pages that no other process has; 0 when the process is gone, or another user's."""
    return sum(_sizes(f"/proc/{pid}/smaps_rollup", ("Private_Clean", "Private_Dirty")).values())


def private_bytes(pid: int) -> int:
    """Resident bytes of ``pid`` that are not file-backed or shared memory; 0 when the process is gone.

    Pages still shared copy-on-write with the zygote count too, so this is an upper bound that costs one small read: for
    differences.
    """
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:  # as text it would have a worker import a codec
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * mmap.PAGESIZE


def _sizes(path: str, wanted: tuple[str, ...]) -> dict[str, int]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return {}
    return {name: size for name in wanted for size in _kibibytes(lines, name)}


# --- the machine's


def memory_bytes(groups: Path = GROUPS, own_group: Path = OWN_GROUP, memory: Path = MEMORY) -> int:
    """The smallest limit of our control groups (version 2) and of the machine; 0: none of them can be read."""
    limits = [*_machine(memory, "MemTotal"), *_groups(groups, own_group)]
    return min(limits, default=0)


def free_bytes(groups: Path = GROUPS, own_group: Path = OWN_GROUP, memory: Path = MEMORY) -> int:
    """What may still be taken before the first of those limits is reached, files in memory given back; 0: not known."""
    left = _machine(memory, "MemAvailable")
    for place in _places(groups, own_group):
        limit, used = _text(place / "memory.max").strip(), _text(place / "memory.current").strip()
        if limit.isdecimal() and used.isdecimal():
            left.append(max(int(limit) - int(used) + _files(place), 0))
    return min(left, default=0)


def _files(place: Path) -> int:
    for line in _text(place / "memory.stat").splitlines():
        name, _, amount = line.partition(" ")
        if name == "inactive_file" and amount.isdecimal():
            return int(amount)
    return 0


def _machine(memory: Path, wanted: str) -> list[int]:
    return _kibibytes(_text(memory).splitlines(), wanted)


def _kibibytes(lines: Iterable[str], wanted: str) -> list[int]:
    """What the first line of that name says, in bytes; nothing where none says a number."""
    for line in lines:
        name, _, rest = line.partition(":")
        amount = rest.split()
        if name == wanted and amount and amount[0].isascii() and amount[0].isdecimal():
            return [int(amount[0]) * KIB]
    return []


def _groups(groups: Path, own_group: Path) -> list[int]:
    """The limits from our group up to the root."""
    said = [_text(place / "memory.max").strip() for place in _places(groups, own_group)]
    return [int(limit) for limit in said if limit.isdecimal()]


def _places(groups: Path, own_group: Path) -> list[Path]:
    places: list[Path] = []
    for line in _text(own_group).splitlines():
        number, _, path = line.split(":", 2) if line.count(":") >= 2 else ("", "", "")
        if number != "0":
            continue
        own = PurePosixPath(path.lstrip("/"))
        places.extend(groups / place for place in (own, *own.parents))
    return places


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
