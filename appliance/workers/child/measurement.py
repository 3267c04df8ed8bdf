"""How long a version's runs take, found out while it is loaded: seeds of what to expect, and whether a promise is kept.

Seeds are what a whole pass (gather, run, scatter) costs by number of rows, for models whose shapes are known. They are
measured with zeros, within a bounded time; a model that does not take zeros has none. How slow a version is only gets
told, with the promise that was broken: whether that matters on a busy box is the engine's decision.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from appliance.domain.assessment import Assessment, Deviation
from appliance.domain.errors import BeyondDeviceLimit, LoadFailed
from appliance.domain.manifest import LatencyPromise
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype, encode_bytes, split_bytes
from appliance.runtimes.runtime import Place, Region, batch_sizes
from appliance.workers.child.execution import Executor, LoadedModel
from appliance.workers.child.proof import Golden, run_nowhere
from appliance.workers.child.tensors import Scratch, Tensor, fixed_shapes, lay_out, span, zero_bytes
from appliance.workers.port import ItemStatus, RunItem, Shape

SEED_BUDGET_NS: Final = 50_000_000
SEED_ROWS_BUDGET_NS: Final = 3_000_000
SEED_PASSES_MIN: Final = 3
SEED_PASSES_MAX: Final = 5
SEED_LONG_NS: Final = 5_000_000
"""What a pass learns makes those after it some 0.1 ms shorter: one that takes so long counts."""
SEED_ROWS_MAX: Final = 1024
PRIME_RUNS: Final = 4
"""A session that keeps something of a shape has kept it then, and used it."""
PRIME_BUDGET_NS: Final = 10_000_000_000
SEED_MEMORY_BYTES_MAX: Final = 64 << 20
RUNS_MAX: Final = 200
RUNS_MIN: Final = 5
WARM_RUNS: Final = 2
PROMISE_BUDGET_NS: Final = 1_000_000_000
BUDGET_NS: Final = 50_000_000
"""Where nothing is promised: what runs at full speed is felt by all that shares the processors."""
PASSES_MIN: Final = 3
"""So many passes of one row are enough to be held against the version before."""
WAITS: Final = "/proc/thread-self/schedstat"
"""Nanoseconds on a processor, nanoseconds in wait of one, how often it got one (kernel, sched-stats.rst)."""
LINE_BYTES_MAX: Final = 128
NO_WAITS: Final = b"0 0 0"


class Stopwatch:
    """How long a thread takes for something, less the time in which it could have run and others had the processor.

    So a version can be measured while it yields to all else, and what is found is what its runs take, not what else ran
    meanwhile. What it sleeps or waits for a device counts. Where the kernel does not tell the waits, they count as
    well. Belongs to the thread that makes it, for the time of its ``with``.
    """

    def __init__(self) -> None:
        self._descriptor = -1
        with suppress(OSError):
            self._descriptor = os.open(WAITS, os.O_RDONLY | os.O_CLOEXEC)
        self._begin_ns = 0
        self._waited = b""

    def __enter__(self) -> Stopwatch:
        return self

    def __exit__(self, *problem: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def start(self) -> None:
        """Begin; what was begun before is forgotten."""
        # The clock first, here as in ``stop``: others get the processor as a call of the kernel returns, and what is
        # waited then would be taken off what the clock has not counted.
        self._begin_ns = time.monotonic_ns()
        self._waited = self._read()

    def stop(self) -> int:
        """Nanoseconds since ``start``, waits not counted; at least 1."""
        passed_ns = time.monotonic_ns() - self._begin_ns
        return max(passed_ns - (_waits_ns(self._read()) - _waits_ns(self._waited)), 1)

    def _read(self) -> bytes:
        return os.pread(self._descriptor, LINE_BYTES_MAX, 0) if self._descriptor >= 0 else NO_WAITS


def _waits_ns(line: bytes) -> int:
    return int(line.split()[1])


class Passes(NamedTuple):
    """Nanoseconds of whole passes of ``rows`` rows, in the order in which they ran; at least one."""

    rows: int
    taken: tuple[int, ...]

    @property
    def seed(self) -> tuple[int, int]:
        """Rows and the upper median."""
        return self.rows, sorted(self.taken)[len(self.taken) // 2]


def measure_passes(model: LoadedModel, least: int = 1) -> tuple[Passes, ...]:
    """Passes of 1, 2, 4 ... rows up to the version's largest batch, as far as SEED_BUDGET_NS goes, but ``least`` of one
    row whatever they take; none where nothing says what the model takes, or it does not take zeros. Raises LoadFailed
    where one row takes more of its device than it is held to; a device that is full for a moment says nothing of it."""
    started = time.monotonic_ns()
    shapes = fixed_shapes(model.version) if model.session.measurable else None
    if shapes is None:
        return ()
    try:
        region, feeds = lay_out(_zeros(model.version, shapes))
        out_bytes = span(run_nowhere(model, region, feeds).sizes)
    except BeyondDeviceLimit as problem:  # nor will a request have more
        raise LoadFailed(f"{model.version.key}: {problem}") from problem
    except Exception:  # noqa: BLE001 - it does not take zeros, or not now
        return ()
    rehearsal = _Rehearsal(model, shapes, out_bytes)
    rehearsal.prime(batch_sizes(model.session))
    started = time.monotonic_ns()
    measured: list[Passes] = []
    for rows in rehearsal.row_counts():
        spent = time.monotonic_ns() - started
        if measured and spent + 2 * SEED_PASSES_MIN * measured[-1].seed[1] > SEED_BUDGET_NS:
            break
        passes = rehearsal.measure(rows, SEED_BUDGET_NS - spent, 1 if measured else least)
        if passes is None:
            break
        measured.append(passes)
    return tuple(measured)


def _item(
    model: LoadedModel,
    shapes: tuple[Shape | None, ...],
    ticket: int,
    offset: int,
    out_offset: int,
    capacity: int,
) -> RunItem:
    wanted = tuple(range(len(model.version.outputs)))
    return RunItem(ticket, 1, shapes, zero_bytes(model.version, shapes), offset, wanted, out_offset, capacity)


class _Rehearsal:
    """Requests of zeros for up to the largest batch, laid out as they will be in the arena."""

    def __init__(self, model: LoadedModel, shapes: tuple[Shape | None, ...], out_bytes: int) -> None:
        self._model = model
        in_bytes = span(zero_bytes(model.version, shapes))
        stride = max(in_bytes + out_bytes, 1)
        fitting = max(SEED_MEMORY_BYTES_MAX // stride, 1)
        self._rows_max = min(max(model.version.max_batch_size, 1), fitting, SEED_ROWS_MAX)
        region: Region = Scratch().at_least(self._rows_max * stride)
        self._items = tuple(
            _item(model, shapes, number, number * stride, number * stride + in_bytes, out_bytes)
            for number in range(self._rows_max)
        )
        self._executor = Executor(region)

    def prime(self, sizes: Sequence[int]) -> None:
        """Do the first runs of batches of each size, as far as PRIME_BUDGET_NS goes; what fails is not measured
        either."""
        started = time.monotonic_ns()
        for rows in sizes:
            for _ in range(PRIME_RUNS):
                if rows > self._rows_max or time.monotonic_ns() - started > PRIME_BUDGET_NS:
                    return
                self._executor.run(self._model, self._items[:rows])

    def row_counts(self) -> Iterator[int]:
        """1, 2, 4 ... and the largest."""
        rows = 1
        while rows < self._rows_max:
            yield rows
            rows *= 2
        yield self._rows_max

    def measure(self, rows: int, budget_ns: int, least: int) -> Passes | None:
        """A few passes after two that learn, or from the first on when they are long: ``least`` at least. None when a
        pass fails."""
        limit = min(budget_ns, SEED_ROWS_BUDGET_NS * rows)
        spent = learning = 0
        taken: list[int] = []
        with Stopwatch() as watch:
            while len(taken) < 2 + SEED_PASSES_MAX:
                watch.start()
                results, _ = self._executor.run(self._model, self._items[:rows])
                taken.append(watch.stop())
                if any(result.status is not ItemStatus.OK for result in results):
                    return None
                spent += taken[-1]
                learning = 0 if taken[-1] > SEED_LONG_NS else 2
                enough = SEED_PASSES_MIN if spent + taken[-1] <= budget_ns else least
                if spent > limit and len(taken) >= learning + enough:
                    break
        return Passes(rows, tuple(taken[learning:]))


def assess(
    model: LoadedModel, golden: Golden | None, worst: tuple[Deviation, ...], passes: Sequence[Passes]
) -> Assessment:
    """How fast a version is whose golden set was run: by ``passes`` of one row that were measured already, where they
    are PASSES_MIN and nothing else is promised; else by RUNS_MIN to RUNS_MAX runs of its own on the calling thread,
    within PROMISE_BUDGET_NS where its golden set promises a latency, else BUDGET_NS."""
    cases = 0 if golden is None else len(golden.set.cases)
    promise = None if golden is None else golden.set.promise
    single = next((each.taken for each in passes if each.rows == 1), ())
    if promise is None and len(single) >= PASSES_MIN:
        return _assessment(cases, worst, 1, sorted(single), None)
    rows, tensors = request_of(model.version, golden, 1 if promise is None else promise.rows)
    if tensors is None or not model.session.measurable:
        return Assessment(cases, worst, 0, 0, 0, 0, 0)
    taken = _measure(model, tensors, BUDGET_NS if promise is None else PROMISE_BUDGET_NS)
    return _assessment(cases, worst, rows, taken, promise)


def _assessment(
    cases: int, worst: tuple[Deviation, ...], rows: int, taken: Sequence[int], promise: LatencyPromise | None
) -> Assessment:
    """``taken``: nanoseconds, sorted."""
    p50, p99 = taken[(len(taken) - 1) // 2], taken[-(-len(taken) * 99 // 100) - 1]
    promised_ns = promise.p99_us * 1000 if promise is not None and promise.rows == rows else 0
    return Assessment(cases, worst, rows, len(taken), p50, p99, promised_ns if promised_ns < p99 else 0)


def request_of(
    version: ModelVersion, golden: Golden | None, rows: int
) -> tuple[int, list[Tensor | None] | None]:
    """A request of ``rows`` rows, or of one where there is no batching: the first golden case, its rows repeated, or
    zeros. None when neither can be had."""
    if golden is None or not golden.set.cases:
        shapes = fixed_shapes(version, rows)
        if shapes is None:
            return 0, None
        return rows if version.max_batch_size > 0 else 1, _zeros(version, shapes)
    case = golden.set.cases[0]
    tensors = golden.inputs_of(case, version)
    if version.max_batch_size == 0:
        return 1, tensors
    there = case.outputs[0].shape[0]
    return rows, [
        None if each is None else _repeated(each, spec.datatype, there, rows)
        for spec, each in zip(version.inputs, tensors, strict=True)
    ]


def _zeros(version: ModelVersion, shapes: tuple[Shape | None, ...]) -> list[Tensor | None]:
    """A request of zeros, or of empty strings."""
    zeros = zip(shapes, zero_bytes(version, shapes), strict=True)
    return [None if shape is None else Tensor(shape, bytes(size)) for shape, size in zeros]


def _repeated(tensor: Tensor, datatype: Datatype, there: int, rows: int) -> Tensor:
    """The tensor of ``there`` rows with so many ``rows``: its own, again and again."""
    times = -(-rows // there)
    if datatype is Datatype.BYTES:
        texts = [bytes(each) for each in split_bytes(memoryview(tensor.raw))]
        raw = encode_bytes((texts * times)[: len(texts) // there * rows])
    else:
        raw = (bytes(tensor.raw) * times)[: len(tensor.raw) // there * rows]
    return Tensor((rows, *tensor.shape[1:]), raw)


def _measure(model: LoadedModel, tensors: Sequence[Tensor | None], budget_ns: int) -> list[int]:
    """Nanoseconds of runs, sorted; at least one. The first shows how much room the others have to be given, as a
    request has it."""
    region, feeds = lay_out(tensors)
    wanted = tuple(range(len(model.version.outputs)))
    place = Place(region, 0, 0)
    taken: list[int] = []
    spent = 0
    with Stopwatch() as watch:
        for number in range(WARM_RUNS + RUNS_MAX):
            watch.start()
            produced = model.session.run(region, feeds, wanted, place)
            taken.append(watch.stop())
            spent += taken[-1]
            if not number:
                room = span(produced.sizes)
                place = Place(Scratch().at_least(room), 0, room)
            if number >= WARM_RUNS + RUNS_MIN - 1 and spent > budget_ns:
                break
    return sorted(taken[WARM_RUNS:])
