"""Which models are in memory: a pure state machine from what happens to what is to be done.

Rules it keeps: what is charged never passes the budget but by what operators, measurements or pins take of it; a pinned
model is never put out, nor one with requests in flight or waiting, nor one that has just come (it stays as long as
loading it took, so that the box does not only load) or was used within its keep-warm time. What is worth least per byte
(``popularity``) goes first; evicting its weights is one step, COLD another one with a price and bytes of its own, so
that weights go before processes. A request for a model that is not RESIDENT waits if by the forecast
(``forecast``, with upper quantiles of what was measured) it meets its deadline, and is refused at once if not; the
model is then loaded all the same when nobody waits for another, because the client was told when to come back.

It does not know what a load is, reads no clock, and trusts whoever drives it to answer every Load, PageIn, EvictWeights
and Drop by one Done, Declined or Failed.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import takewhile

from appliance.config.residency import ResidencyPolicy
from appliance.core.memory import residency_port as port
from appliance.core.memory.eviction import Step, choose
from appliance.core.memory.forecast import Queued, arrival_ns
from appliance.core.memory.load_cost import LoadCost, LoadSpeed
from appliance.core.memory.popularity import Popularity, Worth
from appliance.core.memory.residency_port import Action, Coldness, Event, Footprint, Form
from appliance.core.memory.tenant import ARRIVING, LEAVING, Move, Tenant
from appliance.core.scheduling.statistics import ResidencyStatistics

SECOND = 1_000_000_000
ASSUMED_LOAD_NS = SECOND // 20
"""What a load costs beside its bytes until one was measured."""
ASSUMED_BYTES_PER_SECOND = 500_000_000
FAILURES_MAX = 2
"""After so many failed loads in a row nobody waits for another one."""
WISH_NS = 10 * SECOND
"""So long after its estimate a refused request may come back."""
RETURN_NS = SECOND // 4
"""So long after that a model that only refused requests wanted stays."""


class Residency:
    """All models of one budget. ``step`` is its only way in."""

    __slots__ = (
        "_arrivals",
        "_arriving",
        "_budget_bytes",
        "_leave",
        "_leaving_bytes",
        "_policy",
        "_popularity",
        "_queue",
        "_speed",
        "_tenants",
        "_used_bytes",
        "_waiting_bytes",
        "_waiting_requests",
        "_whole_bytes",
    )

    def __init__(self, policy: ResidencyPolicy, budget_bytes: int) -> None:
        self._policy = policy
        self._budget_bytes = self._whole_bytes = budget_bytes
        self._tenants: dict[int, Tenant] = {}
        self._queue: dict[int, None] = {}
        """Models that requests wait for and that are not arriving, in the order of their first request."""
        self._arriving: dict[int, Tenant] = {}
        self._popularity = Popularity(budget_bytes)
        self._speed = LoadSpeed(SECOND, ASSUMED_BYTES_PER_SECOND)
        self._leave = LoadCost()
        self._arrivals = 0
        self._used_bytes = 0
        self._leaving_bytes = 0
        self._waiting_requests = 0
        self._waiting_bytes = 0

    def step(self, event: Event, now_ns: int, in_use: Container[int]) -> list[Action]:
        """What is to be done now. ``in_use`` holds the models that have requests in flight."""
        actions: list[Action] = []
        match event:
            case port.Asked():
                self._asked(event, now_ns, actions)
            case port.Used():
                tenant = self._tenants[event.model]
                tenant.used_ns = now_ns
                self._popularity.use(event.model, event.requests, now_ns)
                return actions
            case port.Done():
                self._done(event, now_ns, actions)
            case port.Declined():
                self._declined(self._tenants[event.model], actions)
            case port.Failed():
                self._failed(self._tenants[event.model], now_ns, actions)
            case port.Withdrawn():
                self._withdrawn(event)
            case port.Settle():
                pass
            case _:
                self._told(event)
        self._advance(now_ns, in_use, actions)
        return actions

    def form(self, model: int) -> Form:
        """How much of ``model`` is in memory; while it is on its way, where it comes from."""
        return self._tenants[model].form

    def tenants(self) -> Iterator[Tenant]:
        """All models, to be looked at only."""
        return iter(self._tenants.values())

    def statistics(self) -> ResidencyStatistics:
        """Sums and states as of now."""
        return ResidencyStatistics(
            budget_bytes=self._budget_bytes,
            used_bytes=self._used_bytes,
            leaving_bytes=self._leaving_bytes,
            arriving=len(self._arriving),
            waiting_models=len(self._queue),
            waiting_requests=self._waiting_requests,
            waiting_bytes=self._waiting_bytes,
            span_ns=self._popularity.span_ns,
        )

    # What is told

    def _told(self, event: port.Told | port.Changed) -> None:
        match event:
            case port.Changed():
                for each in event.news:
                    self._told(each)
            case port.Added():
                self._added(event)
            case port.Removed():
                self._removed(self._tenants[event.model])
            case port.Kept():
                tenant = self._tenants[event.model]
                tenant.pinned, tenant.held = event.pinned, event.held
                tenant.keep_warm_ns = event.keep_warm_ns
            case port.BudgetChanged():
                self._budget_bytes, self._whole_bytes = event.bytes, max(event.bytes, event.whole_bytes)
                self._popularity.set_budget(event.bytes)
            case port.Measured():
                tenant = self._tenants[event.model]
                self._become(tenant, tenant.form, tenant.move, event.footprint)
                self._describe(tenant)

    def _added(self, event: port.Added) -> None:
        assert event.model not in self._tenants
        load, page_in = LoadCost(event.load_ns), LoadCost(event.page_in_ns)
        tenant = Tenant(event.model, Form.COLD, event.footprint, load, page_in)
        self._tenants[event.model] = tenant
        self._arrivals += 1
        tenant.arrival = self._arrivals
        self._become(tenant, event.form, Move.NONE)
        self._describe(tenant)

    def _removed(self, tenant: Tenant) -> None:
        self._queue.pop(tenant.model, None)
        self._empty(tenant)
        self._become(tenant, Form.COLD, Move.NONE)
        del self._tenants[tenant.model]
        self._popularity.forget(tenant.model)

    def _describe(self, tenant: Tenant) -> None:
        """What the shadows play with: the step that is taken first."""
        evictable = tenant.footprint.evictable_bytes
        size_bytes = evictable or tenant.footprint.bytes
        self._popularity.describe(tenant.model, self._mean_ns(tenant, bool(evictable)), size_bytes)

    def _become(self, tenant: Tenant, form: Form, move: Move, footprint: Footprint | None = None) -> None:
        """The one place where what a model takes changes."""
        self._used_bytes -= tenant.bytes_now
        self._leaving_bytes -= tenant.bytes_leaving
        tenant.form, tenant.move = form, move
        tenant.footprint = footprint or tenant.footprint
        self._used_bytes += tenant.bytes_now
        self._leaving_bytes += tenant.bytes_leaving
        if move in ARRIVING:
            self._arriving[tenant.model] = tenant
        else:
            self._arriving.pop(tenant.model, None)

    # Requests

    def _asked(self, event: port.Asked, now_ns: int, actions: list[Action]) -> None:
        model, request = event.model, event.request
        tenant = self._tenants[model]
        tenant.used_ns = now_ns
        self._popularity.use(model, 1, now_ns)
        if tenant.resident:
            actions.append(port.Serve(model, request))
            return
        ready_ns = self._ready_ns(tenant, now_ns)
        reason = self._objection(tenant, event, now_ns, ready_ns)
        wait_ns = max(ready_ns - now_ns, 0) if ready_ns else 0
        if reason:
            if reason is Coldness.FAILING:
                wait_ns = max(wait_ns, tenant.not_before_ns - now_ns)
            elif reason is Coldness.NEVER:
                wait_ns = -1
            else:
                wait_ns = self._policy.backoff_ns if reason is Coldness.NO_ROOM else wait_ns
                if not tenant.waiting and tenant.move not in ARRIVING:
                    tenant.wished_until_ns = now_ns + wait_ns + WISH_NS
            actions.append(port.Refuse(model, request, reason, wait_ns))
            return
        tenant.wished_until_ns = 0
        tenant.waiting[request] = event.bytes
        self._waiting_requests += 1
        self._waiting_bytes += event.bytes
        if tenant.move not in ARRIVING:
            self._queue.setdefault(model)
        actions.append(port.Wait(model, request, wait_ns))

    def _objection(
        self, tenant: Tenant, event: port.Asked, now_ns: int, ready_ns: int | None
    ) -> Coldness | None:
        policy = self._policy
        if tenant.not_before_ns > now_ns:
            return Coldness.FAILING
        if ready_ns is None:
            pinned = sum(each.footprint.bytes for each in self._tenants.values() if each.pinned)
            others = pinned - (tenant.footprint.bytes if tenant.pinned else 0)
            fits = tenant.footprint.bytes + others <= self._whole_bytes
            return Coldness.NO_ROOM if fits else Coldness.NEVER
        if ready_ns > event.deadline_ns:
            return Coldness.DEADLINE
        full = self._waiting_requests >= policy.waiting_requests_max
        if full or self._waiting_bytes + event.bytes > policy.waiting_bytes_max:
            return Coldness.FULL
        return None

    def _withdrawn(self, event: port.Withdrawn) -> None:
        tenant = self._tenants[event.model]
        size_bytes = tenant.waiting.pop(event.request, None)
        if size_bytes is None:
            return
        self._waiting_requests -= 1
        self._waiting_bytes -= size_bytes
        if not tenant.waiting:
            self._queue.pop(event.model, None)

    def _empty(self, tenant: Tenant) -> tuple[int, ...]:
        """Nobody waits for it any more; who did."""
        requests = tuple(tenant.waiting)
        self._waiting_requests -= len(requests)
        self._waiting_bytes -= sum(tenant.waiting.values())
        tenant.waiting.clear()
        return requests

    # What was done

    def _done(self, event: port.Done, now_ns: int, actions: list[Action]) -> None:
        tenant = self._tenants[event.model]
        match tenant.move:
            case Move.LOADING | Move.PAGING_IN:
                self._learn(tenant, event)
                self._arrived(tenant, now_ns, actions)
            case Move.EVICTING:
                if event.ns:
                    self._leave.observe(event.ns)
                self._become(tenant, Form.WEIGHTS_EVICTED, Move.NONE)
            case Move.UNLOADING:
                self._become(tenant, Form.COLD, Move.NONE)
            case Move.NONE:
                raise AssertionError(f"nothing was to be done with model {event.model}")

    def _learn(self, tenant: Tenant, event: port.Done) -> None:
        if not event.ns:
            return
        (tenant.load if tenant.move is Move.LOADING else tenant.page_in).observe(event.ns)
        if event.bytes:
            self._speed.observe(event.bytes, event.ns)
        self._describe(tenant)

    def _arrived(self, tenant: Tenant, now_ns: int, actions: list[Action]) -> None:
        self._arrivals += 1
        tenant.arrival = self._arrivals
        tenant.held_until_ns = self._held_until_ns(tenant, now_ns, now_ns - tenant.moving_since_ns)
        tenant.wished_until_ns = tenant.failures = tenant.not_before_ns = 0
        self._become(tenant, Form.RESIDENT, Move.NONE)
        self._release(tenant, actions)

    def _release(self, tenant: Tenant, actions: list[Action]) -> None:
        self._queue.pop(tenant.model, None)
        if tenant.waiting:
            actions.append(port.Release(tenant.model, self._empty(tenant)))

    def _declined(self, tenant: Tenant, actions: list[Action]) -> None:
        self._become(tenant, tenant.form, Move.NONE)
        if tenant.resident:
            self._release(tenant, actions)

    def _failed(self, tenant: Tenant, now_ns: int, actions: list[Action]) -> None:
        arriving = tenant.move in ARRIVING
        self._become(tenant, Form.COLD, Move.NONE)
        if arriving:
            tenant.failures += 1
            if tenant.failures >= FAILURES_MAX:
                doubled_ns = self._policy.backoff_ns << min(tenant.failures - FAILURES_MAX, 30)
                pause_ns = min(doubled_ns, self._policy.backoff_ns_max)
                tenant.not_before_ns = now_ns + pause_ns
                tenant.wished_until_ns = 0
                refused = self._empty(tenant)
                actions.extend(
                    port.Refuse(tenant.model, each, Coldness.FAILING, pause_ns) for each in refused
                )
        if tenant.waiting:
            self._queue.setdefault(tenant.model)
        else:
            self._queue.pop(tenant.model, None)

    # What to do next

    def _advance(self, now_ns: int, in_use: Container[int], actions: list[Action]) -> None:
        """Free what is above the budget, then start loads as far as places and memory go."""
        above = self._used_bytes - self._leaving_bytes - self._budget_bytes
        if above > 0:
            self._make_room(above, now_ns, in_use, actions, forced=True)
            if self._used_bytes - self._leaving_bytes > self._budget_bytes:
                self._wake_for(1, now_ns, actions, forced=True)
        places = self._policy.loads_at_once - len(self._arriving)
        reserved = 0
        for tenant in self._next_loads(now_ns)[: max(places, 0)]:
            reserved += tenant.bytes_missing
            free = self._budget_bytes - self._used_bytes
            if reserved > free:
                self._make_room(reserved - free - self._leaving_bytes, now_ns, in_use, actions)
            elif tenant.move is Move.NONE:
                reserved -= tenant.bytes_missing
                self._start(tenant, now_ns, actions)
        if self._queue and places > 0:
            self._wake(now_ns, actions)
        elif not self._queue and not self._arriving and not self._leaving_bytes:
            self._bring_pinned(now_ns, in_use, actions)

    def _next_loads(self, now_ns: int) -> list[Tenant]:
        """Those that requests wait for; when there is none, those that refused ones may come back for."""
        waited = [self._tenants[model] for model in self._queue]
        if waited:
            return waited
        return [
            tenant
            for tenant in self._tenants.values()
            if tenant.wished_until_ns > now_ns
            and not tenant.resident
            and tenant.move not in ARRIVING
            and tenant.not_before_ns <= now_ns
        ]

    def _start(self, tenant: Tenant, now_ns: int, actions: list[Action]) -> None:
        self._queue.pop(tenant.model, None)
        tenant.moving_since_ns = now_ns
        background = not tenant.waiting and tenant.wished_until_ns <= now_ns
        if tenant.form is Form.WEIGHTS_EVICTED:
            self._become(tenant, Form.WEIGHTS_EVICTED, Move.PAGING_IN)
            actions.append(port.PageIn(tenant.model, background))
        else:
            self._become(tenant, Form.COLD, Move.LOADING)
            actions.append(port.Load(tenant.model, background))

    def _bring_pinned(self, now_ns: int, in_use: Container[int], actions: list[Action]) -> None:
        """Nobody waits: load what is pinned, one after the other. Nothing else is fetched ahead: in the simulation the
        gaps that evictions leave would be used again and again with what nobody asks for."""
        absent = [each for each in self._tenants.values() if each.stays and not each.resident]
        tenant = next((each for each in absent if each.not_before_ns <= now_ns), None)
        if tenant is None:
            actions.extend(port.WakeAt(each.not_before_ns) for each in absent)
            return
        missing = tenant.bytes_missing + self._used_bytes - self._budget_bytes
        if missing <= 0:
            self._start(tenant, now_ns, actions)
            return
        self._make_room(missing, now_ns, in_use, actions)
        if not self._leaving_bytes:
            self._wake_for(missing, now_ns, actions)

    def _wake_for(self, missing: int, now_ns: int, actions: list[Action], forced: bool = False) -> None:
        """Look again when so much may be had, as far as time alone says; never, if whoever leaves is not enough."""
        spare = [
            (
                max(0 if forced else each.available_ns, 0 if self._queue else each.wished_until_ns),
                each.bytes_now,
            )
            for each in self._tenants.values()
            if each.may_leave
        ]
        for at_ns, size_bytes in sorted(spare):
            missing -= size_bytes
            if missing <= 0:
                actions.append(port.WakeAt(max(at_ns, now_ns + self._policy.retry_ns)))
                return

    def _make_room(
        self, missing: int, now_ns: int, in_use: Container[int], actions: list[Action], forced: bool = False
    ) -> None:
        """Begin to put out what is worth least, if that will be enough. ``forced``: whether or not it will, and
        without regard to holds."""
        if missing <= 0:
            return
        candidates = [
            each
            for each in self._tenants.values()
            if (forced or each.available_ns <= now_ns) and self._evictable(each, now_ns, in_use)
        ]
        if not forced and sum(each.bytes_now for each in candidates) < missing:
            return
        steps = choose([step for each in candidates for step in self._steps_out(each)], missing)
        dropped = {step.model for step in steps if not step.weights}
        for model in dict.fromkeys(step.model for step in steps):
            tenant = self._tenants[model]
            tenant.moving_since_ns = now_ns
            self._become(tenant, tenant.form, Move.UNLOADING if model in dropped else Move.EVICTING)
            actions.append(port.Unload(model) if model in dropped else port.EvictWeights(model))

    def _evictable(self, tenant: Tenant, now_ns: int, in_use: Container[int]) -> bool:
        """Nothing but its hold may speak against putting it out."""
        return (
            tenant.may_leave
            and (bool(self._queue) or tenant.wished_until_ns <= now_ns)
            and tenant.model not in in_use
        )

    def _steps_out(self, tenant: Tenant) -> Iterator[Step]:
        """The steps down of a model that is in memory, each with what it gives back and what it is worth not to take
        it. To be dropped at once is both steps of a model whose weights could be evicted."""
        load_ns = self._mean_ns(tenant, by_page_in=False)
        evictable_bytes = tenant.footprint.evictable_bytes
        page_in_ns = min(self._mean_ns(tenant, by_page_in=True), load_ns) if evictable_bytes else 0
        first: Worth | None = None
        if evictable_bytes and tenant.form is Form.RESIDENT:
            first = self._popularity.worth(tenant.model, page_in_ns, evictable_bytes, tenant.arrival)
            yield Step(first, tenant.model, evictable_bytes, True)
        rest = tenant.footprint.bytes - evictable_bytes
        if rest:
            worth = self._popularity.worth(tenant.model, load_ns - page_in_ns, rest, tenant.arrival)
            yield Step(max(worth, first) if first else worth, tenant.model, rest, False)

    def _wake(self, now_ns: int, actions: list[Action]) -> None:
        actions.append(port.WakeAt(now_ns + self._policy.retry_ns))

    # What it will take

    def _mean_ns(self, tenant: Tenant, by_page_in: bool) -> int:
        cost = tenant.page_in if by_page_in else tenant.load
        if cost.known:
            return cost.mean_ns
        size_bytes = tenant.footprint.evictable_bytes if by_page_in else tenant.footprint.bytes
        return self._speed.estimate_ns(size_bytes) + (0 if by_page_in else ASSUMED_LOAD_NS)

    def _upper_ns(self, tenant: Tenant) -> int:
        """How long bringing it back takes, with few exceptions."""
        by_page_in = tenant.comes_by_page_in
        cost = tenant.page_in if by_page_in else tenant.load
        return cost.upper_ns if cost.known else 2 * self._mean_ns(tenant, by_page_in)

    @property
    def _leave_ns(self) -> int:
        """How long after memory may be freed it is, with few exceptions."""
        return self._leave.upper_ns + self._policy.retry_ns

    def _hold_ns(self, took_ns: int) -> int:
        return int(took_ns * self._policy.hold_factor)

    def _held_until_ns(self, tenant: Tenant, arrived_ns: int, took_ns: int) -> int:
        """How long it stays at least: so long that the box does not only load, and that refused clients meet it."""
        back_ns = tenant.wished_until_ns - WISH_NS + RETURN_NS if tenant.wished_until_ns else 0
        return max(arrived_ns + self._hold_ns(took_ns), back_ns)

    def _ready_ns(self, tenant: Tenant, now_ns: int) -> int | None:
        """When it should be RESIDENT, if its load is queued now; None when there is no room that could be made."""
        if tenant.move in ARRIVING:
            return max(now_ns, tenant.moving_since_ns + self._upper_ns(tenant))
        queue = [self._tenants[model] for model in takewhile(tenant.model.__ne__, self._queue)]
        queue.append(tenant)
        free = self._budget_bytes - self._used_bytes
        freed: list[tuple[int, int]] = []
        if free < sum(each.bytes_missing for each in queue):
            freed = list(self._freed(tenant, now_ns))
        ends = [each.moving_since_ns + self._upper_ns(each) for each in self._arriving.values()]
        places = ends + [now_ns] * (self._policy.loads_at_once - len(ends))
        return arrival_ns(map(self._queued, queue), places, free, freed, self._leave_ns, now_ns)

    def _queued(self, tenant: Tenant) -> Queued:
        cost_ns = self._upper_ns(tenant)
        return Queued(tenant.bytes_missing, tenant.footprint.bytes, cost_ns, self._hold_ns(cost_ns))

    def _freed(self, asked: Tenant, now_ns: int) -> Iterator[tuple[int, int]]:
        """When how much memory can be had. What is in use counts as idle: it is looked at again and again."""
        for tenant in self._tenants.values():
            if tenant.move in LEAVING:
                yield now_ns, tenant.bytes_leaving
            elif tenant.move in ARRIVING:
                cost_ns = self._upper_ns(tenant)
                end_ns = max(now_ns, tenant.moving_since_ns + cost_ns)
                yield self._held_until_ns(tenant, end_ns, cost_ns), tenant.footprint.bytes
            elif tenant is not asked and self._evictable(tenant, now_ns, ()):
                yield max(now_ns, tenant.available_ns), tenant.bytes_now
