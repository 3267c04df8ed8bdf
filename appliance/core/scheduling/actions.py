"""What the scheduler wants done. Each admitted request ends in exactly one of: a finished batch that held it,
Refused, Expired, Dropped, Lost or Evicted."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class RefusalReason(Enum):
    """Why a request was refused at once."""

    QUEUE_FULL = "queue full"
    QUEUE_BYTES = "queue bytes"
    DEADLINE = "deadline"
    NO_LANE = "no lane"
    UNKNOWN = "unknown batch key"


class Dispatch(NamedTuple):
    """Send ``requests``, in this order, to ``lane`` as one batch."""

    batch: int
    lane: int
    batch_key: int
    requests: tuple[int, ...]


class Refused(NamedTuple):
    """Not admitted; ``retry_after_ns`` is when it would be worth trying again (0: unknown)."""

    request: int
    reason: RefusalReason
    retry_after_ns: int


class Expired(NamedTuple):
    """Its deadline passed while it was queued."""

    request: int


class Dropped(NamedTuple):
    """It was cancelled while it was queued."""

    request: int


class Lost(NamedTuple):
    """Its worker died with it and it cannot be tried again."""

    request: int


class Evicted(NamedTuple):
    """Its model version closed while it was queued; the engine may route it to another version."""

    request: int


class WakeAt(NamedTuple):
    """Send Settle at this time at the latest, even when nothing else happens. Replaces earlier wishes."""

    at_ns: int


class GrantLease(NamedTuple):
    """Nothing waits for ``lane``: a front end may fill it and tell afterwards (LeasedWork, LeasedRan)."""

    lane: int


class RevokeLease(NamedTuple):
    """Something waits, so that the front end may send ``lane`` nothing more. What it has sent goes on."""

    lane: int


Action = Dispatch | Refused | Expired | Dropped | Lost | Evicted | WakeAt | GrantLease | RevokeLease
