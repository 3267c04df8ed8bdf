"""Which requests concern a version on trial beside the one that serves, and what they are to it.

A share of requests is spread evenly, and is never exceeded by more than one: with a share of a tenth, one of every ten
in a row. Which one is drawn, so that of clients that take turns each is concerned. A share of clients goes by the value
of a header, the same ones at each request. Owner: the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor
from random import Random
from typing import Final
from zlib import crc32

from appliance.core.rollout.wish import TrialWish
from appliance.domain.errors import ApplianceError
from appliance.domain.inference import RequestPlan
from appliance.domain.validation import plan_request
from appliance.engine.versions.routes import Served
from appliance.telemetry.meter import VersionMeter

PLANS_KEPT: Final = 256
WHOLE: Final = 100.0
CLIENT_PARTS: Final = 10_000


class Diversion:
    """From the version that serves to ``served``, in a share of ``percent``. ``shadow``: requests are answered by the
    version that serves all the same, and ``unseen`` counts those here. ``seen`` and ``taken`` count requests."""

    __slots__ = (
        "_draw",
        "_next",
        "_percent",
        "_plans",
        "_position",
        "_wish",
        "in_flight",
        "seen",
        "served",
        "shadow",
        "taken",
        "unseen",
    )

    def __init__(
        self, served: Served, wish: TrialWish, percent: float, *, shadow: bool, unseen: VersionMeter
    ) -> None:
        self.served = served
        self.shadow = shadow
        self.unseen = unseen
        self.seen = self.taken = self.in_flight = 0
        self._wish = wish
        self._percent = percent
        self._draw = Random(served.identity).random
        self._position = 0.0
        self._next = self._draw()
        """Requests that were owed so far, and where among them the next one is taken: once in every whole one."""
        self._plans: dict[int, tuple[RequestPlan, RequestPlan | None]] = {}

    @property
    def header(self) -> str:
        """The header whose value decides; "" when none does."""
        return "" if self.shadow else self._wish.header

    def renew(self, wish: TrialWish, percent: float) -> None:
        """Other requests concern it from here on; what was counted stands."""
        self._wish, self._percent = wish, percent

    def take(self, plan: RequestPlan, headers: Mapping[str, str]) -> RequestPlan | None:
        """What a request of ``plan``, for no particular version, is to the version on trial; None when it does not
        concern that."""
        self.seen += 1
        if plan.head.model_version or not self._chosen(headers):
            return None
        other = self._plan(plan)
        self.taken += other is not None
        return other

    def _chosen(self, headers: Mapping[str, str]) -> bool:
        if self.header:
            value = headers.get(self.header, "")
            if self._wish.value or not value:
                return bool(value) and value == self._wish.value
            part = crc32(f"{self.served.model.name}\0{value}".encode(errors="surrogatepass")) % CLIENT_PARTS
            return part < self._percent / WHOLE * CLIENT_PARTS
        self._position += self._percent / WHOLE
        if self._position < self._next:
            return False
        self._next = floor(self._next) + 1 + self._draw()
        return True

    def _plan(self, plan: RequestPlan) -> RequestPlan | None:
        known = self._plans.get(id(plan))
        if known is not None and known[0] is plan:
            return known[1]
        try:
            other = plan_request(self.served.model, plan.head)
        except ApplianceError:
            other = None
        if len(self._plans) >= PLANS_KEPT:
            self._plans.clear()
        self._plans[id(plan)] = (plan, other)
        return other
