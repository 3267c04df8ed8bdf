"""A request inside the engine: what it asks, where its tensors lie, how far it came. Owner: the engine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from appliance.domain.errors import ApplianceError, QueueFull, WorkerDied
from appliance.domain.inference import Answer, OutputTensor, RequestPlan
from appliance.engine.port import BUFFERS, Submission, Tensor
from appliance.engine.requests.similarity import Kept
from appliance.engine.versions.layout import UNKNOWN, Expectation
from appliance.engine.versions.served import Served, TrafficSplit
from appliance.workers.arena import Arena, Slot, aligned
from appliance.workers.memory_object import MemoryObject
from appliance.workers.port import RunItem, RunResult


class RequestMemory:
    """``sizes`` are the bytes of each input of the model. Outputs go to ``out_offset``, within ``out_capacity`` bytes;
    ``out_slot`` is a place of their own, for outputs that turned out larger than expected."""

    __slots__ = ("out_capacity", "out_offset", "out_slot", "sizes", "slot")

    def __init__(self) -> None:
        self.sizes: tuple[int, ...] = ()
        self.slot: Slot | None = None
        self.out_slot: Slot | None = None
        self.out_offset = self.out_capacity = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all inputs."""
        return sum(self.sizes)

    def store(self, arena: Arena, slot: Slot, tensors: Sequence[Tensor], span: int) -> ApplianceError | None:
        """Copy inputs, which take ``span`` bytes with alignment, into a slot; the outputs go behind them. Gives why one
        cannot be had."""
        self.slot = slot
        view = slot.view(span)
        position = 0
        for tensor, size in zip(tensors, self.sizes, strict=True):
            if isinstance(tensor, BUFFERS):
                view[position : position + size] = tensor
            elif (error := tensor.read_into(view[position : position + size])) is not None:
                return error
            position += aligned(size)
        self.place_outputs(arena, span)
        return None

    def place_outputs(self, arena: Arena, span: int) -> None:
        """Have outputs go behind the inputs, as they were to at first; a place of their own is given back."""
        slot = self.slot
        assert slot is not None
        if self.out_slot is not None:
            arena.free(self.out_slot)
            self.out_slot = None
        self.out_offset, self.out_capacity = slot.offset + span, slot.size - span

    def make_room(self, arena: Arena, nbytes: int) -> bool:
        """Find outputs a place of their own beside the inputs; False when there is no room."""
        assert self.slot is not None
        self.out_slot = arena.allocate(nbytes, self.slot.memory)
        if self.out_slot is None:
            return False
        self.out_offset, self.out_capacity = self.out_slot.offset, self.out_slot.size
        return True

    def move(self, arena: Arena, memory: MemoryObject, span: int) -> None:
        """Have all of it be in ``memory`` from now on, with the inputs."""
        for slot, nbytes in ((self.slot, span), (self.out_slot, 0)):
            if slot is not None:
                arena.move(slot, memory, nbytes)

    def free(self, arena: Arena) -> None:
        """Give the memory back."""
        for slot in (self.slot, self.out_slot):
            if slot is not None:
                arena.free(slot)
        self.slot = self.out_slot = None


NOT_RUN: Final = (0, 0, 0)


class Batch:
    """Requests that a worker was given together. ``stages_ns`` are gather, run and scatter, once it came back."""

    __slots__ = ("dispatched_ns", "rows", "served", "stages_ns", "worker")

    def __init__(self, worker: int, served: Served, dispatched_ns: int) -> None:
        self.worker = worker
        self.served = served
        self.dispatched_ns = dispatched_ns
        self.rows = 0
        self.stages_ns = NOT_RUN

    @property
    def is_back(self) -> bool:
        """Whether it ran to its end."""
        return self.stages_ns is not NOT_RUN


class Mirror:
    """What a request and its ``copy``, which runs on a version on trial by ``plan``, share: whichever is answered first
    leaves what is compared in ``kept``."""

    __slots__ = ("copy", "kept", "plan", "split")

    def __init__(self, split: TrafficSplit, plan: RequestPlan) -> None:
        self.split = split
        self.plan = plan
        self.copy: Request | None = None
        self.kept: Kept | WorkerDied | None = None


class Death:
    """Of a worker of ``served`` that ran ``open`` requests, which are yet to end; ``alone``: one of them, so that it
    died of that. ``answered``: some were, by another version; ``fallen``: how many of those are yet to count as
    failures of ``served``; ``overtaken``: another worker of it has died since; ``of_request``: another worker died with
    one; ``suspects``: the clients of those of which nothing will be known."""

    __slots__ = (
        "alone",
        "answered",
        "detail",
        "fallen",
        "of_request",
        "open",
        "overtaken",
        "served",
        "suspects",
    )

    def __init__(self, served: Served, detail: str, requests: int, *, alone: bool) -> None:
        self.served = served
        self.detail = detail
        self.open = requests
        self.alone = alone
        self.answered = self.of_request = self.overtaken = False
        self.fallen = 0
        self.suspects: set[str] = set()


class Past:
    """Of a request: the version that it ``fell_from`` because it failed there; the ``death`` of a worker for which it
    may be to blame; ``suspect``: its client may be, for another one."""

    __slots__ = ("death", "fell_from", "suspect")

    def __init__(self) -> None:
        self.fell_from: Served | None = None
        self.death: Death | None = None
        self.suspect = False


class Request:
    """One accepted request; ``telemetry`` reads it as a Traced. ``held``: a worker may touch its memory. ``done``: its
    outcome was given. ``batch`` is the one that it was given to a worker in last. ``mirror`` is what it has to do with
    a version whose answers are only compared; ``past`` is what is held against it."""

    __slots__ = (
        "attempts",
        "batch",
        "cancelled",
        "deadline_ns",
        "done",
        "past",
        "handle",
        "held",
        "layout",
        "memory",
        "mirror",
        "plan",
        "served",
        "batch_key",
        "submission",
    )

    def __init__(self, handle: int, submission: Submission, served: Served, deadline_ns: int) -> None:
        self.handle = handle
        self.submission = submission
        self.plan = submission.plan
        self.served = served
        self.layout = served.layout(submission.plan)
        self.deadline_ns = deadline_ns
        self.batch_key = -1
        self.memory = RequestMemory()
        self.attempts = submission.attempts
        self.batch: Batch | None = None
        self.mirror: Mirror | None = None
        self.past = Past()
        self.held = self.cancelled = self.done = False

    # --- as telemetry reads it

    @property
    def request_id(self) -> str:
        """The caller's id, or ""."""
        return self.submission.request_id

    @property
    def client(self) -> str:
        """The caller, by its certificate, or ""."""
        return self.submission.client

    @property
    def arrived_ns(self) -> int:
        """When it came in."""
        return self.submission.arrived_ns

    @property
    def worker(self) -> int:
        """The worker that had it last; -1: none."""
        return -1 if self.batch is None else self.batch.worker

    @property
    def dispatched_ns(self) -> int:
        """When a worker got it last; 0: never."""
        return 0 if self.batch is None else self.batch.dispatched_ns

    @property
    def stages_ns(self) -> tuple[int, int, int]:
        """Gather, run and scatter of its batch."""
        return NOT_RUN if self.batch is None else self.batch.stages_ns

    @property
    def batch_rows(self) -> int:
        """Rows of the batch that it ran in; 0: it has not."""
        return self.batch.rows if self.batch is not None and self.batch.is_back else 0

    # --- what it is for

    def aim(self, plan: RequestPlan, served: Served) -> None:
        """Have it be for ``served`` from now on, by ``plan``; its tensors lie as they lay."""
        self.plan, self.served = plan, served
        self.layout = served.layout(plan)

    @property
    def is_mirrored(self) -> bool:
        """Whether it only runs for comparison with another."""
        return self.mirror is not None and self.mirror.copy is self

    # --- its tensors

    def measure(self, tensors: Sequence[Tensor]) -> None:
        """Note how many bytes each input of the model has; one that is left out has none."""
        self.memory.sizes = self.layout.sizes or tuple(map(len, self._ordered(tensors)))

    def _ordered(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensors[planned.source] if planned.source >= 0 else b"" for planned in self.plan.inputs]

    def store(self, arena: Arena, tensors: Sequence[Tensor]) -> ApplianceError | None:
        """Copy the raw inputs, measured before, into memory; gives why not, and holds none of it then."""
        span, group = self._input_bytes(), self.served.placed.group
        slot = arena.allocate(span + self._room_for_outputs(arena), arena.of_group(group))
        if slot is None:
            return QueueFull(
                "Exceeds maximum queue size: no memory left for tensors (arena.memory_limit_bytes)"
            )
        error = self.memory.store(arena, slot, self._ordered(tensors), span)
        if error is not None:
            self.memory.free(arena)
        return error

    def stored(self, count: int) -> list[Tensor]:
        """The ``count`` tensors that it came with, in that order, where they were stored."""
        slot, position = self.memory.slot, 0
        assert slot is not None
        view = slot.view(self._input_bytes())
        found: list[Tensor] = [b""] * count
        for planned, size in zip(self.plan.inputs, self.memory.sizes, strict=True):
            if planned.source >= 0:
                found[planned.source] = view[position : position + size]
            position += aligned(size)
        return found

    def bring(self, arena: Arena, memory: MemoryObject) -> None:
        """Have its tensors lie where the worker that is to run it can reach them. Most were put there at once; the
        others waited for a model, or are tried again elsewhere."""
        slot = self.memory.slot
        if slot is not None and slot.memory is not memory:
            self.memory.move(arena, memory, self._input_bytes())

    def fits(self, arena: Arena) -> bool:
        """Whether there is room for it now, measured before."""
        return arena.has_room(self._input_bytes() + self._room_for_outputs(arena))

    def place_outputs(self, arena: Arena) -> None:
        """Have its outputs go behind its inputs, as they were to at first."""
        self.memory.place_outputs(arena, self._input_bytes())

    def item(self) -> RunItem:
        """What the worker needs to know."""
        layout, memory = self.layout, self.memory
        assert memory.slot is not None
        return RunItem(
            self.handle,
            self.plan.rows,
            layout.shapes,
            memory.sizes,
            memory.slot.offset,
            layout.wanted,
            memory.out_offset,
            memory.out_capacity,
        )

    def answer(self, arena: Arena, result: RunResult) -> Answer:
        """The outputs where the worker left them, in the order in which they were asked for."""
        plan = self.plan
        model, wanted = plan.model, self.layout.wanted
        slot = self.memory.out_slot or self.memory.slot
        assert slot is not None
        view = slot.memory.view(self.memory.out_offset, self.memory.out_capacity)
        position = 0
        tensors: list[OutputTensor] = []
        for index, shape, size in zip(wanted, result.shapes, result.sizes, strict=True):
            spec = model.outputs[index]
            tensors.append(OutputTensor(spec.name, spec.datatype, shape, view[position : position + size]))
            position += aligned(size)
        if len(tensors) > 1:
            tensors = [tensors[wanted.index(planned.position)] for planned in plan.outputs]
        # Not ``self``: whoever holds the answer is known to the request, and no collector is to be waited for.
        return Answer(model=model, outputs=tuple(tensors), release=partial(self.memory.free, arena))

    def learn_output_bytes(self, sizes: Sequence[int]) -> None:
        """Remember what its outputs took, so that the next request like it reserves enough at once."""
        if self.layout.output_span == UNKNOWN:
            self._expectation().learn(self.layout.wanted, self.plan.rows, sizes)

    def _input_bytes(self) -> int:
        layout = self.layout
        return layout.input_span if layout.sizes else sum(map(aligned, self.memory.sizes))

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
        return self.layout.expectation or self.served.expectations.of(self.plan, self.memory.nbytes)

    def free(self, arena: Arena) -> None:
        """Give the memory back; the worker must not hold it any more."""
        assert not self.held
        self.memory.free(arena)
