"""Which device a version gets: of those that it asks for, the one with most memory that no other version is to have.

One that its hardware has slowed gets a version only where none of the others has room for it: slow is better than not
at all.

Where no driver tells of any device of the kind, one is taken by its number: the worker will see. Who asks for more than
a number gets none there, because nobody knows what that device is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from appliance.core.memory.budget import AbsentDevice, WaitsForDevice
from appliance.domain.device import Device, DeviceKind, DeviceName
from appliance.domain.device_wish import DeviceWish

GIB: Final = 1 << 30
CONTEXT_BYTES: Final = GIB
"""Of each GPU, for what its worker takes before it has a model: the context and CUDA's libraries took 828 MiB with two
small ones on an H200."""
ROOM_PARTS: Final = 4
ROOM_BYTES: Final = 192 << 20
"""A session may take more than was promised to it by one part of so many, and by so much: what is known of a version
before its first load is the size of its files, and a session computes in memory beside its weights. The latter is about
what a context leaves of what is kept for it."""
STEP_BYTES: Final = 64 << 20
"""What processes have counts as changed from here on: contexts and allocators take and give back less all the time."""


class Home(NamedTuple):
    """A device as it is: ``budget_bytes`` are for versions, ``free_bytes`` of those are no version's, in memory or out
    of it (below zero where more are at home there than fit); ``fault`` is why it takes none, "" where it does, ``slow``
    why others are better, "" where they are not."""

    device: Device
    budget_bytes: int
    free_bytes: int
    fault: str = ""
    slow: str = ""

    def is_quick(self, need_bytes: int) -> bool:
        """Whether a version that needs so much is well off there."""
        return not (self.fault or self.slow) and self.free_bytes >= need_bytes


def choose(
    wish: DeviceWish, need_bytes: int, homes: Sequence[Home]
) -> DeviceName | AbsentDevice | WaitsForDevice:
    """The device for a version that needs ``need_bytes``, or why there is none."""
    there = [home for home in homes if home.device.kind is wish.kind]
    if wish.kind is DeviceKind.CPU or (not there and wish == wish.by_number):
        return wish.first
    devices = tuple(home.device for home in there)
    named = wish.among(devices) or _untold(wish, there)
    if not named:
        return AbsentDevice(wish=wish, there=devices)
    allowed = [home for home in there if home.device in named]
    sound = [home for home in allowed if not home.fault]
    if not sound:
        return WaitsForDevice(faults=tuple((home.device.called, home.fault) for home in allowed))
    quick = [home for home in sound if home.is_quick(need_bytes)]
    large = quick or [home for home in sound if home.budget_bytes >= need_bytes] or sound
    return max(large, key=lambda home: (home.free_bytes, -home.device.index)).device.called


def _untold(wish: DeviceWish, there: Sequence[Home]) -> tuple[Device, ...]:
    """Devices that were lost before they told what they are: one of them may be what is asked for."""
    lost = {home.device for home in there if home.fault and home.device.capability is None}
    return tuple(device for device in wish.by_number.among([home.device for home in there]) if device in lost)


def gpu_budget(memory_bytes: int, others_bytes: int, unsaid_bytes: int = 0) -> int:
    """What versions may take of a GPU with so much memory, of which other processes have so much, and the appliance's
    own so much that no version says it takes."""
    return max(memory_bytes - others_bytes - unsaid_bytes - CONTEXT_BYTES, 0)


def is_beyond_room(said_bytes: int, room_bytes: int) -> bool:
    """Whether a session that says that it takes so much has more than it was told that there is for it (0: nothing
    bounds it). What it says is how much less is free on the device: its process's first one brings CUDA's libraries,
    none of which is the arena's, and the process has a context's memory for those."""
    return 0 < room_bytes < said_bytes - CONTEXT_BYTES


def room_bytes(free_bytes: int, promised_bytes: int) -> int:
    """What the session of a version may take of a GPU to which so much of it was promised, where others leave so much
    of the budget: all of that, whatever it was expected to take. Never less than what was promised and a margin: a
    session that takes a little more than its files is no bad one, and what is too much is known once it is loaded."""
    return max(free_bytes, promised_bytes + promised_bytes // ROOM_PARTS + ROOM_BYTES)
