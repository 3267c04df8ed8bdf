"""What the rollouts ask of memory, and how its answer is told to their core."""

from __future__ import annotations

from typing import Protocol

from appliance.core.memory.actions import GrantReservation, HoldReservation, RefuseReservation, Reply
from appliance.core.memory.budget import AbsentDevice
from appliance.core.rollout.events import MemoryAnswered
from appliance.domain.device import DeviceName
from appliance.domain.device_wish import absence
from appliance.engine.versions.served import Served


class MemoryPort(Protocol):
    """What tells whether there is memory for a version."""

    def reserve(self, served: Served, before: Served | None, now_ns: int) -> Reply:
        """Whether there is memory to load a version that is on its way to serving, in the place of ``before``."""

    def rests(self, served: Served, now_ns: int) -> bool:
        """Whether a version that is known to serve begins out of memory, because there is no room for it."""

    def rest(self, served: Served) -> None:
        """It begins out of memory."""

    def pause_ns(self, device: DeviceName) -> int:
        """How long after the end of a process on ``device`` a fault of that is seen, if it has one."""

    def room_bytes(self, served: Served) -> int:
        """What its session may take of its device when it is loaded now; 0: that is not known, or not bounded."""

    def form_room_bytes(self, served: Served) -> int | None:
        """What a worker that builds its form may take of its device now; 0: there is no room for one. None: that is not
        known, or not bounded."""

    def memory_of(self, served: Served) -> tuple[int, int]:
        """What it takes now, and how much of that are its weights."""


def memory_answered(version: int, reply: Reply) -> MemoryAnswered:
    """What became of the wish of ``version`` for memory."""
    if not isinstance(reply, RefuseReservation):
        there, kept = isinstance(reply, GrantReservation), isinstance(reply, HoldReservation)
        return MemoryAnswered(version, there=there, kept=kept)
    if isinstance(reply.reason, AbsentDevice):
        return MemoryAnswered(version, refused=absence(reply.reason.wish, reply.reason.there))
    return MemoryAnswered(version, reason=reply.reason, again_ns=reply.again_ns)
