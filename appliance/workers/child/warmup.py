"""What a worker does with a fresh session before it is ready: configured warm-ups, then measured seeds.

Seeds are what a whole pass (gather, run, scatter) costs by number of rows, for models whose shapes are known. They are
measured with zeros, within a bounded time; a model that does not take zeros has none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from appliance.domain.errors import ApplianceError, LoadFailed
from appliance.domain.model import ModelVersion, Warmup, WarmupInput
from appliance.domain.tensor import FREE, Datatype, aligned, byte_size, element_count, encode_bytes
from appliance.runtimes.runtime import Region
from appliance.workers.child.execution import Executor, LoadedModel
from appliance.workers.child.stopwatch import Stopwatch
from appliance.workers.port import ItemStatus, Run, RunItem, RunResult, Shape
from appliance.workers.region import Scratch

SEED_BUDGET_NS: Final = 50_000_000
SEED_ROWS_BUDGET_NS: Final = 3_000_000
SEED_PASSES_MIN: Final = 3
SEED_PASSES_MAX: Final = 5
SEED_LONG_NS: Final = 5_000_000
"""What a pass learns makes those after it some 0.1 ms shorter: one that takes so long counts."""
SEED_ROWS_MAX: Final = 1024
SEED_MEMORY_BYTES_MAX: Final = 64 << 20
RANDOM_SEED: Final = 7
WARMUP_BATCH: Final = 0


class _Tensor(NamedTuple):
    shape: Shape
    raw: bytes


class Passes(NamedTuple):
    """Nanoseconds of whole passes of ``rows`` rows, in the order in which they ran; at least one."""

    rows: int
    taken: tuple[int, ...]

    @property
    def seed(self) -> tuple[int, int]:
        """Rows and the upper median."""
        return self.rows, sorted(self.taken)[len(self.taken) // 2]


def run_warmups(model: LoadedModel) -> None:
    """Run the version's warm-up requests; raises LoadFailed naming the first that fails."""
    for warmup in model.version.warmups:
        try:
            reason = _run_warmup(model, warmup)
        except (ApplianceError, OSError, ValueError) as problem:
            reason = str(problem)
        if reason:
            raise LoadFailed(f"{model.version.key}: warm-up '{warmup.name}' failed: {reason}")


def _run_warmup(model: LoadedModel, warmup: Warmup) -> str:
    """Run one warm-up as often as it asks; gives the reason of a failure."""
    batchable = model.version.max_batch_size > 0
    rows = max(warmup.batch_size, 1)
    given = {each.spec.name: _warmup_tensor(each, rows, batchable) for each in warmup.inputs}
    tensors = tuple(given.get(spec.name) for spec in model.version.inputs)
    shapes = tuple(None if tensor is None else tensor.shape for tensor in tensors)
    sizes = tuple(0 if tensor is None else len(tensor.raw) for tensor in tensors)
    region = Scratch().at_least(sum(map(aligned, sizes)))
    position = 0
    for tensor, size in zip(tensors, sizes, strict=True):
        if tensor is not None:
            region.view[position : position + size] = tensor.raw
        position += aligned(size)
    executor = Executor(region)
    item = RunItem(0, rows, shapes, sizes, 0, tuple(range(len(model.version.outputs))), 0, 0)
    for _ in range(max(warmup.count, 1)):
        (result,) = executor.run(model, Run(WARMUP_BATCH, 0, (item,))).results
        if result.status.failed:
            return result.error
        executor.forget(item.ticket)
    return ""


def _warmup_tensor(warmup: WarmupInput, rows: int, batchable: bool) -> _Tensor:
    spec = warmup.spec
    shape = (rows, *spec.shape) if batchable else spec.shape
    if warmup.file:
        return _Tensor(shape, _file_tensor(warmup, rows, shape))
    if warmup.random:
        return _Tensor(shape, random_tensor(spec.datatype, element_count(shape)))
    return _Tensor(shape, bytes(_zero_bytes(spec.datatype, shape)))


def _file_tensor(warmup: WarmupInput, rows: int, shape: Shape) -> bytes:
    """The file's raw tensor; one row's worth is repeated for every row."""
    raw = Path(warmup.file).read_bytes()
    if warmup.spec.datatype is Datatype.BYTES:
        return raw
    wanted = byte_size(warmup.spec.datatype, shape)
    if len(raw) * rows == wanted:
        return raw * rows
    if len(raw) != wanted:
        raise LoadFailed(f"{warmup.file} has {len(raw)} bytes, shape {list(shape)} needs {wanted}")
    return raw


def random_tensor(datatype: Datatype, count: int) -> bytes:
    """Fractions below one, integers 0 and 1 (valid in vocabularies and masks), strings of eight digits."""
    generator = np.random.default_rng(RANDOM_SEED)
    if datatype is Datatype.BYTES:
        return encode_bytes(f"{number:08d}".encode() for number in generator.integers(0, 10**8, count))
    if datatype is Datatype.BF16:
        return (generator.random(count, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    if datatype in (Datatype.FP16, Datatype.FP32, Datatype.FP64):
        return generator.random(count).astype(f"<f{datatype.size}").tobytes()
    return generator.integers(0, 2, count).astype(f"<u{datatype.size}").tobytes()


def _zero_bytes(datatype: Datatype, shape: Shape) -> int:
    """Length of a tensor of zeros, or of empty strings, which are zero bytes too."""
    return element_count(shape) * (datatype.size or 4)


def measure_passes(model: LoadedModel, least: int = 1) -> tuple[Passes, ...]:
    """Passes of 1, 2, 4 ... rows up to the version's largest batch, as far as SEED_BUDGET_NS goes, but ``least`` of one
    row whatever they take; none where nothing says what the model takes, or it does not take zeros."""
    started = time.monotonic_ns()
    shapes = fixed_shapes(model.version) if model.session.measurable else None
    if shapes is None:
        return ()
    out_bytes = _probe_output(model, shapes)
    if out_bytes is None:
        return ()
    rehearsal = _Rehearsal(model, shapes, out_bytes)
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


def fixed_shapes(version: ModelVersion) -> tuple[Shape | None, ...] | None:
    """Shapes of a request of one row without optional inputs; None when a dimension is free."""
    shapes: list[Shape | None] = []
    for spec in version.inputs:
        if spec.optional:
            shapes.append(None)
        elif FREE in spec.shape:
            return None
        else:
            shapes.append((1, *spec.shape) if version.max_batch_size > 0 else spec.shape)
    return tuple(shapes)


def _probe_output(model: LoadedModel, shapes: tuple[Shape | None, ...]) -> int | None:
    """Bytes that the outputs of one row take, by running it with no room for them; None when it fails."""
    region = Scratch().at_least(sum(map(aligned, sizes_of(model.version, shapes))))
    executor = Executor(region)
    result = executor.run(model, Run(WARMUP_BATCH, 0, (_item(model, shapes, 0, 0, 0, 0),))).results[0]
    return None if result.status.failed else result.needed


def sizes_of(version: ModelVersion, shapes: tuple[Shape | None, ...]) -> tuple[int, ...]:
    """Bytes of tensors of zeros, or of empty strings, of these shapes; 0 where there is none."""
    return tuple(
        0 if shape is None else _zero_bytes(spec.datatype, shape)
        for spec, shape in zip(version.inputs, shapes, strict=True)
    )


def _item(
    model: LoadedModel,
    shapes: tuple[Shape | None, ...],
    ticket: int,
    offset: int,
    out_offset: int,
    capacity: int,
) -> RunItem:
    wanted = tuple(range(len(model.version.outputs)))
    return RunItem(ticket, 1, shapes, sizes_of(model.version, shapes), offset, wanted, out_offset, capacity)


class _Rehearsal:
    """Requests of zeros for up to the largest batch, laid out as they will be in the arena."""

    def __init__(self, model: LoadedModel, shapes: tuple[Shape | None, ...], out_bytes: int) -> None:
        self._model = model
        in_bytes = sum(map(aligned, sizes_of(model.version, shapes)))
        stride = max(in_bytes + out_bytes, 1)
        fitting = max(SEED_MEMORY_BYTES_MAX // stride, 1)
        self._rows_max = min(max(model.version.max_batch_size, 1), fitting, SEED_ROWS_MAX)
        region: Region = Scratch().at_least(self._rows_max * stride)
        self._items = tuple(
            _item(model, shapes, number, number * stride, number * stride + in_bytes, out_bytes)
            for number in range(self._rows_max)
        )
        self._executor = Executor(region)

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
        run = Run(WARMUP_BATCH, 0, self._items[:rows])
        limit = min(budget_ns, SEED_ROWS_BUDGET_NS * rows)
        spent = learning = 0
        taken: list[int] = []
        with Stopwatch() as watch:
            while len(taken) < 2 + SEED_PASSES_MAX:
                watch.start()
                results = self._executor.run(self._model, run).results
                taken.append(watch.stop())
                if not _all_ok(results):
                    return None
                spent += taken[-1]
                learning = 0 if taken[-1] > SEED_LONG_NS else 2
                enough = SEED_PASSES_MIN if spent + taken[-1] <= budget_ns else least
                if spent > limit and len(taken) >= learning + enough:
                    break
        return Passes(rows, tuple(taken[learning:]))


def _all_ok(results: tuple[RunResult, ...]) -> bool:
    return all(result.status is ItemStatus.OK for result in results)
