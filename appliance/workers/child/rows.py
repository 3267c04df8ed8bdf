"""Whether the rows of a batch change one another's answers, seen by running some together and alone.

A graph names its free dimensions, and not what they mean: a sequence that comes first looks like a batch, and so does a
batch that the graph sums over. Requests of such a model must not be merged. The rows are those of its golden set, if it
has one, then made-up ones. What cannot be tried says nothing against a model: one that takes no such request, or whose
answers are others each time. Nor does an answer that a touch at the inputs changes as well: of two classes that are
nearly equal, rounding decides, and batches are rounded otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from appliance.domain.errors import LoadFailed
from appliance.domain.model import ModelVersion
from appliance.domain.output_difference import Values
from appliance.domain.tensor import FREE, Datatype, byte_size, element_count, encode_bytes, split_bytes
from appliance.runtimes.arrays import far_apart, nudged, random_tensor
from appliance.workers.child.execution import LoadedModel
from appliance.workers.child.measurement import Stopwatch
from appliance.workers.child.proof import Golden, open_golden, run_nowhere
from appliance.workers.child.tensors import Tensor, lay_out

ROWS: Final = 3
"""So many run together, or two where that would take long or much memory. Devices that fill batches up have the size
that these are filled up to for requests as well."""
FREE_SIZES: Final = (4, 1, 2, 32)
"""What other free dimensions are tried with until one is taken: as for a short sequence, as in traces of one or two
examples, and as for a small picture."""
REQUEST_BYTES_MAX: Final = 64 << 20
"""Of the inputs, and of the outputs."""
SLOW_NS: Final = 200_000_000
"""What would take longer is left out, but for the least that tells: one row alone, and two together."""
APART: Final = 0.02
"""How far answers of floats may be off, as a share of the largest: half precision rounds no more than that."""
TOUCH: Final = 0.001
"""How far inputs are moved, as a share of each: more than rounding does within the model."""

_Row = tuple[Tensor | None, ...]
"""What all inputs hold of one row, its dimension included."""
_Answer = tuple[Values, ...]
"""What all outputs say of one row."""


def mixes_rows(model: LoadedModel, golden: Golden | None = None) -> bool | None:
    """Whether a row was seen to be answered otherwise in a batch than alone; None where that cannot be tried, or not
    now. ``golden``: its golden set, where it was opened before."""
    version = model.version
    most = min(ROWS, version.max_batch_size)
    if most < 2 or not model.session.measurable:
        return None
    if golden is None:
        with suppress(LoadFailed):  # who wants it run is told
            golden = open_golden(version)
    with Stopwatch() as watch:
        watch.start()
        found = told = None if golden is None else _seen(model, _golden_rows(version, golden, most), watch)
        for free_size in _free_sizes(version):
            for centred in (False, True):
                if found or (found is not None and watch.stop() > SLOW_NS):
                    return found
                found = _seen(model, _made_up_rows(version, free_size, most, centred=centred), watch)
                if found is None:
                    break
                told = found
            if found is not None:
                break
    return told


def _seen(model: LoadedModel, rows: Sequence[_Row], watch: Stopwatch) -> bool | None:
    """Whether these rows change one another's answers; None where the model does not take them."""
    if len(rows) < 2:
        return None
    try:
        return _mixes(model, rows, watch)
    except Exception:  # noqa: BLE001 - it does not take such a request
        return None


def _mixes(model: LoadedModel, rows: Sequence[_Row], watch: Stopwatch) -> bool:
    begin_ns = watch.stop()
    alone = _answers(model, rows[-1:])
    took_ns = watch.stop() - begin_ns
    if not alone:
        return True  # an output has other rows than its inputs
    answer_bytes = sum(len(each.raw) for each in alone[0])
    if took_ns * 2 * len(rows) > SLOW_NS or answer_bytes * len(rows) > REQUEST_BYTES_MAX:
        rows = rows[-2:]
    if answer_bytes * len(rows) > REQUEST_BYTES_MAX:
        return False
    together = _answers(model, rows)
    if not together or _differs(model, rows[-1], together[-1], alone[0]):
        return True
    for row, answer in zip(rows[:-1], together[:-1], strict=True):
        if watch.stop() - begin_ns > SLOW_NS:
            break
        alone = _answers(model, [row])
        if not alone or _differs(model, row, answer, alone[0]):
            return True
    return False


def _differs(model: LoadedModel, row: _Row, together: _Answer, alone: _Answer) -> bool:
    """Whether its batch has changed the answer to a row, and not rounding, or chance."""
    if not _are_apart(together, alone):
        return False
    for share in (TOUCH, -TOUCH):
        touched = tuple(
            None if each is None else Tensor(each.shape, nudged(spec.datatype, each.raw, share))
            for spec, each in zip(model.version.inputs, row, strict=True)
        )
        if _are_apart(_answers(model, [touched])[0], alone):
            return False
    return True


# --- rows


def _golden_rows(version: ModelVersion, golden: Golden, most: int) -> list[_Row]:
    """Rows of its cases whose shapes are those of the first one's, and made-up ones of them where there is but one."""
    found: list[_Row] = []
    for case in golden.set.cases:
        tensors = golden.inputs_of(case, version)
        if _are_alike(tensors, found[0] if found else tensors):
            found += islice(_rows(version, tensors), most - len(found))
        if len(found) == most:
            break
    if len(found) == 1:
        found += _drawn(version, [None if each is None else each.shape[1:] for each in found[0]], 1)
    return found


def _are_alike(tensors: Sequence[Tensor | None], others: Sequence[Tensor | None]) -> bool:
    """Whether rows of these may share a batch."""
    shapes = [[None if each is None else each.shape[1:] for each in one] for one in (tensors, others)]
    return shapes[0] == shapes[1]


def _free_sizes(version: ModelVersion) -> tuple[int, ...]:
    fixed = not any(FREE in spec.shape for spec in version.inputs)
    return FREE_SIZES[:1] if fixed else FREE_SIZES


def _made_up_rows(version: ModelVersion, free_size: int, most: int, *, centred: bool) -> list[_Row]:
    """Rows without optional inputs."""
    shapes = [
        None if spec.optional else tuple(free_size if size == FREE else size for size in spec.shape)
        for spec in version.inputs
    ]
    return _drawn(version, shapes, most, centred=centred)


def _drawn(
    version: ModelVersion, shapes: Sequence[tuple[int, ...] | None], most: int, *, centred: bool = False
) -> list[_Row]:
    """So many rows of these shapes, or as many as a request may hold; none where there is no input."""
    sizes = [
        byte_size(spec.datatype, shape) or element_count(shape) * 12
        for spec, shape in zip(version.inputs, shapes, strict=True)
        if shape is not None
    ]
    count = min(most, REQUEST_BYTES_MAX // max(sum(sizes), 1)) if sizes else 0
    tensors = [
        None
        if shape is None
        else Tensor(
            (count, *shape), random_tensor(spec.datatype, count * element_count(shape), centred=centred)
        )
        for spec, shape in zip(version.inputs, shapes, strict=True)
    ]
    return list(_rows(version, tensors)) if count else []


def _rows(version: ModelVersion, tensors: Sequence[Tensor | None]) -> Iterable[_Row]:
    """The rows of a request."""
    count = next((each.shape[0] for each in tensors if each is not None), 0)
    columns = [
        [None] * count
        if each is None
        else [Tensor((1, *each.shape[1:]), cut) for cut in _cut(spec.datatype, each.raw, count)]
        for spec, each in zip(version.inputs, tensors, strict=True)
    ]
    return zip(*columns, strict=True)


def _answers(model: LoadedModel, rows: Sequence[_Row]) -> list[_Answer]:
    """The answers to a request of these rows; none where an output does not have so many."""
    region, feeds = lay_out([_joined(column) for column in zip(*rows, strict=True)])
    produced = run_nowhere(model, region, feeds)
    if any(not shape or shape[0] != len(rows) for shape in produced.shapes):
        return []
    parts: Sequence[memoryview | bytes] = produced.parts or [b""] * len(produced.shapes)
    columns = [
        [
            Values(datatype=spec.datatype, shape=shape[1:], raw=cut)
            for cut in _cut(spec.datatype, part, len(rows))
        ]
        for spec, shape, part in zip(model.version.outputs, produced.shapes, parts, strict=True)
    ]
    return list(zip(*columns, strict=True))


def _joined(column: Sequence[Tensor | None]) -> Tensor | None:
    """One input of all rows."""
    given = [each for each in column if each is not None]
    if not given:
        return None
    return Tensor((len(given), *given[0].shape[1:]), b"".join(each.raw for each in given))


def _cut(datatype: Datatype, raw: memoryview | bytes, rows: int) -> list[bytes]:
    """The bytes of each row."""
    if datatype is Datatype.BYTES:
        texts = [bytes(each) for each in split_bytes(memoryview(raw))]
        size = len(texts) // rows
        return [encode_bytes(texts[row * size : (row + 1) * size]) for row in range(rows)]
    size = len(raw) // rows
    return [bytes(raw[row * size : (row + 1) * size]) for row in range(rows)]


def _are_apart(found: _Answer, right: _Answer) -> bool:
    return any(far_apart(one, other, APART) for one, other in zip(found, right, strict=True))
