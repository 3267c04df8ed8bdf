"""Which requests concern a version on trial beside the one that serves, and what they are to it.

A share of requests is spread evenly: of every hundred in a row as many as the share says, never one more. A share of
clients goes by the value of a header, the same ones at each request. Owner: the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from zlib import crc32

from appliance.engine.routes import Served
from appliance.engine.swap_settings import TrialWish
from appliance.errors import ApplianceError
from appliance.inference import RequestPlan
from appliance.telemetry.meter import VersionMeter
from appliance.validation import plan_request

PLANS_KEPT: Final = 256
WHOLE: Final = 100.0
CLIENT_PARTS: Final = 10_000


class Diversion:
    """From the version that serves to ``served``, in a share of ``percent``. ``shadow``: requests are answered by the
    version that serves all the same, and ``unseen`` counts those here. ``seen`` and ``taken`` count requests."""

    __slots__ = (
        "_owed",
        "_percent",
        "_plans",
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
        self._owed = 0.0
        self._plans: dict[int, tuple[RequestPlan, RequestPlan | None]] = {}

    @property
    def header(self) -> str:
        """The header whose value decides; "" when none does."""
        return "" if self.shadow else self._wish.header

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
        self._owed += self._percent
        if self._owed < WHOLE:
            return False
        self._owed -= WHOLE
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
