"""What the front end may do by itself: it is given request templates and leases of lanes, and tells what it did.

The scheduler says which lane is leased and when that ends. One owner: the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from appliance.config.engine import EngineConfig
from appliance.config.workers import in_pages
from appliance.core.scheduling import actions, events
from appliance.domain.histogram import BOUNDS_NS
from appliance.domain.inference import RequestPlan
from appliance.engine.environment import Shell
from appliance.engine.fastpath.direct import LeasingFrontEnd, RequestTemplate
from appliance.engine.fastpath.lanes import Lanes, Stalls
from appliance.engine.fastpath.templates import Templates
from appliance.engine.fastpath.usage import Usage
from appliance.engine.inbox import Inbox
from appliance.telemetry.snapshot import SlotUse
from appliance.workers.arena import Arena
from appliance.workers.port import Shape, WorkerPort

TURN_NS: Final = 10_000_000
"""Within this after news the engine takes a turn, also when nothing is queued that they concern."""
STOCK_SHARE: Final = 4
"""The part of the arena that the front end's own slots may take."""
SLOT_SHARE: Final = 4
"""The part of the arena's slots of one size that they may be: the engine needs some, if only to see each head once."""


class Leased(NamedTuple):
    """What a process had under a lease that is gone: ``had`` requests, the oldest of them for ``model`` (-1: none);
    ``clients`` are those of the requests that may have run."""

    model: int
    had: int
    clients: Sequence[str]


NOTHING_LEASED: Final = Leased(-1, 0, ())


class Leases:
    """Implements DirectEngine and Feed. Without a front end that can serve by itself it only passes events on."""

    def __init__(
        self,
        *,
        config: EngineConfig,
        arena: Arena,
        workers: WorkerPort,
        shell: Shell,
        inbox: Inbox,
        templates: Templates,
        usage: Usage,
        lanes: Lanes,
    ) -> None:
        self._config = config
        self._arena = arena
        self._workers = workers
        self._shell = shell
        self._inbox = inbox
        self._templates = templates
        self._usage = usage
        self._lanes = lanes
        self._stalls = Stalls(workers, shell.pace)
        self._front_end: LeasingFrontEnd | None = None
        self._stocked: list[tuple[int, int]] = []
        """Sizes of the front end's slots, and how many there are."""
        self._turn_ns = 0
        """When the turn is, at the latest, that news have asked for last."""

    # --- the front end's side (DirectEngine)

    def attach(self, front_end: LeasingFrontEnd, method: int) -> bool:
        """See DirectEngine."""
        if not self._workers.rings or not self._config.lease_limit:
            return False
        slots = self._stock()
        front_end.attach(
            method=method,
            arena_bytes=self._arena.size,
            slots=slots,
            bounds_ns=BOUNDS_NS,
            slow_ns=self._config.slow_request_ms * 1_000_000,
        )
        self._stocked = [(size, len(offsets)) for size, offsets in slots]
        self._templates.fit_into(max((size for size, offsets in slots if offsets), default=0))
        if self._shell.tracer is not None:
            front_end.sample(self._shell.tracer.one_in)
        self._front_end = front_end
        self._lanes.attach(front_end)
        return True

    def _stock(self) -> list[tuple[int, list[int]]]:
        """Slots for the front end, which keeps them: as many as are wanted, within its share of the arena."""
        left = self._arena.statistics().limit_bytes // STOCK_SHARE
        stock = []
        for size, wanted in in_pages(self._config.lease_slots):
            slots = [
                self._arena.allocate(size, self._arena.own)
                for _ in range(min(wanted, left // size, self._arena.slots_for(size) // SLOT_SHARE))
            ]
            offsets = [slot.offset for slot in slots if slot is not None]
            left -= size * len(offsets)
            stock.append((size, offsets))
        return stock

    def template_of(self, plan: RequestPlan, shapes: Sequence[Shape]) -> RequestTemplate | None:
        """See DirectEngine."""
        return self._templates.make(plan, shapes)

    def release(self, plan: int) -> None:
        """See DirectEngine."""
        if self._front_end is not None:
            self._templates.release(plan, self._front_end)

    def told(self) -> None:
        """See DirectEngine. Figures are learned on the spot. A turn comes at once only if something is queued that they
        concern: all else looks from time to time, or asks."""
        front_end = self._front_end
        if front_end is None:
            return
        now_ns = self._shell.clock()
        for event in self._usage.fetch(front_end, self._lanes.busy):
            self._inbox.scheduler.step(event, now_ns)  # these have nothing done
        self.look(now_ns)
        if self._inbox.scheduler.unsettled:
            self._shell.pace.soon()
        elif now_ns >= self._turn_ns:
            self._turn_ns = now_ns + TURN_NS
            self._shell.pace.at(self._turn_ns)

    # --- the engine's side

    def put(self, event: events.Event) -> None:
        """Tell the scheduler of lanes and models, of which this takes note first."""
        self._inbox.put(self._note(event))

    def _note(self, event: events.Event) -> events.Event:
        if self._front_end is None:
            return event
        if type(event) is events.LaneOpened and self._lanes.open(event.lane, event.group):
            self._templates.tell(event.lane, event.group)
            return event._replace(leasable=True)
        if type(event) is events.LaneClosed:
            self._lanes.revoke(event.lane)
            self._lanes.busy.discard(event.lane)
        elif type(event) is events.ModelClosed:
            self._front_end.drop_templates(event.model)
            self.collect()
            self._templates.forget(event.model, self._front_end)
        return event

    def worker_exited(self, worker: int, *, last: bool) -> Leased:
        """Drop the lane of a process that has ended: gives what it had. That comes back as requests of their own; one
        that ran alone is tried no more if that is ``last``."""
        group = self._lanes.groups.get(worker)
        if self._front_end is None or group is None:
            return NOTHING_LEASED
        self._fetch(self._lanes.of(group))  # what it had may run on another of them
        self._lanes.forget(worker)
        return Leased(*self._front_end.close_lane(worker, last))

    def hold(self, client: str, model: int, until_ns: int) -> None:
        """Have what a client asks of a model come to the engine until then."""
        if self._front_end is not None:
            self._front_end.hold(client, model, until_ns)

    def forget(self, model: int | None = None) -> None:
        """Have the front end ask again: what requests for a model mean, or all, may have changed."""
        if self._front_end is not None:
            self._front_end.drop_templates(model)

    def perform(self, action: actions.GrantLease | actions.RevokeLease) -> None:
        """Do what the scheduler decided."""
        if type(action) is actions.GrantLease:
            self._lanes.lease(action.lane)
            return
        self._lanes.revoke(action.lane)
        self._fetch((action.lane,))

    def refresh(self, group: int) -> None:
        """Tell the scheduler what is in flight in a group, before it decides about a request. What began there since
        may not have been told."""
        if lanes := self._lanes.at_work(group):
            self._fetch(lanes)

    def collect(self) -> None:
        """Fetch what the front end has to tell; the next turn takes it into account."""
        self._fetch(self._lanes.busy)

    def _fetch(self, lanes: Iterable[int]) -> None:
        if self._front_end is not None:
            self._inbox.extend(self._usage.fetch(self._front_end, lanes))

    def look(self, now_ns: int) -> None:
        """End a turn: name prices that have changed, end workers that hang, offer lanes that are missing."""
        front_end = self._front_end
        if front_end is None:
            return
        self._templates.name_prices(front_end)
        self._stalls.look(front_end, self._lanes.groups, self._templates.served(), now_ns)
        self._lanes.offer(now_ns)

    # --- for people

    def in_flight(self, model: int) -> int:
        """Requests of a model that the front end has not answered yet."""
        return 0 if self._front_end is None else self._front_end.in_flight(model)

    def is_through(self, model: int) -> bool:
        """Whether the front end has answered all requests of a model, which have been booked then."""
        if self.in_flight(model):
            return False
        self.collect()
        return True

    def running_by_model(self) -> Counter[int]:
        """How many requests of each model version the front end has in flight."""
        front_end = self._front_end
        if front_end is None or not any(front_end.load(lane)[0] for lane in self._lanes.groups):
            return Counter()
        return Counter({model: front_end.in_flight(model) for model in self._templates.models()})

    def parked_by_model(self) -> Counter[int]:
        """How many requests of each model version wait at the front end."""
        front_end = self._front_end
        if front_end is None:
            return Counter()
        return Counter(
            {model: count for model in self._templates.models() if (count := front_end.backlog(model))}
        )

    def slots(self) -> tuple[SlotUse, ...]:
        """The front end's slots, by size."""
        if self._front_end is None:
            return ()
        free = self._front_end.free_slots()
        return tuple(
            SlotUse(size, count, count - left)
            for (size, count), left in zip(self._stocked, free, strict=True)
        )

    def idle_bytes(self) -> int:
        """Bytes of the arena that the front end keeps and does not use now."""
        return sum(slots.size_bytes * (slots.slots - slots.used) for slots in self.slots())

    def use(self, lane: int) -> tuple[int, bool]:
        """How many requests were answered on a lane under leases, and whether it is leased now."""
        return self._lanes.answered.get(lane, 0), self._lanes.is_leased(lane)
