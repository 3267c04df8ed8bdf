"""A version with everything the engine knows of it, and how some of its traffic is led to a version on trial.

A share of requests is spread evenly, and is never exceeded by more than one: with a share of a tenth, one of every ten
in a row. Which one is drawn, so that of clients that take turns each is concerned. A share of clients goes by the value
of a header, the same ones at each request. Owner: the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import floor
from random import Random
from typing import Final
from zlib import crc32

from appliance.core.memory.footprint import Residency
from appliance.core.rollout.catalog import TrialWish
from appliance.core.rollout.phase import ANSWERING, LEAVING, STATES, Phase
from appliance.core.rollout.version import Version
from appliance.domain.device import CPU, DeviceName
from appliance.domain.errors import ApplianceError
from appliance.domain.exit_cause import ExitCause
from appliance.domain.inference import RequestPlan
from appliance.domain.model import ModelVersion, VersionState
from appliance.domain.validation import plan_request
from appliance.engine.versions.layout import LAYOUTS_KEPT, Expectations, Layout, layout_of, merges
from appliance.engine.versions.wording import remark_text, wait_text
from appliance.telemetry.meter import VersionMeter
from appliance.workers.port import ModelProgress

PLANS_KEPT: Final = 256
WHOLE: Final = 100.0
CLIENT_PARTS: Final = 10_000


@dataclass(slots=True, kw_only=True, eq=False)
class TrialRouting:
    """``split`` leads some of its requests to a version on trial; ``fallback`` runs what fails on this one, within
    ``run_limit_ns`` if that is known, until it is proven. Changed by ``control/traffic`` alone."""

    split: TrafficSplit | None = None
    fallback: Served | None = None
    run_limit_ns: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class InMemory:
    """Where a version is in memory, and how. Changed by the model cache alone."""

    residency: Residency = Residency.RESIDENT
    """How much of it is in memory while it is not open."""
    returning: bool = False
    """It is loaded to serve again."""
    quick: bool = False
    """It is loaded with sessions that are there at once, and are exchanged for fast ones later."""
    device: DeviceName = CPU
    """Where it is, or is to be."""
    barred: str = ""
    """Why it cannot be anywhere now; "" where it can."""


@dataclass(slots=True, kw_only=True, eq=False)
class Placed:
    """``group`` is -1 until a version is placed; ``load_ns`` is how long its last load took, ``progress`` how far one
    is; ``note`` is what its runtime has people know of how it runs, "" for nothing; ``mixes``: rows that run together
    change one another's answers, as a worker saw (None: none has looked); ``restarts`` counts processes that
    held it and were replaced, by why they ended; ``uncaptured`` is why it is loaded without CUDA graphs though it asks
    for them, "" where it is not. Changed by the instance groups alone, when it has
    begun with what is remembered of its rows."""

    group: int = -1
    load_ns: int = 0
    progress: ModelProgress | None = None
    note: str = ""
    mixes: bool | None = None
    uncaptured: str = ""
    restarts: Counter[ExitCause] = field(default_factory=Counter)


@dataclass(slots=True, kw_only=True, eq=False)
class RequestCount:
    """``live`` counts requests that are not done, ``answered`` those that were, ``fallen_back`` those that failed on a
    version and were answered by another, ``blamed`` those that failed by their own doing. Changed by the request table
    alone."""

    live: int = 0
    answered: int = 0
    blamed: int = 0
    fallen_back: int = 0

    @property
    def failures(self) -> int:
        """Failures of the version, beside the requests that failed."""
        return self.fallen_back - self.blamed


@dataclass(slots=True, kw_only=True, eq=False)
class Served:
    """One version with everything the engine knows of it, but for where it stands: that is in its ``version``, which
    the rollout alone changes.

    ``opened``: the scheduler takes requests for it; ``epoch`` counts how often front ends had to forget their templates
    of it: both are changed by the rollouts alone, and others in groups of their own. ``expectations`` are how much room
    its outputs will take. ``unbuilt`` is why it has no engine, "" where that is not so: the forms change it.
    """

    version: Version
    meter: VersionMeter
    id: int = field(init=False)
    model: ModelVersion = field(init=False)
    expectations: Expectations = field(init=False)
    opened: bool = False
    epoch: int = 0
    unbuilt: str = ""
    trial: TrialRouting = field(default_factory=TrialRouting)
    memory: InMemory = field(default_factory=InMemory)
    placed: Placed = field(default_factory=Placed)
    requests: RequestCount = field(default_factory=RequestCount)
    layouts: dict[int, Layout] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.id, self.model = self.version.id, self.version.model
        self.expectations = Expectations(self.model)
        self.memory.device = self.model.device.first

    def layout(self, plan: RequestPlan) -> Layout:
        """How requests of ``plan`` lie in memory; remembered."""
        layout = self.layouts.get(id(plan))
        if layout is None or layout.plan is not plan or layout.merging is not self.merges:
            if len(self.layouts) >= LAYOUTS_KEPT:
                self.layouts.clear()
            layout = self.layouts[id(plan)] = layout_of(plan, self.expectations, merging=self.merges)
        return layout

    @property
    def in_force(self) -> ModelVersion:
        """Its model as its requests are served, for workers and for people: not batched where rows mix, so that no
        session fills batches up either."""
        return replace(self.model, batching=None) if self.placed.mixes else self.model

    @property
    def rows_untried(self) -> bool:
        """Whether its graph alone says that its requests may share a batch, and no worker has looked yet."""
        return self.model.rows_assumed and self.placed.mixes is None

    @property
    def merges(self) -> bool:
        """Whether its requests may share a batch."""
        return merges(self.model) and not self.placed.mixes and not self.rows_untried

    @property
    def phase(self) -> Phase:
        """How far its life has come."""
        return self.version.phase

    @property
    def state(self) -> VersionState:
        """What clients are told of it."""
        return VersionState.UNAVAILABLE if self.barred else STATES[self.version.phase]

    @property
    def barred(self) -> bool:
        """Whether it would serve, and has no device."""
        return bool(self.memory.barred) and self.version.phase in ANSWERING

    @property
    def reason(self) -> str:
        """Why it is not READY, in words."""
        version = self.version
        if self.barred:
            return self.memory.barred
        if version.setback is not None:
            return remark_text(version.setback)
        return wait_text(version.waiting) if version.waiting is not None else ""

    @property
    def identity(self) -> str:
        """See VersionSpec."""
        return self.version.spec.identity

    @property
    def packed(self) -> bool:
        """See Version."""
        return self.version.packed

    @property
    def seeds(self) -> tuple[tuple[int, int], ...]:
        """See Version."""
        return self.version.seeds

    @property
    def has_run(self) -> bool:
        """Whether it ran anything through: a request, its golden set, or what it was measured with when loaded."""
        proof = self.version.assessment
        return bool(self.requests.answered or self.seeds or (proof is not None and proof.cases + proof.runs))

    @property
    def run_bound_ns(self) -> int:
        """How long a run may take while another version could answer instead, also once its trial has come to nothing
        and it leaves or was given up; 0: as its worker allows, as where runs may have to wait for weights that are
        still to come."""
        bounded = self.trial.fallback is not None or self.version.phase in LEAVING | {Phase.FAILED}
        return self.trial.run_limit_ns if bounded and not self.memory.quick else 0

    @property
    def key(self) -> str:
        """``name/version``."""
        return self.model.key


class TrafficSplit:
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
