"""What the door may do by itself: teaches it, grants it lanes, and keeps the engine's accounts of what it did.

The scheduler says which lane is granted and when that ends. What the door tells comes late, in sums; whoever asks for
figures gets those of this moment, because they are fetched first. One owner: the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from appliance.core.scheduling import actions, events
from appliance.core.scheduling.grants import Price
from appliance.core.scheduling.scheduler import Scheduler
from appliance.domain.inference import RequestPlan
from appliance.domain.model import Batching
from appliance.domain.tensor import Datatype, byte_size
from appliance.engine.control.company import Company
from appliance.engine.control.layout import Layout
from appliance.engine.control.openings import Openings
from appliance.engine.environment import Pace
from appliance.engine.fastpath.direct import DirectDoor, Tally, Taught
from appliance.engine.port import SlotUse
from appliance.engine.requests.outcome import late_text
from appliance.engine.requests.shapes import Shapes
from appliance.engine.requests.stalls import Stalls
from appliance.engine.settings import EngineConfig
from appliance.engine.versions.routes import Routes, Served
from appliance.telemetry.meter import BOUNDS_NS, Result
from appliance.telemetry.trace import Tracer
from appliance.workers.arena import Arena, aligned
from appliance.workers.port import ExitCause, Learn, Shape, WorkerPort

KINDS_PER_MODEL: Final = 32
TURN_NS: Final = 10_000_000
"""Within this after news the engine takes a turn, also when nothing is queued that they concern."""
STOCK_SHARE: Final = 8
"""The part of the arena that the door's own slots may take."""
SLOT_SHARE: Final = 4
"""The part of the arena's slots of one size that they may be: the engine needs some, if only to see each head once."""


class _Kind(NamedTuple):
    """Requests that may share a batch, and what the scheduler knows them by."""

    kind: int
    shape: int
    served: Served


class Grants:
    """Implements DirectEngine. ``feed`` takes scheduler events; ``served`` finds a version by its id; ``slow`` takes
    requests that took long: version, id, client, and nanoseconds of queue, gather, run, scatter and in all; ``tracer``
    those that were traced."""

    def __init__(
        self,
        *,
        config: EngineConfig,
        workers: WorkerPort,
        scheduler: Scheduler,
        arena: Arena,
        shapes: Shapes,
        feed: Callable[[events.Event], None],
        routes: Routes,
        served: Callable[[int], Served | None],
        pace: Pace,
        clock: Callable[[], int],
        slow: Callable[[Served, str, str, Sequence[int]], None],
        tracer: Tracer | None,
        wall_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._default_timeout_ns = config.default_deadline_ms * 1_000_000
        self._slow_ns = config.slow_request_ms * 1_000_000
        self._workers = workers
        self._scheduler = scheduler
        self._arena = arena
        self._shapes = shapes
        self._feed = feed
        self._clock = clock
        self._routes = routes
        self._served = served
        self._pace = pace
        self._slow = slow
        self._tracer = tracer
        self._wall_ms = wall_ms
        self._door: DirectDoor | None = None
        self._stocked: list[tuple[int, int]] = []
        """Sizes of the door's slots, and how many there are."""
        self._largest = 0
        self._groups: dict[int, int] = {}
        """The group of each lane that the door knows, or is to know."""
        self._lanes: dict[int, list[int]] = {}
        """The lanes of each group."""
        self._granted: set[int] = set()
        """As the scheduler has it: those that the door has yet to take are granted it then."""
        self._busy: set[int] = set()
        """Lanes that had work when the scheduler was told last: it is told of them until they have drained."""
        self._answered: dict[int, int] = {}
        """Requests answered under grants, by lane."""
        self._kinds: dict[tuple[int, tuple[int, ...]], _Kind] = {}
        self._by_kind: dict[int, _Kind] = {}
        self._prices: dict[int, Price] = {}
        self._unpriced: set[int] = set()
        """Kinds whose price may have changed."""
        self._last_kind = self._last_plan = 0
        self._lessons: dict[tuple[object, ...], Learn] = {}
        self._stalls = Stalls(workers, pace.at)
        self._openings = Openings(workers)
        self._company = Company(workers, pace.at, wanted=config.share_processor)
        self._turn_ns = 0
        """When the turn is, at the latest, that news have asked for last."""

    # --- the door's side (DirectEngine)

    def attach(self, door: DirectDoor, method: int) -> bool:
        """See DirectEngine."""
        if not self._workers.rings or not self._config.grant_limit:
            return False
        slots = self._stock()
        door.attach(
            method=method,
            arena=self._arena.fd,
            arena_bytes=self._arena.size,
            slots=slots,
            bounds_ns=BOUNDS_NS,
            slow_ns=self._slow_ns,
        )
        self._stocked = [(size, len(offsets)) for size, offsets in slots]
        self._largest = max((size for size, offsets in slots if offsets), default=0)
        if self._tracer is not None:
            door.sample(self._tracer.one_in)
        self._door = door
        return True

    def _stock(self) -> list[tuple[int, list[int]]]:
        """Slots for the door, which keeps them: as many as are wanted, within its share of the arena."""
        left = self._arena.statistics().limit_bytes // STOCK_SHARE
        stock = []
        for size, wanted in self._config.grant_slots:
            slots = [
                self._arena.allocate(size)
                for _ in range(min(wanted, left // size, self._arena.slots_for(size) // SLOT_SHARE))
            ]
            offsets = [slot.offset for slot in slots if slot is not None]
            left -= size * len(offsets)
            stock.append((size, offsets))
        return stock

    def teach(self, plan: RequestPlan, shapes: Sequence[Shape]) -> Taught | None:
        """See DirectEngine."""
        served = self._servable(plan)
        if served is None:
            return None
        layout = served.layout(plan)
        lesson = self._lesson(served, plan, layout, shapes)
        if lesson is None:
            return None
        starts = _starts(layout.sizes)
        order = sorted(
            (planned.source, size, start)
            for planned, size, start in zip(plan.inputs, layout.sizes, starts, strict=True)
            if planned.source >= 0
        )
        out_starts = [layout.input_span + start for start in _starts(lesson.out_sizes)]
        return Taught(
            plan=lesson.plan,
            kind=lesson.kind,
            model=served.id,
            group=served.group,
            rows=lesson.rows,
            inputs=tuple((size, start) for _, size, start in order),
            out_offset=layout.input_span,
            span=layout.input_span + sum(map(aligned, lesson.out_sizes)),
            outputs=tuple(out_starts[layout.wanted.index(planned.position)] for planned in plan.outputs),
            late_text=late_text(plan.model.name),
            default_timeout_ns=self._default_timeout_ns,
        )

    def told(self) -> None:
        """See DirectEngine. Figures are learned on the spot. A turn comes at once only if something is queued that they
        concern: whoever waits for more than that looks from time to time, or asks."""
        self._fetch(self._learn, self._busy)
        now_ns = self._clock()
        self.look(now_ns)
        if self._scheduler.unsettled:
            self._pace.soon()
        elif now_ns >= self._turn_ns:
            self._turn_ns = now_ns + TURN_NS
            self._pace.at(self._turn_ns)

    # --- the engine's side

    def note(self, event: events.Event) -> events.Event:
        """What the scheduler is about to be told of lanes and models concerns the door as well."""
        if self._door is None:
            return event
        if type(event) is events.LaneOpened:
            return self._lane_opened(event)
        if type(event) is events.LaneClosed:
            self._revoke(event.lane)
            self._busy.discard(event.lane)
        elif type(event) is events.ModelClosed:
            self._model_closed(event.model)
        return event

    def worker_exited(self, worker: int) -> tuple[int, int]:
        """Its process has ended: the model of the request that it had had for longest (-1: none), and how many it had.
        They come back as requests of their own."""
        group = self._groups.get(worker)
        if self._door is None or group is None:
            return -1, 0
        self._fetch(self._feed, self._lanes[group])  # what it had may run on another of them
        del self._groups[worker]
        self._lanes[group].remove(worker)
        if not self._lanes[group]:
            del self._lanes[group]
        self._answered.pop(worker, None)
        self._openings.forget(worker)
        return self._door.close_lane(worker)

    def forget(self, model: int | None = None) -> None:
        """What requests for a model mean, or all, may have changed: the door shall ask again."""
        if self._door is not None:
            self._door.forget(model)

    def in_flight(self, model: int) -> int:
        """Requests of a model that the door has not answered yet."""
        return 0 if self._door is None else self._door.in_flight(model)

    def is_through(self, model: int) -> bool:
        """Whether the door has answered all requests of a model, which have been booked then."""
        if self.in_flight(model):
            return False
        self.collect()
        return True

    def running_by_model(self) -> Counter[int]:
        """How many requests of each model version the door has in flight."""
        door = self._door
        if door is None or not any(door.load(lane)[0] for lane in self._groups):
            return Counter()
        models = {kind.served.id for kind in self._by_kind.values()}
        return Counter({model: door.in_flight(model) for model in models})

    def parked_by_model(self) -> Counter[int]:
        """How many requests of each model version wait at the door."""
        door = self._door
        if door is None:
            return Counter()
        models = {kind.served.id for kind in self._by_kind.values()}
        return Counter({model: count for model in models if (count := door.parked(model))})

    def idle_bytes(self) -> int:
        """Bytes of the arena that the door keeps and does not use now."""
        if self._door is None:
            return 0
        return sum(slots.size_bytes * (slots.slots - slots.used) for slots in self.slots())

    def slots(self) -> tuple[SlotUse, ...]:
        """The door's slots, by size."""
        if self._door is None:
            return ()
        free = self._door.free_slots()
        return tuple(
            SlotUse(size, count, count - left)
            for (size, count), left in zip(self._stocked, free, strict=True)
        )

    def use(self, lane: int) -> tuple[int, bool]:
        """How many requests were answered on a lane under grants, and whether it is granted now."""
        return self._answered.get(lane, 0), lane in self._granted and not self._openings.is_missing(lane)

    def perform(self, action: actions.Grant | actions.Revoke) -> None:
        """Do what the scheduler decided."""
        door = self._door
        assert door is not None, "a grant without a door"
        if type(action) is actions.Grant:
            self._granted.add(action.lane)
            door.grant(action.lane, self._config.grant_limit)
            return
        self._revoke(action.lane)
        self._fetch(self._feed, (action.lane,))

    def refresh(self, group: int) -> None:
        """Tell the scheduler what is in flight in a group, before it decides about a request. What began there since
        may not have been told."""
        lanes = [lane for lane in self._lanes.get(group, ()) if lane in self._granted or lane in self._busy]
        if lanes:
            self._fetch(self._feed, lanes)

    def collect(self) -> None:
        """Fetch what the door has to tell; the next turn takes it into account."""
        self._fetch(self._feed, self._busy)

    def _learn(self, event: events.DoorNews) -> None:
        self._scheduler.step(event, self._clock())  # these have nothing done

    def _fetch(self, tell: Callable[[events.DoorNews], None], lanes: Iterable[int]) -> None:
        """Tell the news, and the load of ``lanes`` and of those that there are news of: looking at all lanes of a box
        for every request would cost more than the request."""
        door = self._door
        if door is None:
            return
        told, broken = door.news()
        if self._tracer is not None:
            # After the news: what ends from then on is announced anew, and its trace is not left lying.
            for trace in door.traces():
                if (served := self._served(trace[0])) is not None:
                    self._tracer.granted(served.model, trace)
        asked = set(lanes)
        for fields in told:
            tally = Tally._make(fields)
            self._book(tally, tell)
            asked.add(tally.lane)
        for lane in asked & self._groups.keys():
            # After what ran: a load that fell for no reason would look like idle time.
            requests, work_ns, _ = door.load(lane)
            (self._busy.add if requests else self._busy.discard)(lane)
            tell(events.GrantedWork(lane, requests, work_ns))
        for lane in broken:
            self._workers.kill(lane, ExitCause.NONSENSE)

    def look(self, now_ns: int) -> None:
        """At the end of a turn: name prices that have changed, end workers that hang, open lanes that are missing."""
        door = self._door
        if door is None:
            return
        if self._unpriced:
            self._name_prices(door)
        self._stalls.look(door, self._groups, (kind.served for kind in self._by_kind.values()), now_ns)
        self._company.look(door, self._answered, now_ns)
        for lane in self._openings.look(door, now_ns):
            if lane in self._granted:
                door.grant(lane, self._config.grant_limit)

    def _name_prices(self, door: DirectDoor) -> None:
        for number in self._unpriced:
            kind = self._by_kind.get(number)
            price = self._scheduler.price(kind.shape) if kind else None
            if price is not None and self._prices.get(number) != price:
                self._prices[number] = price
                door.price(number, *price)
        self._unpriced.clear()

    def _book(self, tally: Tally, tell: Callable[[events.DoorNews], None]) -> None:
        """Take what the door did into the accounts, as if the engine had done it."""
        served = self._served(tally.model)
        if served is None:
            return
        meter, lane = served.meter, tally.lane
        meter.merge(tally.rows, tally.batches, tally.stages, self._wall_ms())
        if tally.refused or tally.cancelled or tally.expired:
            meter.ended_many(Result.REFUSED, tally.refused)
            meter.ended_many(Result.CANCELLED, tally.cancelled)
            meter.ended_many(Result.EXPIRED, tally.expired)
        if lane in self._groups:
            self._answered[lane] = self._answered.get(lane, 0) + tally.requests
        for request_id, stages_ns, client in tally.slow:
            self._slow(served, request_id.decode(errors="replace"), client, stages_ns)
        kind = self._by_kind.get(tally.kind)
        if kind is None:
            return
        self._unpriced.add(kind.kind)
        if tally.budget_ns:
            tell(events.BudgetSeen(kind.shape, tally.budget_ns))
        for rows, count, gather_ns, run_ns, scatter_ns in tally.batches:
            spent_ns = (gather_ns + run_ns + scatter_ns) // count
            tell(events.GrantedRan(lane, kind.shape, rows, spent_ns, count))

    # --- lanes

    def _lane_opened(self, event: events.LaneOpened) -> events.LaneOpened:
        if self._door is None or not self._openings.open(self._door, event.lane, event.group):
            return event
        for lesson in self._lessons.values():
            served = self._served(lesson.model)
            if served is not None and served.group == event.group:
                self._workers.learn(event.lane, lesson)
        self._groups[event.lane] = event.group
        self._lanes.setdefault(event.group, []).append(event.lane)
        return event._replace(grantable=True)

    def _revoke(self, lane: int) -> None:
        assert self._door is not None
        self._door.revoke(lane)
        self._granted.discard(lane)

    # --- lessons

    def _servable(self, plan: RequestPlan) -> Served | None:
        """What serves ``plan``, if the door could."""
        head = plan.head
        if self._door is None or head.timeout_us or any(planned.classification for planned in plan.outputs):
            return None
        served = self._routes.find(plan.model.name, plan.model.version)
        if (
            served is None
            or served.model is not plan.model
            or not served.opened
            or served.diversion is not None
            or not served.layout(plan).sizes
        ):
            return None
        if any(spec.datatype is Datatype.BYTES for spec in served.model.outputs):
            return None
        return served if _as_they_come(served.model.batching or Batching()) else None

    def _lesson(
        self, served: Served, plan: RequestPlan, layout: Layout, shapes: Sequence[Shape]
    ) -> Learn | None:
        """What workers must know of ``plan``; the same for all plans that look the same to them."""
        by_position = dict(zip((planned.position for planned in plan.outputs), shapes, strict=True))
        out_shapes = tuple(by_position[position] for position in layout.wanted)
        key = (served.id, layout.shapes, layout.wanted, out_shapes)
        known = self._lessons.get(key)
        if known is not None:
            return known
        out_sizes = tuple(
            byte_size(served.model.outputs[position].datatype, shape)
            for position, shape in zip(layout.wanted, out_shapes, strict=True)
        )
        if layout.input_span + sum(map(aligned, out_sizes)) > self._largest:
            return None
        kind = self._kind(served, plan, layout)
        if kind is None:
            return None
        self._last_plan += 1
        lesson = Learn(
            plan=self._last_plan,
            model=served.id,
            kind=kind.kind,
            rows=plan.rows,
            max_rows=served.model.max_batch_size if layout.merging else 1,
            shapes=layout.shapes,
            sizes=layout.sizes,
            wanted=layout.wanted,
            out_shapes=out_shapes,
            out_sizes=out_sizes,
        )
        self._lessons[key] = lesson
        for lane, group in self._groups.items():
            if group == served.group:
                self._workers.learn(lane, lesson)
        return lesson

    def _kind(self, served: Served, plan: RequestPlan, layout: Layout) -> _Kind | None:
        """The kind of ``plan``. It keeps its shape open for as long as its model is, so there are not many."""
        shape = self._shapes.take(served, plan)
        kind = self._kinds.get((shape, layout.wanted))
        if kind is not None:
            self._shapes.give(shape)
            return kind
        if sum(kind.served is served for kind in self._kinds.values()) >= KINDS_PER_MODEL:
            self._shapes.give(shape)
            return None
        self._last_kind += 1
        kind = _Kind(self._last_kind, shape, served)
        self._unpriced.add(kind.kind)
        self._kinds[shape, layout.wanted] = self._by_kind[kind.kind] = kind
        return kind

    def _model_closed(self, model: int) -> None:
        """Nothing of it is given to workers any more, and they need not know of it."""
        assert self._door is not None
        self._door.forget(model)
        self.collect()
        gone = [key for key, lesson in self._lessons.items() if lesson.model == model]
        plans = tuple(self._lessons.pop(key).plan for key in gone)
        for lane in self._groups if plans else ():
            self._workers.forget(lane, plans)
        for key, kind in list(self._kinds.items()):
            if kind.served.id == model:
                del self._kinds[key], self._by_kind[kind.kind]
                if self._prices.pop(kind.kind, None) is not None:
                    self._door.forget_price(kind.kind)
                self._shapes.give(kind.shape)


def _as_they_come(batching: Batching) -> bool:
    """Whether requests are served as they come: neither ordered nor bounded nor delayed."""
    policy = batching.default_queue_policy
    bounded = policy.default_timeout_us or policy.max_queue_size
    return not (batching.priority_levels or bounded or batching.max_queue_delay_us)


def _starts(sizes: Sequence[int]) -> list[int]:
    """Where tensors of these sizes begin that lie back to back, aligned."""
    starts, position = [], 0
    for size in sizes:
        starts.append(position)
        position += aligned(size)
    return starts
