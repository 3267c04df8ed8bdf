"""Whether the rows of a batch change one another's answers, seen by running made-up ones together and alone.

A graph names its free dimensions, and not what they mean: a sequence that comes first looks like a batch, and so does a
batch that the graph sums over. Requests of such a model must not be merged. What cannot be tried says nothing against a
model: one that takes no made-up request, or that draws random numbers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from appliance.domain.model import ModelVersion
from appliance.domain.output_difference import Values
from appliance.domain.tensor import FREE, Datatype, element_count, encode_bytes, split_bytes
from appliance.runtimes.arrays import far_apart, random_tensor
from appliance.workers.child.execution import LoadedModel
from appliance.workers.child.proof import run_nowhere
from appliance.workers.child.tensors import Tensor, lay_out

ROWS: Final = 3
FREE_SIZES: Final = (4, 1, 2, 32)
"""What other free dimensions are tried with until one is taken: as for a short sequence, as in traces of one or two
examples, and as for a small picture."""
REQUEST_BYTES_MAX: Final = 64 << 20
SLOW_NS: Final = 500_000_000
"""Where the first values took so long, others are not tried."""
APART: Final = 0.02
"""How far answers of floats may be off, as a share of the largest: half precision rounds no more than that."""

_Row = tuple[Values, ...]
"""What all outputs say of one row."""


def mixes_rows(model: LoadedModel) -> bool:
    """Whether a row was seen to be answered otherwise in a batch than alone; false where that cannot be tried."""
    fixed = not any(FREE in spec.shape for spec in model.version.inputs)
    for free_size in FREE_SIZES[:1] if fixed else FREE_SIZES:
        try:
            return _mixes(model, free_size)
        except Exception:  # noqa: BLE001 - it does not take such a request
            continue
    return False


def _mixes(model: LoadedModel, free_size: int) -> bool:
    begin = time.monotonic_ns()
    for centred in (False, True):
        tensors = _request(model.version, free_size, centred=centred)
        if sum(len(each.raw) for each in tensors if each is not None) > REQUEST_BYTES_MAX:
            return False
        together = _answers(model, tensors, ROWS)
        alone = [_answers(model, _only(model.version, tensors, row), 1) for row in range(ROWS)]
        if not (together and all(alone)):
            return True  # an output has other rows than its inputs
        if _are_apart(together, [row for answer in alone for row in answer]):
            again = _answers(model, _only(model.version, tensors, 0), 1)
            return not _are_apart(again, alone[0])  # else it answers as it likes
        if time.monotonic_ns() - begin > SLOW_NS:
            break
    return False


def _request(version: ModelVersion, free_size: int, *, centred: bool) -> list[Tensor | None]:
    """A request of ROWS rows, without optional inputs."""
    tensors: list[Tensor | None] = []
    for spec in version.inputs:
        shape = (ROWS, *(free_size if size == FREE else size for size in spec.shape))
        random = (
            None if spec.optional else random_tensor(spec.datatype, element_count(shape), centred=centred)
        )
        tensors.append(None if random is None else Tensor(shape, random))
    return tensors


def _only(version: ModelVersion, tensors: Sequence[Tensor | None], row: int) -> list[Tensor | None]:
    """One row of a request."""
    return [
        None if each is None else Tensor((1, *each.shape[1:]), _cut(spec.datatype, each.raw, ROWS)[row])
        for spec, each in zip(version.inputs, tensors, strict=True)
    ]


def _answers(model: LoadedModel, tensors: Sequence[Tensor | None], rows: int) -> list[_Row]:
    """The answers to a request by row; none where an output does not have so many."""
    region, feeds = lay_out(tensors)
    produced = run_nowhere(model, region, feeds)
    if any(not shape or shape[0] != rows for shape in produced.shapes):
        return []
    parts: Sequence[memoryview | bytes] = produced.parts or [b""] * len(produced.shapes)
    columns = [
        [Values(datatype=spec.datatype, shape=shape[1:], raw=cut) for cut in _cut(spec.datatype, part, rows)]
        for spec, shape, part in zip(model.version.outputs, produced.shapes, parts, strict=True)
    ]
    return list(zip(*columns, strict=True))


def _cut(datatype: Datatype, raw: memoryview | bytes, rows: int) -> list[bytes]:
    """The bytes of each row."""
    if datatype is Datatype.BYTES:
        texts = [bytes(each) for each in split_bytes(memoryview(raw))]
        size = len(texts) // rows
        return [encode_bytes(texts[row * size : (row + 1) * size]) for row in range(rows)]
    size = len(raw) // rows
    return [bytes(raw[row * size : (row + 1) * size]) for row in range(rows)]


def _are_apart(found: Sequence[_Row], right: Sequence[_Row]) -> bool:
    return len(found) != len(right) or any(
        far_apart(one, other, APART)
        for found_row, right_row in zip(found, right, strict=True)
        for one, other in zip(found_row, right_row, strict=True)
    )
