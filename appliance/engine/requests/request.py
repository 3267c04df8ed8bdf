"""A request inside the engine: where its tensors lie and how far it came. Owner: the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from appliance.domain.inference import Answer, Outcome, OutputTensor, RequestPlan
from appliance.engine.port import Buffer
from appliance.engine.requests.expectation import UNKNOWN, Expectation
from appliance.engine.versions.routes import Served
from appliance.telemetry.trace import Trace
from appliance.workers.arena import Arena, Slot, aligned
from appliance.workers.port import RunItem, RunResult

if TYPE_CHECKING:
    from appliance.engine.requests.detours import Detour


class Request:
    """One accepted request. ``held``: a worker may touch its memory. ``done``: its outcome was given. ``detour`` is
    None but for the few that concern a version on trial."""

    __slots__ = (
        "arrived_ns",
        "attempts",
        "batch_rows",
        "cancelled",
        "client",
        "deadline_ns",
        "detour",
        "dispatched_ns",
        "done",
        "handle",
        "held",
        "layout",
        "on_done",
        "out_capacity",
        "out_offset",
        "out_slot",
        "plan",
        "request_id",
        "served",
        "shape",
        "sizes",
        "slot",
        "stages_ns",
        "trace",
        "worker",
    )  # fmt: skip

    def __init__(
        self,
        handle: int,
        plan: RequestPlan,
        served: Served,
        request_id: str,
        arrived_ns: int,
        deadline_ns: int,
        on_done: Callable[[Outcome], None],
    ) -> None:
        self.handle = handle
        self.plan = plan
        self.layout = served.layout(plan)
        self.served = served
        self.request_id = request_id
        self.arrived_ns = arrived_ns
        self.deadline_ns = deadline_ns
        self.on_done = on_done
        self.shape = -1
        self.slot: Slot | None = None
        self.sizes: tuple[int, ...] = ()
        self.out_offset = 0
        self.out_capacity = 0
        self.out_slot: Slot | None = None
        self.dispatched_ns = 0
        self.batch_rows = 0
        self.stages_ns = (0, 0, 0)
        self.worker = -1
        self.attempts = 0
        self.client = ""
        self.trace: Trace | None = None
        self.detour: Detour | None = None
        self.held = False
        self.cancelled = False
        self.done = False

    def aim(self, plan: RequestPlan, served: Served) -> None:
        """It is for ``served`` from now on, by ``plan``; its tensors lie as they lay."""
        self.plan, self.served = plan, served
        self.layout = served.layout(plan)

    @property
    def is_twin(self) -> bool:
        """Whether it only runs for comparison with another."""
        return self.detour is not None and self.detour.twin is self

    def measure(self, tensors: Sequence[Buffer]) -> None:
        """Note how many bytes each input of the model has; one that is left out has none."""
        self.sizes = self.layout.sizes or tuple(map(len, self._ordered(tensors)))

    def _ordered(self, tensors: Sequence[Buffer]) -> list[Buffer]:
        return [tensors[planned.source] if planned.source >= 0 else b"" for planned in self.plan.inputs]

    def store(self, arena: Arena, tensors: Sequence[Buffer]) -> bool:
        """Copy the raw inputs, measured before, into one slot with room for the outputs behind them; False when there
        is no room."""
        ordered, inputs = self._ordered(tensors), self._input_bytes()
        slot = arena.allocate(inputs + self._room_for_outputs(arena))
        if slot is None:
            return False
        self.slot = slot
        view = arena.view(slot.offset, inputs)
        position = 0
        for tensor, size in zip(ordered, self.sizes, strict=True):
            view[position : position + size] = tensor
            position += aligned(size)
        self.place_outputs(arena)
        return True

    def place_outputs(self, arena: Arena) -> None:
        """Its outputs are to go behind its inputs, as they were at first; a place of their own is given back."""
        slot, inputs = self.slot, self._input_bytes()
        assert slot is not None
        if self.out_slot is not None:
            arena.free(self.out_slot)
            self.out_slot = None
        self.out_offset, self.out_capacity = slot.offset + inputs, slot.size - inputs

    def item(self) -> RunItem:
        """What the worker needs to know."""
        layout, slot = self.layout, self.slot
        assert slot is not None
        return RunItem(
            self.handle,
            self.plan.rows,
            layout.shapes,
            self.sizes,
            slot.offset,
            layout.wanted,
            self.out_offset,
            self.out_capacity,
        )

    def answer(self, arena: Arena, result: RunResult) -> Answer:
        """The outputs where the worker left them, in the order in which they were asked for."""
        plan = self.plan
        model, wanted = plan.model, self.layout.wanted
        view = arena.view(self.out_offset, self.out_capacity)
        position = 0
        tensors: list[OutputTensor] = []
        for index, shape, size in zip(wanted, result.shapes, result.sizes, strict=True):
            spec = model.outputs[index]
            tensors.append(OutputTensor(spec.name, spec.datatype, shape, view[position : position + size]))
            position += aligned(size)
        if len(tensors) > 1:
            tensors = [tensors[wanted.index(planned.position)] for planned in plan.outputs]
        return Answer(model=model, outputs=tuple(tensors), release=partial(self.free, arena))

    def learn_output_bytes(self, sizes: Sequence[int]) -> None:
        """Remember what its outputs took, so that the next request like it reserves enough at once."""
        if self.layout.output_span == UNKNOWN:
            self._expectation().learn(self.layout.wanted, self.plan.rows, sizes)

    def fits(self, arena: Arena) -> bool:
        """Whether ``store`` would find room now; measured before."""
        return arena.has_room(self._input_bytes() + self._room_for_outputs(arena))

    def _input_bytes(self) -> int:
        layout = self.layout
        return layout.input_span if layout.sizes else sum(map(aligned, self.sizes))

    def _room_for_outputs(self, arena: Arena) -> int:
        """Bytes: exact where the graph fixes it, else what should be enough, or where there is no room for that, the
        least that is needed: outputs that turn out larger get a place of their own when they are there."""
        layout, rows = self.layout, self.plan.rows
        if layout.output_span != UNKNOWN:
            return layout.output_span
        expectation = self._expectation()
        most = expectation.most_span(layout.wanted, rows)
        if arena.has_room(self._input_bytes() + most):
            return most
        return expectation.least_span(layout.wanted, rows)

    def _expectation(self) -> Expectation:
        return self.layout.expectation or self.served.expectations.of(self.plan, sum(self.sizes))

    def free(self, arena: Arena) -> None:
        """Give the memory back; the worker must not hold it any more."""
        assert not self.held
        for slot in (self.slot, self.out_slot):
            if slot is not None:
                arena.free(slot)
        self.slot = self.out_slot = None
