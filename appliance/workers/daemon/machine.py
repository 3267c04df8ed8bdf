"""How much memory this machine has for us, as the kernel says it: all of it, or what the control group allows."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

GROUPS = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")
MEMORY = Path("/proc/meminfo")


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
    for line in _text(memory).splitlines():
        name, _, rest = line.partition(":")
        amount = rest.split()
        if name == wanted and amount and amount[0].isdecimal():
            return [int(amount[0]) * 1024]
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
