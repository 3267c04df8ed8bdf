"""What worker processes have of a device that none of their versions says it takes. Pure.

What a version takes is its worker's word, and a model that took over its worker may say what it likes. The driver says
what each process has: what of that is more than a context and the words of its versions counts against the device's
budget. Where a process loads or lets go, its memory and its words change at different moments; so only what was there
in each of the last looks counts, and a process that loads is looked at when it has done so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from appliance.core.memory.homes import CONTEXT_BYTES, STEP_BYTES

LOOKS: Final = 3
"""Drivers are asked once a second, and a session is gone a moment after its version has left."""


class Found(NamedTuple):
    """A process that has ``unsaid_bytes`` more than ``said_bytes`` and a context; told once of each."""

    pid: int
    said_bytes: int
    unsaid_bytes: int


class Unsaid:
    """Of one device."""

    def __init__(self) -> None:
        self.bytes = 0
        """Of all its processes, as it counts; changes by STEP_BYTES or more, or to nothing."""
        self._seen: dict[int, deque[int]] = {}
        self._told: set[int] = set()

    def take(self, held: Mapping[int, int], said: Mapping[int, int | None]) -> list[Found]:
        """Look: what the driver says that processes have, and what the versions in each of the appliance's own say
        (None: that changes now). Gives those that are found to have more, each once in its life."""
        self._seen = {pid: seen for pid, seen in self._seen.items() if pid in said}
        self._told &= said.keys()
        for pid, said_bytes in said.items():
            if said_bytes is not None and pid in held:
                seen = self._seen.setdefault(pid, deque(maxlen=LOOKS))
                seen.append(max(held[pid] - CONTEXT_BYTES - said_bytes, 0))
        counted = {pid: min(seen) for pid, seen in self._seen.items() if len(seen) == LOOKS}
        total = sum(counted.values())
        if abs(total - self.bytes) >= STEP_BYTES or not total:
            self.bytes = total
        found = [
            Found(pid, said.get(pid) or 0, size)
            for pid, size in counted.items()
            if size >= STEP_BYTES and pid not in self._told
        ]
        self._told |= {each.pid for each in found}
        return found
