"""Lanes on their way to the door, which may have no descriptor left for one: it is offered that again, now and then.
Until it takes it, all that the lane gets comes by Python. Owner: the engine.
"""

from __future__ import annotations

from typing import Final

from appliance.engine.fastpath.direct import DirectDoor
from appliance.workers.port import WorkerPort

LOOK_NS: Final = 1_000_000_000
"""How often lanes are offered again: after turns, because where there are none nobody asks for anything."""


class Openings:
    """Opens lanes."""

    def __init__(self, workers: WorkerPort) -> None:
        self._workers = workers
        self._missing: dict[int, int] = {}
        """The groups of lanes that the door has yet to take."""
        self._look_ns = 0

    def open(self, door: DirectDoor, lane: int, group: int) -> bool:
        """Whether ``lane`` has anything to share with the door, which has it from now on, or as soon as it can."""
        if self._workers.memory(lane) is None:
            return False
        if not self._taken(door, lane, group):
            self._missing[lane] = group
        return True

    def is_missing(self, lane: int) -> bool:
        """Whether the door has yet to take it."""
        return lane in self._missing

    def forget(self, lane: int) -> None:
        """Its worker's process has ended."""
        self._missing.pop(lane, None)

    def look(self, door: DirectDoor, now_ns: int) -> list[int]:
        """The lanes that the door has now and had not before."""
        opened: list[int] = []
        if not self._missing or now_ns < self._look_ns:
            return opened
        self._look_ns = now_ns + LOOK_NS
        for lane, group in self._missing.items():
            if not self._taken(door, lane, group):
                break  # nor will there be one for the next
            opened.append(lane)
        for lane in opened:
            del self._missing[lane]
        return opened

    def _taken(self, door: DirectDoor, lane: int, group: int) -> bool:
        memory = self._workers.memory(lane)
        if memory is None:
            return False
        try:
            door.open_lane(lane, group, memory.fileno(), memory.doorbell())
        except (OSError, ValueError):
            return False  # no descriptor is left for it, or the door is closed
        return True
