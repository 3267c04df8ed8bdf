"""What the accountant wants done."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from appliance.core.memory.budget import AbsentDevice, WaitsForMemory
from appliance.domain.device import DeviceName


class Miss(Enum):
    """Why a request for a model that is not resident was refused at once."""

    DEADLINE = "the model would be loaded too late"
    FULL = "too much waits for models that are loaded"
    NO_ROOM = "there is no room for the model now"
    NEVER = "the model does not fit beside what is pinned"
    FAILING = "the model failed to load"


class Load(NamedTuple):
    """COLD to RESIDENT. ``background``: no request waits for it."""

    model: int
    background: bool


class PageIn(NamedTuple):
    """WEIGHTS_EVICTED to RESIDENT."""

    model: int
    background: bool


class EvictWeights(NamedTuple):
    """RESIDENT to WEIGHTS_EVICTED; from now on every request for it asks."""

    model: int


class Unload(NamedTuple):
    """RESIDENT or WEIGHTS_EVICTED to COLD: end its process; from now on every request for it asks."""

    model: int


class Serve(NamedTuple):
    """The model is RESIDENT: this request need not wait."""

    model: int
    request: int


class Wait(NamedTuple):
    """This request may wait: its model should be there in ``ready_ns``."""

    model: int
    request: int
    ready_ns: int


class Refuse(NamedTuple):
    """This request does not wait; ``retry_after_ns`` is when its model should be there, or may be looked for
    again (negative: never)."""

    model: int
    request: int
    reason: Miss
    retry_after_ns: int


class Release(NamedTuple):
    """The model is RESIDENT: what waits for it goes on."""

    model: int
    requests: tuple[int, ...]


class WakeAt(NamedTuple):
    """Send Settle at this time at the latest. Replaces earlier wishes."""

    at_ns: int


class CheckUse(NamedTuple):
    """Say with UseChecked which of these models have nothing in flight: some of them are to leave."""

    device: DeviceName
    models: tuple[int, ...]


class MeasureFree(NamedTuple):
    """Say with FreeMeasured how much memory the machine has left."""

    device: DeviceName


class GrantReservation(NamedTuple):
    """The memory is there: the version may load."""

    model: int


class HoldReservation(NamedTuple):
    """Memory is reserved for the version and not there yet; ask again."""

    model: int


class RefuseReservation(NamedTuple):
    """Nothing is reserved. ``reason`` says what the version waits for that may never come (None: it is another one's
    turn; AbsentDevice: for nothing, as what it asks for is not here); ``again_ns`` is when to ask again (0: at any
    time)."""

    model: int
    reason: WaitsForMemory | AbsentDevice | None
    again_ns: int


class StartCold(NamedTuple):
    """The version serves without being in memory: there is no room for it now."""

    model: int


Answer = Serve | Wait | Refuse
Reply = GrantReservation | HoldReservation | RefuseReservation
Action = (
    Load
    | PageIn
    | EvictWeights
    | Unload
    | Answer
    | Release
    | WakeAt
    | CheckUse
    | MeasureFree
    | Reply
    | StartCold
)
