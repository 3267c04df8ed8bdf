"""Request templates: what the front end and the workers must know to serve requests like one that was checked before.

The front end recognises requests by their bytes; what they mean is worked out here, once for each plan. Requests of one
``kind`` may share a batch, and have one price. It is remembered which heads of requests have a template, or can have
none: each is considered once, until templates are forgotten. Owner: the leases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from appliance.core.scheduling.leases import Price
from appliance.domain.inference import RequestPlan
from appliance.domain.model import Batching, ModelVersion
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

KINDS_PER_MODEL: Final = 32
"""Each keeps a batch key of the scheduler's open for as long as its model is."""


class Kind(NamedTuple):
    """Requests that may share a batch, and what the scheduler knows them by."""

    kind: int
    batch_key: int
    served: Served


class _Known(NamedTuple):
    """A template as workers have it, and the version that it is of."""

    template: Learn
    served: Served


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
        """The template of requests of ``plan``, whose answers have these ``shapes`` in their order; None when such
        requests are the engine's."""
        served = self._servable(plan)
        if served is None:
            return None
        layout = served.layout(plan)
        template = self._template(served, plan, layout, shapes)
        if template is None:
            return None
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
        for template, served in self._templates.values():
            if served.placed.group == group:
                self._workers.learn(lane, template)

    def forget(self, model: int, front_end: LeasingFrontEnd) -> None:
        """Drop what is known of a model: nothing of it is given to workers any more, and they need not know of it."""
        gone = [key for key, known in self._templates.items() if known.template.model == model]
        plans = tuple(self._templates.pop(key).template.plan for key in gone)
        for lane in self._lanes.groups if plans else ():
            self._workers.forget(lane, plans)
        for key, kind in list(self._kinds.items()):
            if kind.served.id == model:
                del self._kinds[key], self._by_kind[kind.kind]
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
            or served.trial.split is not None
            or not served.layout(plan).sizes
        ):
            return None
        if any(spec.datatype is Datatype.BYTES for spec in served.model.outputs):
            return None
        return served if _as_they_come(served.model.batching or Batching()) else None

    def _template(
        self, served: Served, plan: RequestPlan, layout: Layout, shapes: Sequence[Shape]
    ) -> Learn | None:
        """What workers must know of ``plan``; the same for all plans that look the same to them."""
        by_position = dict(zip((planned.position for planned in plan.outputs), shapes, strict=True))
        out_shapes = tuple(by_position[position] for position in layout.wanted)
        key = (served.id, layout.shapes, layout.wanted, out_shapes)
        known = self._templates.get(key)
        if known is not None:
            return known.template
        out_sizes = tuple(
            byte_size(served.model.outputs[position].datatype, shape)
            for position, shape in zip(layout.wanted, out_shapes, strict=True)
        )
        if layout.input_span + sum(map(aligned, out_sizes)) > self._largest_bytes:
            return None
        kind = self._kind(served, plan, layout)
        if kind is None:
            return None
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
        self._templates[key] = _Known(template, served)
        for lane in self._lanes.of(served.placed.group):
            self._workers.learn(lane, template)
        return template

    def _kind(self, served: Served, plan: RequestPlan, layout: Layout) -> Kind | None:
        batch_key = self._batch_keys.take(served, plan)
        kind = self._kinds.get((batch_key, layout.wanted))
        if kind is not None:
            self._batch_keys.give(batch_key)
            return kind
        if sum(kind.served is served for kind in self._kinds.values()) >= KINDS_PER_MODEL:
            self._batch_keys.give(batch_key)
            return None
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


HEADS_MAX: Final = 4096


class Epochs(Protocol):
    """What knows when templates were forgotten."""

    def epoch(self, model: ModelVersion) -> int:
        """A number that becomes another one when the templates of ``model`` are forgotten."""


class ConsideredHeads:
    """``epochs`` tells when the templates of a version are forgotten. Owner: a TemplateMaker."""

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs
        self._heads: dict[bytes, tuple[ModelVersion, int]] = {}
        self._swept = -1
        """The generation in which the heads were last gone through."""

    def is_due(self, head: bytes, model: ModelVersion, planned: int, generation: int) -> bool:
        """Whether ``head``, a request for ``model``, is to be considered now; then it is not again. ``planned`` is the
        generation in which it was planned: what was planned before the present ``generation`` may be another version's
        by now."""
        if planned != generation:
            return False
        known, now = self._heads.get(head), (model, self._epochs.epoch(model))
        if known is not None and known[1] == now[1]:
            return False
        if known is None and len(self._heads) >= HEADS_MAX and not self._sweep(generation):
            return False
        self._heads[head] = now
        return True

    def _sweep(self, generation: int) -> bool:
        """Drop heads that were forgotten; whether there is room then. In one generation that is worth it once."""
        if self._swept != generation:
            self._swept = generation
            known = self._heads.items()
            self._heads = {head: then for head, then in known if self._epochs.epoch(then[0]) == then[1]}
        return len(self._heads) < HEADS_MAX
