"""How long models take to come and to leave: as measured, or by the speed of the others."""

from __future__ import annotations

from typing import Final

from appliance.core.memory.budget import ResidencyPolicy
from appliance.core.memory.footprint import LoadCost, LoadSpeed
from appliance.core.memory.model import Model

SECOND: Final = 1_000_000_000
ASSUMED_LOAD_NS: Final = SECOND // 20
"""What a load costs beside its bytes until one was measured."""
ASSUMED_BYTES_PER_SECOND: Final = 500_000_000
WISH_NS: Final = 10 * SECOND
"""So long after its estimate a refused request may come back."""
RETURN_NS: Final = SECOND // 4
"""So long after that a model that only refused requests wanted stays."""


class Timing:
    """Of all models of one device."""

    __slots__ = ("_leave", "_policy", "_speed")

    def __init__(self, policy: ResidencyPolicy) -> None:
        self._policy = policy
        self._speed = LoadSpeed(SECOND, ASSUMED_BYTES_PER_SECOND)
        self._leave = LoadCost()

    def arrived(self, model: Model, ns: int, size_bytes: int, *, by_page_in: bool) -> None:
        """Learn what bringing ``model`` took, and how fast ``size_bytes`` (0: none) were read for it."""
        (model.page_in if by_page_in else model.load).observe(ns)
        if size_bytes:
            self._speed.observe(size_bytes, ns)

    def evicted(self, ns: int) -> None:
        """Learn what giving memory back took."""
        self._leave.observe(ns)

    def mean_ns(self, model: Model, *, by_page_in: bool) -> int:
        """What bringing ``model`` takes on the average."""
        cost = model.page_in if by_page_in else model.load
        if cost.known:
            return cost.mean_ns
        size_bytes = model.footprint.evictable_bytes if by_page_in else model.footprint.bytes
        return self._speed.estimate_ns(size_bytes) + (0 if by_page_in else ASSUMED_LOAD_NS)

    def upper_ns(self, model: Model) -> int:
        """What bringing ``model`` back takes at most, with few exceptions."""
        by_page_in = model.comes_by_page_in
        cost = model.page_in if by_page_in else model.load
        return cost.upper_ns if cost.known else 2 * self.mean_ns(model, by_page_in=by_page_in)

    @property
    def leave_ns(self) -> int:
        """How long after memory may be freed it is, with few exceptions."""
        return self._leave.upper_ns + self._policy.retry_ns

    def hold_ns(self, took_ns: int) -> int:
        """How long a model stays at least that took so long to bring: the box shall not only load."""
        return int(took_ns * self._policy.hold_factor)

    def held_until_ns(self, model: Model, arrived_ns: int, took_ns: int) -> int:
        """Until when it stays at least: past its hold, and so that refused clients meet it."""
        back_ns = model.wished_until_ns - WISH_NS + RETURN_NS if model.wished_until_ns else 0
        return max(arrived_ns + self.hold_ns(took_ns), back_ns)
