"""Run what the native front end gives a worker directly, without a message for each request.

The ring forms the batches, copies their tensors and tells their ends; what is left to do here is to run. A request
alone runs where it lies, a batch in scratch memory; either way through a run that its session has prepared for those
addresses. What is prepared is kept with the ring, which calls it by itself from then on: so hardly more than the model
is paid for, and Python only sees what is not prepared yet or cannot be. Whatever is not exactly as its template says -
outputs of other shapes, a failure, a model that is not there - is handed over to the engine, which runs it again and
has words.
"""

from __future__ import annotations

import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from appliance.domain.errors import RunFailed
from appliance.domain.tensor import ALIGNMENT, aligned
from appliance.runtimes.runtime import Feed, OverlappedRun, Place, Produced, Region, Session, region_maker
from appliance.workers.child.execution import SCRATCH_KEPT_BYTES, LoadedModel
from appliance.workers.child.tensors import Scratch, feeds_from, span
from appliance.workers.lane import RECEIVE_BYTES, FrameReader, LaneClosed, SocketWorkerLane
from appliance.workers.messages import TO_WORKER, Forget, FromWorker, ToWorker
from appliance.workers.port import Learn, Shape

if TYPE_CHECKING:
    from edge_appliance_native import WorkerRing

OK: Final = 0
HAND_OVER: Final = 1
MAIL: Final = 1
SUBMISSIONS: Final = 2
LEFT: Final = 2
"""What the ring tells of a batch for which no run is kept."""
IDLE_MS: Final = 2000
"""How long an idle worker sleeps before it looks whether the daemon is still there."""
PREPARED_MAX: Final = 1024
FINISH_BATCHES_MAX: Final = 1024


class _Unexpected(Exception):
    """A run that ended otherwise than its template says."""


class _Merged(NamedTuple):
    """A batch of one kind and so many rows, in scratch memory."""

    source: Region
    feeds: tuple[Feed | None, ...]
    in_bytes: int
    place: Place
    shapes: tuple[Shape, ...]
    sizes: tuple[int, ...]


class LeasedRuns:
    """The request templates that a worker has, and their runs. Owner of scratch memory of its own, which runs that the
    ring keeps refer to."""

    def __init__(self, ring: WorkerRing, arena: Region) -> None:
        self._ring = ring
        self._arena = arena
        self._models: dict[int, LoadedModel] = {}
        self._templates: dict[int, Learn] = {}
        self._gathered = Scratch(), Scratch()
        self._spread = Scratch(), Scratch()
        """Two of each for what a device runs by itself: the second ones for the batch that follows."""

    # --- what is known

    def add(self, model: int, loaded: LoadedModel) -> None:
        """A model that plans may name."""
        self._models[model] = loaded

    def drop(self, model: int) -> None:
        """A model that is about to be closed. Its plans are handed over until they are forgotten."""
        self._models.pop(model, None)
        self._ring.drop_runs()

    def learn(self, template: Learn) -> None:
        """Know a plan. One that cannot be is not, and its requests are handed over."""
        sides = template.sizes, template.out_sizes
        max_rows = min(template.max_rows, *(_rows_kept(sizes, template.rows) for sizes in sides))
        try:
            self._ring.add_template(
                template.plan, template.kind, template.rows, max_rows, template.sizes, template.out_sizes
            )
        except (ValueError, OverflowError):
            return
        self._templates[template.plan] = template._replace(max_rows=max_rows)

    def forget(self, plans: Sequence[int]) -> None:
        """Know plans no more."""
        for plan in plans:
            self._ring.drop_template(plan)
            self._templates.pop(plan, None)

    # --- serving

    def serve(self, timeout_ms: int) -> None:
        """Run what comes, until mail has come or nothing did for ``timeout_ms``."""
        while self._ring.serve(timeout_ms) == LEFT:
            self._serve_left()

    def finish(self) -> None:
        """Run what the front end has submitted before the worker leaves; within bounds, for it may go on."""
        for _ in range(FINISH_BATCHES_MAX):
            if not self.serve_one() and not self._ring.wait(0) & SUBMISSIONS:
                return

    def serve_one(self) -> bool:
        """Run one batch; false when there is none, or mail goes first."""
        told = self._ring.serve_one()
        if told == LEFT:
            self._serve_left()
        return told != 0

    def _serve_left(self) -> None:
        """Run a batch for which nothing is prepared, and have that prepared where the session can."""
        batch = self._ring.take()
        if batch is None:
            return
        kind, plan, rows, count, offset, out_offset = batch
        begin = gathered = ran = time.monotonic_ns()
        try:
            if count == 1:
                self._run_alone(kind, plan, offset, out_offset)
                ran = time.monotonic_ns()
            else:
                merged = self._lay_out(plan, rows)
                self._ring.gather(merged.source.address, merged.in_bytes)
                gathered = time.monotonic_ns()
                self._run_merged(kind, plan, rows, merged)
                ran = time.monotonic_ns()
                self._ring.scatter(merged.place.region.address, merged.place.capacity)
        except Exception:  # noqa: BLE001 - whatever it is, the run that follows it says it
            self._ring.drop_runs(kind)
            self._ring.complete(HAND_OVER, 0, 0, 0)
        else:
            self._ring.complete(OK, gathered - begin, ran - gathered, time.monotonic_ns() - ran)

    # --- runs that are not prepared, and preparing them

    def _known(self, plan: int) -> tuple[Learn, LoadedModel]:
        template = self._templates[plan]
        model = self._models.get(template.model)
        if model is None:
            raise _Unexpected(f"model {template.model} is not loaded")
        return template, model

    def _run_alone(self, kind: int, plan: int, offset: int, out_offset: int) -> None:
        """Run a request in its place, and have that prepared where the session can."""
        template, model = self._known(plan)
        feeds = feeds_from(offset, template.shapes, template.sizes)
        place = Place(self._arena, out_offset, span(template.out_sizes))
        produced = model.session.run(self._arena, feeds, template.wanted, place)
        _settle(produced, template.out_shapes, template.out_sizes, place)
        run = model.session.prepared(self._arena, feeds, template.wanted, place)
        if run is not None:
            self._bound(self._ring.keep_alone(kind, plan, (offset, out_offset), run))

    def _lay_out(self, plan: int, rows: int) -> _Merged:
        """Where the tensors of a batch go. Prepared runs end with the scratch memory that they were prepared for."""
        template = self._templates[plan]
        sizes = tuple(size // template.rows * rows for size in template.sizes)
        out_sizes = tuple(size // template.rows * rows for size in template.out_sizes)
        shapes = tuple(None if shape is None else (rows, *shape[1:]) for shape in template.shapes)
        in_bytes, out_bytes = span(sizes), span(out_sizes)
        model = self._models.get(template.model)
        make = None if model is None else region_maker(model.session)
        if not (self._gathered[0].holds(in_bytes, make) and self._spread[0].holds(out_bytes, make)):
            self._ring.drop_runs()
        source = self._gathered[0].at_least(in_bytes, make)
        return _Merged(
            source,
            feeds_from(0, shapes, sizes),
            in_bytes,
            Place(self._spread[0].at_least(out_bytes, make), 0, out_bytes),
            tuple((rows, *shape[1:]) for shape in template.out_shapes),
            out_sizes,
        )

    def _run_merged(self, kind: int, plan: int, rows: int, merged: _Merged) -> None:
        """Run a batch in scratch memory, and have that prepared where the session can."""
        template, model = self._known(plan)
        source, feeds, in_bytes, place, shapes, sizes = merged
        _settle(model.session.run(source, feeds, template.wanted, place), shapes, sizes, place)
        run = model.session.prepared(source, feeds, template.wanted, place)
        if isinstance(run, OverlappedRun) and self._keep_overlapped(kind, rows, template, model.session):
            return
        if run is not None:
            outputs = place.region.address, place.capacity
            self._bound(self._ring.keep_merged(kind, rows, (source.address, in_bytes), outputs, run))

    def _keep_overlapped(self, kind: int, rows: int, template: Learn, session: Session) -> bool:
        """Have batches of so many rows run beside the gathering of the next ones. Inputs begin where they would in the
        largest batch, as it is not known yet how large each will be."""
        largest = [size // template.rows * template.max_rows for size in template.sizes]
        out_sizes = [size // template.rows * rows for size in template.out_sizes]
        in_bytes, out_bytes = span(largest), span(out_sizes)
        room = span([size // template.rows * template.max_rows for size in template.out_sizes])
        make = region_maker(session)
        if not all(
            each.holds(nbytes, make)
            for scratch, nbytes in ((self._gathered, in_bytes), (self._spread, room))
            for each in scratch
        ):
            self._ring.drop_runs()
        try:
            sources = [each.at_least(in_bytes, make) for each in self._gathered]
            places = [Place(each.at_least(room, make), 0, out_bytes) for each in self._spread]
        except RunFailed:
            return False  # the largest batches take more pinned memory than there is
        starts = [sum(map(aligned, largest[:column])) for column in range(len(largest))]
        shapes = [None if shape is None else (rows, *shape[1:]) for shape in template.shapes]
        feeds = tuple(
            None if shape is None else Feed(shape, start, size // template.rows * rows)
            for shape, start, size in zip(shapes, starts, template.sizes, strict=True)
        )
        runs = [
            session.prepared(source, feeds, template.wanted, place)
            for source, place in zip(sources, places, strict=True)
        ]
        if not all(isinstance(run, OverlappedRun) for run in runs):
            return False
        first, second = (source.address for source in sources)
        self._ring.keep_turns(kind, template.max_rows, starts, in_bytes, (first, second))
        for turn, (run, place) in enumerate(zip(runs, places, strict=True)):
            outputs = place.region.address, place.capacity
            self._bound(self._ring.keep_overlapped(kind, rows, turn, outputs, cast(OverlappedRun, run)))
        return True

    def _bound(self, kept: int) -> None:
        """The ring keeps so many runs now. Those that are still wanted are soon prepared again."""
        if kept > PREPARED_MAX:
            self._ring.drop_runs()


def _rows_kept(sizes: Sequence[int], rows: int) -> int:
    """How many rows at most have room in scratch memory that is kept, where tensors of ``rows`` rows have these sizes.
    The same for all plans of a kind: their largest batches have to lie alike."""
    row_bytes = sum(sizes) // max(rows, 1)
    return (SCRATCH_KEPT_BYTES - ALIGNMENT * len(sizes)) // max(row_bytes, 1)


def _settle(produced: Produced, shapes: tuple[Shape, ...], sizes: tuple[int, ...], place: Place) -> None:
    """Have the outputs in their place. Raises _Unexpected when they are not what the template says."""
    if produced.shapes != shapes or produced.sizes != sizes:
        raise _Unexpected(f"outputs of shapes {produced.shapes}, where the template has {shapes}")
    position = place.offset
    for part in produced.parts or ():
        place.region.view[position : position + len(part)] = part
        position += aligned(len(part))


class RingWorkerLane:
    """WorkerLane over a socket and the rings of ``leased``, which it has served while no message is there.

    Mail goes first. Between two messages one batch of the ring runs, so that an engine that always has mail does not
    starve what it leased; plans are learned as soon as they are read, so that no submission overtakes its plan. Idle,
    the process sleeps on the memory that it shares with the daemon, not on the socket: what is written there is told in
    the memory.
    """

    def __init__(self, end: socket.socket, ring: WorkerRing, leased: LeasedRuns) -> None:
        self._socket = end
        self._answers = SocketWorkerLane(end)
        self._reader = FrameReader(TO_WORKER)
        self._messages: deque[ToWorker] = deque()
        self._ring = ring
        self._leased = leased
        self._closed = False

    def take(self) -> ToWorker:
        """The next message that is not about plans. Raises LaneClosed when the daemon is gone."""
        ring, leased = self._ring, self._leased
        ready = ring.wait(0)
        if ready & MAIL:
            self._read()
        if ready & SUBMISSIONS:
            leased.serve_one()
        while not self._messages:
            if self._closed:
                raise LaneClosed("the daemon is gone")
            leased.serve(IDLE_MS)
            self._read()
        return self._messages.popleft()

    def poll(self) -> ToWorker | None:
        """See WorkerLane; batches of the ring go first."""
        ready = self._ring.wait(0)
        if ready & MAIL:
            self._read()
        return None if ready & SUBMISSIONS or not self._messages else self._messages.popleft()

    def complete(self, message: FromWorker) -> None:
        """Answer a message. Raises LaneClosed when the daemon is gone."""
        self._answers.complete(message)

    def _read(self) -> None:
        """Read until nothing is left: mail is told once."""
        while not self._closed:
            try:
                data = self._socket.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if not data:
                self._closed = True
            for message in cast(list[ToWorker], self._reader.feed(data)):
                if type(message) is Learn:
                    self._leased.learn(message)
                elif type(message) is Forget:
                    self._leased.forget(message.plans)
                else:
                    self._messages.append(message)


def import_native() -> bool:
    """Import the native package once, for all workers that are forked after this; whether this was the first time. It
    is optional: raises ImportError."""
    if "edge_appliance_native" in sys.modules:
        return False
    import edge_appliance_native  # noqa: F401

    return True


def open_ring_lane(
    end: socket.socket, memory: int, doorbell: int, arena: Region
) -> tuple[RingWorkerLane, LeasedRuns]:
    """The lane of a worker whose rings lie behind descriptor ``memory``. Raises OSError when they do not."""
    from edge_appliance_native import WorkerRing  # as above

    ring = WorkerRing(memory, doorbell, arena.view)
    leased = LeasedRuns(ring, arena)
    return RingWorkerLane(end, ring, leased), leased
