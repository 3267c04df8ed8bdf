"""A request inside the engine: where its tensors lie and how far it came. Owner: the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from appliance.engine.port import Buffer
from appliance.engine.routes import Served
from appliance.inference import Answer, Outcome, OutputTensor, RequestPlan
from appliance.workers.arena import Arena, Slot, aligned
from appliance.workers.port import RunItem, RunResult


class Request:
    """One accepted request. ``held``: a worker may touch its memory. ``done``: its outcome was given."""

    __slots__ = (
        "arrived_ns",
        "attempts",
        "batch_rows",
        "cancelled",
        "deadline_ns",
        "dispatched_ns",
        "done",
        "handle",
        "held",
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
        self.held = False
        self.cancelled = False
        self.done = False

    def store(self, arena: Arena, tensors: Sequence[Buffer]) -> bool:
        """Copy the raw inputs into one slot with room for the outputs behind them; False when there is no room."""
        ordered: list[Buffer] = [
            tensors[planned.source] if planned.source >= 0 else b"" for planned in self.plan.inputs
        ]
        self.sizes = tuple(map(len, ordered))
        inputs = sum(map(aligned, self.sizes))
        slot = arena.allocate(inputs + expected_output_bytes(self.served, self.plan))
        if slot is None:
            return False
        self.slot = slot
        view = arena.view(slot.offset, inputs)
        position = 0
        for tensor, size in zip(ordered, self.sizes, strict=True):
            view[position : position + size] = tensor
            position += aligned(size)
        self.out_offset, self.out_capacity = slot.offset + inputs, slot.size - inputs
        return True

    def item(self) -> RunItem:
        """What the worker needs to know."""
        plan, slot = self.plan, self.slot
        assert slot is not None
        return RunItem(
            self.handle,
            plan.rows,
            tuple(planned.shape if planned.source >= 0 else None for planned in plan.inputs),
            self.sizes,
            slot.offset,
            wanted_outputs(plan),
            self.out_offset,
            self.out_capacity,
        )

    def answer(self, arena: Arena, result: RunResult) -> Answer:
        """The outputs where the worker left them, in the order in which they were asked for."""
        plan, model = self.plan, self.plan.model
        view = arena.view(self.out_offset, self.out_capacity)
        position = 0
        tensors: dict[int, OutputTensor] = {}
        for index, shape, size in zip(wanted_outputs(plan), result.shapes, result.sizes, strict=True):
            spec = model.outputs[index]
            tensors[index] = OutputTensor(spec.name, spec.datatype, shape, view[position : position + size])
            position += aligned(size)
        outputs = tuple([tensors[planned.position] for planned in plan.outputs])
        return Answer(model=model, outputs=outputs, release=lambda: self.free(arena))

    def free(self, arena: Arena) -> None:
        """Give the memory back; the worker must not hold it any more."""
        assert not self.held
        for slot in (self.slot, self.out_slot):
            if slot is not None:
                arena.free(slot)
        self.slot = self.out_slot = None


def wanted_outputs(plan: RequestPlan) -> tuple[int, ...]:
    """Positions of the outputs to compute, ascending."""
    return tuple(sorted(planned.position for planned in plan.outputs))


def expected_output_bytes(served: Served, plan: RequestPlan) -> int:
    """Room for the outputs: exact where the graph fixes their size, else from what was seen so far."""
    rows = max(plan.rows, 1)
    return sum(aligned(served.row_bytes[planned.position] * rows) for planned in plan.outputs)


def learn_output_bytes(served: Served, plan: RequestPlan, sizes: Sequence[int]) -> None:
    """Remember the largest outputs seen, so that the next request reserves enough at once."""
    rows = max(plan.rows, 1)
    for position, size in zip(wanted_outputs(plan), sizes, strict=True):
        per_row = -(-size // rows)
        if per_row > served.row_bytes[position]:
            served.row_bytes[position] = per_row
