"""Run a batch inside a worker: gather, run, scatter.

A batch of one runs where it lies, without a copy. A larger one is gathered into scratch memory row after row, run once,
and its outputs are split by rows into each request's place. When a larger batch fails, its requests are run one by one,
so that one bad request fails alone. Outputs that do not fit are held until they are fetched, within bounds.
A batch that a device runs by itself, as it ran one like it, is begun in other memory before the one before it has
ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from appliance.domain.errors import ApplianceError, InvalidRequest, RunFailed
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype, aligned
from appliance.runtimes.runtime import Feed, OverlappedRun, Place, Produced, Region, Session, region_maker
from appliance.workers.child.tensors import Scratch, feeds_from, span
from appliance.workers.port import (
    ERROR_CHARACTERS_MAX,
    Fetch,
    ItemStatus,
    RunItem,
    RunResult,
    Shape,
)

HELD_BYTES_MAX: Final = 256 << 20
HELD_ITEMS_MAX: Final = 1024
SCRATCH_KEPT_BYTES: Final = 64 << 20
OVERLAPPED_MAX: Final = 256
"""Runs that are kept prepared; those that are still wanted are soon prepared again."""
KEEN_PART: Final = 8
KEEN_NS: Final = 100_000
"""A batch should end within an eighth of the time that the last like it took of when that is over, or within this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A version and its session."""

    version: ModelVersion
    session: Session


class _Outputs(NamedTuple):
    """Outputs of one request or one batch with the bytes of each."""

    shapes: tuple[Shape, ...]
    sizes: tuple[int, ...]
    parts: Sequence[memoryview]


class Times(NamedTuple):
    """Nanoseconds of the stages of a run."""

    gather_ns: int
    run_ns: int
    scatter_ns: int


class _Kind(NamedTuple):
    """What is the same of all batches that one prepared run can run; ``model`` is whose it is in this process."""

    model: int
    rows: int
    shapes: tuple[Shape | None, ...]
    wanted: tuple[int, ...]


class _Ready(NamedTuple):
    """A run of batches of one kind and so many rows: from ``source`` to ``place``, where it leaves ``shapes``."""

    run: OverlappedRun
    source: Region
    place: Place
    shapes: tuple[Shape, ...]
    sizes: tuple[int, ...]


class BegunBatch(NamedTuple):
    """A batch that a device runs by itself."""

    model: LoadedModel
    items: tuple[RunItem, ...]
    wanted: tuple[int, ...]
    key: tuple[_Kind, int]
    ready: _Ready
    gather_ns: int
    begun_ns: int

    def ended(self) -> bool:
        """Whether waiting for it would be over at once."""
        try:
            return self.ready.run.ended()
        except Exception:  # noqa: BLE001 - ``finish`` raises it as well
            return True


class Executor:
    """Runs batches whose tensors lie in ``arena``. Owner of the scratch memory and of the held outputs."""

    def __init__(self, arena: Region) -> None:
        self._arena = arena
        self._gathered = Scratch(), Scratch()
        self._spread = Scratch(), Scratch()
        """The second of each for a batch that is begun while another runs in the first, and the other way round."""
        self._turn = 0
        self._ready: dict[tuple[_Kind, int], _Ready] = {}
        self._took_ns: dict[tuple[_Kind, int], int] = {}
        self._ended_ns = 0
        self._held: dict[int, _Outputs] = {}
        self._held_bytes = 0

    def run(self, model: LoadedModel, items: tuple[RunItem, ...]) -> tuple[tuple[RunResult, ...], Times]:
        """The results of a batch in the order of its items, and how long its stages took; never raises for what a
        runtime or a request does wrong."""
        if len(items) == 1:
            result, times = self._run_alone(model, items[0])
            return (result,), times
        try:
            return self._run_merged(model, items)
        except Exception:  # noqa: BLE001 - the runs one by one say whose fault it was
            return self._run_one_by_one(model, items)

    def begin(self, model: LoadedModel, items: tuple[RunItem, ...]) -> BegunBatch | None:
        """Begin a batch that a device runs by itself, at most one behind another; None where it has to be run. They are
        finished in the order in which they were begun."""
        turn, wanted = 1 - self._turn, _union(items)
        key = _kind(model, items, wanted), turn
        ready = self._ready.get(key) if len(items) > 1 else None
        if ready is None:
            return None
        begin_ns = time.monotonic_ns()
        try:
            self._gather(items, sum(item.rows for item in items), ready.source)
            begun_ns = time.monotonic_ns()
            ready.run.begin()
        except Exception:  # noqa: BLE001 - the run that follows says what it was
            self._forget_ready(model)
            return None
        self._turn = turn
        return BegunBatch(model, items, wanted, key, ready, begun_ns - begin_ns, begun_ns)

    def ends_about(self, begun: BegunBatch) -> range:
        """When on the monotonic clock the batch that is finished next should end, by how long the last like it took."""
        took_ns = self._took_ns.get(begun.key, 0)
        end_ns = max(begun.begun_ns, self._ended_ns) + took_ns
        part_ns = max(took_ns // KEEN_PART, KEEN_NS)
        return range(end_ns - part_ns, end_ns + part_ns)

    def finish(self, begun: BegunBatch) -> tuple[tuple[RunResult, ...], Times]:
        """Wait for a batch that was begun; as ``run``."""
        model, items, wanted, key, ready, gather_ns, begun_ns = begun
        try:
            ready.run.finish()
            before_ns, self._ended_ns = self._ended_ns, time.monotonic_ns()
            view, offset = ready.place.region.view, ready.place.offset
            whole = _Outputs(ready.shapes, ready.sizes, _parts(view[offset:], ready.sizes))
            rows = sum(item.rows for item in items)
            results = self._scatter(model.version, items, wanted, whole, rows)
        except Exception:  # noqa: BLE001 - as in ``run``
            self._forget_ready(model)
            return self._run_one_by_one(model, items)
        run_ns = self._took_ns[key] = self._ended_ns - max(begun_ns, before_ns)
        return results, Times(gather_ns, run_ns, time.monotonic_ns() - self._ended_ns)

    def _forget_ready(self, model: LoadedModel) -> None:
        """Keep no runs of a model of which one failed; those of others in this process go on. Another thread may
        ``drop`` all meanwhile."""
        for key in list(self._ready):
            if key[0].model == id(model):
                self._ready.pop(key, None)
                self._took_ns.pop(key, None)

    def drop(self) -> None:
        """Keep no runs of sessions, one of which is about to be closed."""
        self._ready.clear()
        self._took_ns.clear()

    def fetch(self, fetch: Fetch) -> RunResult | None:
        """Store held outputs at a larger place; None when they were only to be forgotten."""
        outputs = self.forget(fetch.ticket)
        if fetch.out_capacity == 0:
            return None
        if outputs is None:
            reason = "the outputs are no longer held"
            return RunResult(fetch.ticket, ItemStatus.FAILED, (), (), 0, reason)
        return self._store(fetch.ticket, fetch.out_offset, fetch.out_capacity, outputs)

    def forget(self, ticket: int) -> _Outputs | None:
        """Let go of held outputs, to be stored now."""
        outputs = self._held.pop(ticket, None)
        if outputs is not None:
            self._held_bytes -= sum(outputs.sizes)
        return outputs

    def _run_one_by_one(
        self, model: LoadedModel, items: tuple[RunItem, ...]
    ) -> tuple[tuple[RunResult, ...], Times]:
        ended = [self._run_alone(model, item) for item in items]
        stages = zip(*(times for _, times in ended), strict=True)
        return tuple(result for result, _ in ended), Times(*map(sum, stages))

    def _run_alone(self, model: LoadedModel, item: RunItem) -> tuple[RunResult, Times]:
        begin = time.monotonic_ns()
        gathered = ran = begin
        try:
            place = Place(self._arena, item.out_offset, item.out_capacity)
            feeds = feeds_from(item.offset, item.shapes, item.sizes)
            gathered = time.monotonic_ns()
            produced = model.session.run(self._arena, feeds, item.outputs, place)
            ran = time.monotonic_ns()
            if model.version.max_batch_size > 0:
                check_rows(model.version, item.outputs, produced.shapes, item.rows)
            result = self._finish_alone(item, produced)
        except Exception as problem:  # noqa: BLE001 - whatever goes wrong is this request's answer
            status = ItemStatus.INVALID if isinstance(problem, InvalidRequest) else ItemStatus.FAILED
            result = RunResult(item.ticket, status, (), (), 0, reason_of(problem))
        end = time.monotonic_ns()
        return result, Times(gathered - begin, max(ran - gathered, 0), end - max(ran, gathered))

    def _finish_alone(self, item: RunItem, produced: Produced) -> RunResult:
        if produced.parts is None:
            return RunResult(item.ticket, ItemStatus.OK, produced.shapes, produced.sizes, 0, "")
        outputs = _Outputs(produced.shapes, produced.sizes, produced.parts)
        return self._store(item.ticket, item.out_offset, item.out_capacity, outputs)

    def _run_merged(
        self, model: LoadedModel, items: tuple[RunItem, ...]
    ) -> tuple[tuple[RunResult, ...], Times]:
        begin = time.monotonic_ns()
        rows = sum(item.rows for item in items)
        make = region_maker(model.session)
        totals = [sum(item.sizes[column] for item in items) for column in range(len(items[0].sizes))]
        source = self._gathered[0].at_least(span(totals), make)
        feeds = self._gather(items, rows, source)
        wanted = _union(items)
        spread = self._spread[0].at_least(1, make)
        gathered = time.monotonic_ns()
        produced = model.session.run(source, feeds, wanted, Place(spread, 0, len(spread.view)))
        ran = time.monotonic_ns()
        check_rows(model.version, wanted, produced.shapes, rows)
        whole = self._whole(produced, make)
        results = self._scatter(model.version, items, wanted, whole, rows)
        if make is not None:
            self._prepare(model, items, wanted, feeds, produced)
        for each in (*self._gathered, *self._spread):
            each.drop_beyond(SCRATCH_KEPT_BYTES)
        return results, Times(gathered - begin, ran - gathered, time.monotonic_ns() - ran)

    def _prepare(
        self,
        model: LoadedModel,
        items: tuple[RunItem, ...],
        wanted: tuple[int, ...],
        feeds: tuple[Feed | None, ...],
        produced: Produced,
    ) -> None:
        """Have the next batch like this one begun in either memory, where the session's device can do that and the
        memory is kept. This one has run, whatever comes of that."""
        in_bytes = max((feed.offset + aligned(feed.nbytes) for feed in feeds if feed is not None), default=0)
        out_bytes = span(produced.sizes)
        if max(in_bytes, out_bytes) > SCRATCH_KEPT_BYTES:
            return
        try:
            self._keep_ready(model, _kind(model, items, wanted), wanted, feeds, in_bytes, produced)
        except Exception:  # noqa: BLE001 - the next one runs as this one did
            self._forget_ready(model)

    def _keep_ready(
        self,
        model: LoadedModel,
        kind: _Kind,
        wanted: tuple[int, ...],
        feeds: tuple[Feed | None, ...],
        in_bytes: int,
        produced: Produced,
    ) -> None:
        make, out_bytes = region_maker(model.session), span(produced.sizes)
        room = ((self._gathered, in_bytes), (self._spread, out_bytes))
        if len(self._ready) >= OVERLAPPED_MAX or not all(
            each.holds(nbytes, make) for scratch, nbytes in room for each in scratch
        ):
            self.drop()
        for turn, (gathered, spread) in enumerate(zip(self._gathered, self._spread, strict=True)):
            source = gathered.at_least(in_bytes, make)
            place = Place(spread.at_least(out_bytes, make), 0, out_bytes)
            run = model.session.prepared(source, feeds, wanted, place)
            if isinstance(run, OverlappedRun):
                self._ready[kind, turn] = _Ready(run, source, place, produced.shapes, produced.sizes)

    def _gather(self, items: tuple[RunItem, ...], rows: int, target: Region) -> tuple[Feed | None, ...]:
        """Copy all items' inputs, input after input, row after row."""
        columns = len(items[0].sizes)
        totals = [sum(item.sizes[column] for item in items) for column in range(columns)]
        feeds: list[Feed | None] = []
        starts: list[int] = []
        position = 0
        for shape, total in zip(items[0].shapes, totals, strict=True):
            feeds.append(None if shape is None else Feed((rows, *shape[1:]), position, total))
            starts.append(position)
            position += aligned(total)
        view, arena = target.view, self._arena.view
        for item in items:
            offset = item.offset
            for column, size in enumerate(item.sizes):
                start = starts[column]
                view[start : start + size] = arena[offset : offset + size]
                starts[column] = start + size
                offset += aligned(size)
        return tuple(feeds)

    def _whole(self, produced: Produced, make: Callable[[int], Region] | None) -> _Outputs:
        """The batch's outputs; when they were not written in place, room is made so that the next time they are."""
        if produced.parts is not None:
            needed = span(produced.sizes)
            if needed <= SCRATCH_KEPT_BYTES:
                self._spread[0].at_least(needed, make)
            return _Outputs(produced.shapes, produced.sizes, produced.parts)
        parts = _parts(self._spread[0].at_least(1).view, produced.sizes)
        return _Outputs(produced.shapes, produced.sizes, parts)

    def _scatter(
        self,
        version: ModelVersion,
        items: tuple[RunItem, ...],
        wanted: tuple[int, ...],
        whole: _Outputs,
        rows: int,
    ) -> tuple[RunResult, ...]:
        cuts = [
            _row_cuts(version.outputs[index].datatype, part, shape, items, rows)
            for index, part, shape in zip(wanted, whole.parts, whole.shapes, strict=True)
        ]
        columns = {index: column for column, index in enumerate(wanted)}
        results = []
        for number, item in enumerate(items):
            picked = [columns[index] for index in item.outputs]
            shapes = tuple((item.rows, *whole.shapes[column][1:]) for column in picked)
            parts = [
                whole.parts[column][cuts[column][number] : cuts[column][number + 1]] for column in picked
            ]
            outputs = _Outputs(shapes, tuple(map(len, parts)), parts)
            results.append(self._store(item.ticket, item.out_offset, item.out_capacity, outputs))
        return tuple(results)

    def _store(self, ticket: int, offset: int, capacity: int, outputs: _Outputs) -> RunResult:
        """Write the outputs to their place, or hold them when they do not fit."""
        needed = span(outputs.sizes)
        if needed > capacity:
            return self._hold(ticket, needed, outputs)
        view = self._arena.view
        for part, size in zip(outputs.parts, outputs.sizes, strict=True):
            view[offset : offset + size] = part
            offset += aligned(size)
        return RunResult(ticket, ItemStatus.OK, outputs.shapes, outputs.sizes, 0, "")

    def _hold(self, ticket: int, needed: int, outputs: _Outputs) -> RunResult:
        total = sum(outputs.sizes)
        self.forget(ticket)
        if total > HELD_BYTES_MAX:
            text = (
                f"the outputs take {total} bytes, and a worker holds at most {HELD_BYTES_MAX} bytes of outputs, which "
                "is fixed: ask for fewer rows or fewer outputs in one request"
            )
            return RunResult(ticket, ItemStatus.BEYOND, (), (), 0, text)
        if self._held_bytes + total > HELD_BYTES_MAX or len(self._held) >= HELD_ITEMS_MAX:
            text = f"its worker has no room for {total} bytes of outputs beside those of others; ask again"
            return RunResult(ticket, ItemStatus.FAILED, (), (), 0, text)
        copies = [memoryview(bytes(part)) for part in outputs.parts]
        self._held[ticket] = _Outputs(outputs.shapes, outputs.sizes, copies)
        self._held_bytes += total
        return RunResult(ticket, ItemStatus.TOO_LARGE, outputs.shapes, outputs.sizes, needed, "")


def _kind(model: LoadedModel, items: tuple[RunItem, ...], wanted: tuple[int, ...]) -> _Kind:
    shapes = tuple(None if shape is None else shape[1:] for shape in items[0].shapes)
    return _Kind(id(model), sum(item.rows for item in items), shapes, wanted)


def _parts(view: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    """Tensors of these sizes that lie one after the other."""
    parts, position = [], 0
    for size in sizes:
        parts.append(view[position : position + size])
        position += aligned(size)
    return parts


def _union(items: Iterable[RunItem]) -> tuple[int, ...]:
    """Outputs that at least one item wants, ascending."""
    kinds = {item.outputs for item in items}
    return kinds.pop() if len(kinds) == 1 else tuple(sorted({index for kind in kinds for index in kind}))


def check_rows(version: ModelVersion, wanted: Sequence[int], shapes: Iterable[Shape], rows: int) -> None:
    """Raise RunFailed unless the first dimension of each output is the batch."""
    for index, shape in zip(wanted, shapes, strict=True):
        if not shape or shape[0] != rows:
            raise RunFailed(
                f"output '{version.outputs[index].name}' has shape {list(shape)} for a batch of {rows} rows: its first "
                f"dimension is not the batch; set max_batch_size to 0 for this model"
            )


def _row_cuts(
    datatype: Datatype, part: memoryview, shape: Shape, items: Sequence[RunItem], rows: int
) -> list[int]:
    """Byte positions between the items' rows in one output, first and last included."""
    counts = [0]
    for item in items:
        counts.append(counts[-1] + item.rows)
    if datatype is not Datatype.BYTES:
        row_bytes = len(part) // rows if rows else 0
        return [count * row_bytes for count in counts]
    per_row = 1
    for dimension in shape[1:]:
        per_row *= dimension
    starts = _element_starts(part)
    return [starts[count * per_row] for count in counts]


def _element_starts(raw: memoryview) -> list[int]:
    """Where each element of a BYTES tensor starts, and its end."""
    starts, position = [0], 0
    while position < len(raw):
        position += 4 + int.from_bytes(raw[position : position + 4], "little")
        starts.append(position)
    return starts


def reason_of(problem: Exception) -> str:
    """Why a run failed, for people."""
    text = str(problem) if isinstance(problem, ApplianceError) else f"{type(problem).__name__}: {problem}"
    return text[:ERROR_CHARACTERS_MAX]
