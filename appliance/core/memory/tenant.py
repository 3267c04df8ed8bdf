"""One model as residency keeps it: what it takes, what is being done to it, and who waits for it."""

from __future__ import annotations

from enum import Enum

from appliance.core.memory.load_cost import LoadCost
from appliance.core.memory.residency_port import Footprint, Form


class Move(Enum):
    """What is being done to a model."""

    NONE = "none"
    LOADING = "loading"
    PAGING_IN = "paging in"
    EVICTING = "evicting"
    UNLOADING = "unloading"


ARRIVING = frozenset({Move.LOADING, Move.PAGING_IN})
LEAVING = frozenset({Move.EVICTING, Move.UNLOADING})


class Tenant:
    """A model that is known. Owned by one Residency."""

    __slots__ = (
        "arrival",
        "failures",
        "page_in",
        "footprint",
        "form",
        "held",
        "held_until_ns",
        "keep_warm_ns",
        "load",
        "model",
        "move",
        "moving_since_ns",
        "not_before_ns",
        "pinned",
        "used_ns",
        "waiting",
        "wished_until_ns",
    )

    def __init__(
        self, model: int, form: Form, footprint: Footprint, load: LoadCost, page_in: LoadCost
    ) -> None:
        self.model = model
        self.form = form
        self.footprint = footprint
        self.load = load
        self.page_in = page_in
        self.move = Move.NONE
        self.moving_since_ns = 0
        self.arrival = 0
        self.pinned = self.held = False
        self.keep_warm_ns = 0
        self.used_ns = 0
        self.held_until_ns = 0
        self.waiting: dict[int, int] = {}
        """Bytes of each request that waits."""
        self.wished_until_ns = 0
        """Until then it is worth loading for requests that were refused and may come back."""
        self.failures = 0
        self.not_before_ns = 0

    @property
    def bytes_now(self) -> int:
        """Memory it takes, or will when it has arrived."""
        if self.form is Form.RESIDENT or self.move in ARRIVING:
            return self.footprint.bytes
        if self.form is Form.WEIGHTS_EVICTED:
            return self.footprint.bytes - self.footprint.evictable_bytes
        return 0

    @property
    def bytes_leaving(self) -> int:
        """What is about to be given back."""
        if self.move is Move.EVICTING:
            return self.footprint.evictable_bytes
        return self.bytes_now if self.move is Move.UNLOADING else 0

    @property
    def bytes_missing(self) -> int:
        """What it needs beside what it takes now, to be RESIDENT."""
        return self.footprint.bytes - self.bytes_now + self.bytes_leaving

    @property
    def resident(self) -> bool:
        """Requests can go to it."""
        return self.form is Form.RESIDENT and self.move is Move.NONE

    @property
    def stays(self) -> bool:
        """Whether it is to be RESIDENT, asked for or not."""
        return self.pinned or self.held

    @property
    def may_leave(self) -> bool:
        """Whether it takes memory, and nothing but time and requests in flight may speak against putting it out."""
        moves = self.move is not Move.NONE
        return not (moves or self.form is Form.COLD or self.stays or self.waiting)

    @property
    def available_ns(self) -> int:
        """From when on it may be put out, as far as time alone says."""
        if self.form is not Form.RESIDENT:
            return 0
        return max(self.held_until_ns, self.used_ns + self.keep_warm_ns if self.keep_warm_ns else 0)

    @property
    def comes_by_page_in(self) -> bool:
        """Whether it takes a page-in, not a load, to have it RESIDENT again, from how it is or will be."""
        if self.move is Move.UNLOADING or self.form is Form.COLD:
            return False
        return self.form is Form.WEIGHTS_EVICTED or self.move is Move.EVICTING
