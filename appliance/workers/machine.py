"""How much memory this machine has for us, as the kernel says it: all of it, or what the control group allows."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

GROUPS = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")
MEMORY = Path("/proc/meminfo")


def memory_bytes(groups: Path = GROUPS, own_group: Path = OWN_GROUP, memory: Path = MEMORY) -> int:
    """The smallest limit of our control groups (version 2) and of the machine; 0: none of them can be read."""
    limits = [*_machine(memory), *_groups(groups, own_group)]
    return min(limits, default=0)


def _machine(memory: Path) -> list[int]:
    for line in _text(memory).splitlines():
        name, _, rest = line.partition(":")
        amount = rest.split()
        if name == "MemTotal" and amount and amount[0].isdecimal():
            return [int(amount[0]) * 1024]
    return []


def _groups(groups: Path, own_group: Path) -> list[int]:
    """The limits from our group up to the root."""
    limits: list[int] = []
    for line in _text(own_group).splitlines():
        number, _, path = line.split(":", 2) if line.count(":") >= 2 else ("", "", "")
        if number != "0":
            continue
        own = PurePosixPath(path.lstrip("/"))
        for place in (own, *own.parents):
            said = _text(groups / place / "memory.max").strip()
            if said.isdecimal():
                limits.append(int(said))
    return limits


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
