"""What was promised to the requests of one queue, as bounds that decisions read often."""

from __future__ import annotations


class Promises:
    """``spare_ns`` holds per level a lower bound of the lane time that may be put ahead of any request queued there
    without breaking a promise. No queued request counts with more than ``own_ns_max`` for a batch of its own and what
    it wastes before it, and none has a later (level, deadline) than ``latest``. After ``recount_in`` requests that seem
    to overtake too much, the spares of a long queue are computed again."""

    __slots__ = ("latest", "own_ns_max", "recount_in", "spare_ns")

    def __init__(self) -> None:
        self.spare_ns: dict[int, int] = {}
        self.own_ns_max = 0
        self.recount_in = 0
        self.latest: tuple[int, int] = (0, 0)

    def clear(self) -> None:
        """Nothing is queued any more."""
        self.spare_ns.clear()
        self.own_ns_max = 0
        self.latest = (0, 0)
