"""Request templates: what the front end and the workers must know to serve requests like one that was checked before.

The front end recognises requests by their bytes; what they mean is worked out here, once for each plan. Requests of one
``kind`` may share a batch, and have one price. A plan lasts as long as the front end has a head of it, a kind as long
as there is a plan of it. Owner: the leases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from appliance.core.rollout.phase import SERVING
from appliance.core.scheduling.leases import Price
from appliance.domain.inference import RequestPlan
from appliance.domain.model import Batching
from appliance.domain.tensor import Datatype, byte_size
from appliance.engine.fastpath.direct import LeasingFrontEnd, RequestTemplate
from appliance.engine.fastpath.lanes import Lanes
from appliance.engine.inbox import Inbox
from appliance.engine.versions.batch_keys import BatchKeys
from appliance.engine.versions.layout import Layout
from appliance.engine.versions.routes import Routes, late_text
from appliance.engine.versions.served import Served
from appliance.workers.arena import aligned
from appliance.workers.port import Learn, Shape, WorkerPort


@dataclass(slots=True, eq=False)
class Kind:
    """Requests that may share a batch, and what the scheduler knows them by: a batch key, which it keeps open.
    ``plans`` counts those of it."""

    kind: int
    batch_key: int
    served: Served
    plans: int = 0


@dataclass(slots=True, eq=False)
class _Known:
    """A template as workers have it, by what it is found again, and how many ``heads`` of it the front end has."""

    template: Learn
    kind: Kind
    key: tuple[object, ...]
    heads: int = 0


class Templates:
    """``default_timeout_ns`` is the time that a request has which brings no deadline (0: for ever)."""

    def __init__(
        self,
        *,
        routes: Routes,
        batch_keys: BatchKeys,
        inbox: Inbox,
        workers: WorkerPort,
        lanes: Lanes,
        default_timeout_ns: int,
    ) -> None:
        self._routes = routes
        self._batch_keys = batch_keys
        self._inbox = inbox
        self._workers = workers
        self._lanes = lanes
        self._default_timeout_ns = default_timeout_ns
        self._largest_bytes = 0
        """Of the slots that the front end has."""
        self._templates: dict[tuple[object, ...], _Known] = {}
        self._plans: dict[int, _Known] = {}
        self._kinds: dict[tuple[int, tuple[int, ...]], Kind] = {}
        self._by_kind: dict[int, Kind] = {}
        self._prices: dict[int, Price] = {}
        self._unpriced: set[int] = set()
        """Kinds whose price may have changed."""
        self._last_kind = self._last_plan = 0

    def fit_into(self, slot_bytes: int) -> None:
        """Make templates from here on, of requests and answers that a slot of this size holds."""
        self._largest_bytes = slot_bytes

    # --- made and forgotten

    def make(self, plan: RequestPlan, shapes: Sequence[Shape]) -> RequestTemplate | None:
        """The template of requests of ``plan``, whose answers have these ``shapes`` in their order, for one more head;
        None when such requests are the engine's."""
        served = self._servable(plan)
        if served is None:
            return None
        layout = served.layout(plan)
        known = self._known(served, plan, layout, shapes)
        if known is None:
            return None
        known.heads += 1
        template = known.template
        starts = _starts(layout.sizes)
        order = sorted(
            (planned.source, size, start)
            for planned, size, start in zip(plan.inputs, layout.sizes, starts, strict=True)
            if planned.source >= 0
        )
        out_starts = [layout.input_span + start for start in _starts(template.out_sizes)]
        return RequestTemplate(
            plan=template.plan,
            kind=template.kind,
            model=served.id,
            group=served.placed.group,
            rows=template.rows,
            inputs=tuple((size, start) for _, size, start in order),
            out_offset=layout.input_span,
            span=layout.input_span + sum(map(aligned, template.out_sizes)),
            outputs=tuple(out_starts[layout.wanted.index(planned.position)] for planned in plan.outputs),
            late_text=late_text(plan.model.name),
            default_timeout_ns=self._default_timeout_ns,
        )

    def tell(self, lane: int, group: int) -> None:
        """Make the templates of a group known to the worker of a new lane."""
        for known in self._templates.values():
            if known.kind.served.placed.group == group:
                self._workers.learn(lane, known.template)

    def release(self, plan: int, front_end: LeasingFrontEnd) -> None:
        """The front end has one head less of a plan, whose model may be gone already."""
        known = self._plans.get(plan)
        if known is not None:
            known.heads -= 1
            if not known.heads:
                self._drop([known], self._lanes.of(known.kind.served.placed.group), front_end)

    def forget(self, model: int, front_end: LeasingFrontEnd) -> None:
        """Drop what is known of a model: nothing of it is given to workers any more, and they need not know of it."""
        gone = [known for known in self._plans.values() if known.template.model == model]
        self._drop(gone, self._lanes.groups if gone else (), front_end)

    def _drop(self, gone: Sequence[_Known], lanes: Iterable[int], front_end: LeasingFrontEnd) -> None:
        plans = tuple(known.template.plan for known in gone)
        for lane in lanes:
            self._workers.forget(lane, plans)
        for known in gone:
            kind = known.kind
            del self._plans[known.template.plan], self._templates[known.key]
            kind.plans -= 1
            if not kind.plans:
                del self._kinds[kind.batch_key, known.template.wanted], self._by_kind[kind.kind]
                if self._prices.pop(kind.kind, None) is not None:
                    front_end.forget_price(kind.kind)
                self._batch_keys.give(kind.batch_key)

    # --- what the front end asks by

    def kind(self, number: int) -> Kind | None:
        """The kind with this number; None when its model is gone."""
        return self._by_kind.get(number)

    def served(self) -> Iterator[Served]:
        """The versions that may run under leases, some of them often."""
        return (kind.served for kind in self._by_kind.values())

    def models(self) -> set[int]:
        """The ids of these versions."""
        return {served.id for served in self.served()}

    def ran(self, kind: int) -> None:
        """Note that requests of a kind ran: what they cost may have changed."""
        self._unpriced.add(kind)

    def name_prices(self, front_end: LeasingFrontEnd) -> None:
        """Tell the front end the prices that have changed."""
        for number in self._unpriced:
            kind = self._by_kind.get(number)
            price = self._inbox.scheduler.price(kind.batch_key) if kind else None
            if price is not None and self._prices.get(number) != price:
                self._prices[number] = price
                front_end.price(number, *price)
        self._unpriced.clear()

    # --- how one is made

    def _servable(self, plan: RequestPlan) -> Served | None:
        """What serves ``plan``, if the front end could."""
        head = plan.head
        if (
            not self._largest_bytes
            or head.timeout_us
            or any(planned.classification for planned in plan.outputs)
        ):
            return None
        served = self._routes.find(plan.model.name, plan.model.version)
        if (
            served is None
            or served.model is not plan.model
            or not served.opened
            or served.phase not in SERVING
            or served.trial.split is not None
            or not served.layout(plan).sizes
        ):
            return None
        if any(spec.datatype is Datatype.BYTES for spec in served.model.outputs):
            return None
        return served if _as_they_come(served.model.batching or Batching()) else None

    def _known(
        self, served: Served, plan: RequestPlan, layout: Layout, shapes: Sequence[Shape]
    ) -> _Known | None:
        """What workers must know of ``plan``; the same for all plans that look the same to them."""
        by_position = dict(zip((planned.position for planned in plan.outputs), shapes, strict=True))
        out_shapes = tuple(by_position[position] for position in layout.wanted)
        key = (served.id, layout.shapes, layout.wanted, out_shapes)
        known = self._templates.get(key)
        if known is not None:
            return known
        out_sizes = tuple(
            byte_size(served.model.outputs[position].datatype, shape)
            for position, shape in zip(layout.wanted, out_shapes, strict=True)
        )
        if layout.input_span + sum(map(aligned, out_sizes)) > self._largest_bytes:
            return None
        kind = self._kind(served, plan, layout)
        kind.plans += 1
        self._last_plan += 1
        template = Learn(
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
        known = self._templates[key] = self._plans[template.plan] = _Known(template, kind, key)
        for lane in self._lanes.of(served.placed.group):
            self._workers.learn(lane, template)
        return known

    def _kind(self, served: Served, plan: RequestPlan, layout: Layout) -> Kind:
        batch_key = self._batch_keys.take(served, plan)
        kind = self._kinds.get((batch_key, layout.wanted))
        if kind is not None:
            self._batch_keys.give(batch_key)
            return kind
        self._last_kind += 1
        kind = Kind(self._last_kind, batch_key, served)
        self._unpriced.add(kind.kind)
        self._kinds[batch_key, layout.wanted] = self._by_kind[kind.kind] = kind
        return kind


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
