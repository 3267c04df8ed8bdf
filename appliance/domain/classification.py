"""The classification extension of the protocol: outputs as their top classes.

Pure, in steps, and in memory of a few times the output's: scores are sorted piece by piece, and the pieces merged.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, islice
from math import isnan, nan
from operator import itemgetter
from typing import Any, Final

from appliance.domain.errors import InvalidRequest
from appliance.domain.inference import Answer, OutputTensor, RequestHead
from appliance.domain.steps import STEP_ELEMENTS, Steps
from appliance.domain.tensor import FLOATS, Datatype, numbers

CLASSES_MAX: Final = 1_000_000
"""Most classes that one output is answered with, all of its rows together."""
WORDS: Final = STEP_ELEMENTS // 2
"""Classes that one step puts into words."""

ROW_COST: Final = 32
"""What a row costs beside its classes, in these."""

_LENGTH = struct.Struct("<I")
_STORED: Final = {Datatype.BOOL: "B", Datatype.FP16: "f", Datatype.BF16: "f"}
"""How scores are kept that an array cannot hold as they are."""

Scored = tuple[float, int]


def asked_outputs(answer: Answer, head: RequestHead) -> Steps[tuple[OutputTensor, ...]]:
    """The outputs of ``answer``, as classes where ``head`` asks for them."""
    model = answer.model
    tops = {output.name: output.classification for output in head.outputs if output.classification}
    if not tops:
        return answer.outputs
    outputs: list[OutputTensor] = []
    for output in answer.outputs:
        if output.name in tops:
            labels, batched = model.labels.get(output.name, ()), model.max_batch_size > 0
            outputs.append((yield from classify(output, tops[output.name], batched=batched, labels=labels)))
        else:
            outputs.append(output)
    return tuple(outputs)


def classify(
    output: OutputTensor, top: int, *, batched: bool, labels: Sequence[str] = ()
) -> Steps[OutputTensor]:
    """The ``top`` classes of ``output`` as a BYTES tensor of shape [rows, k], or [k] when not ``batched``; k is at
    most the number of classes. All dimensions but the batch one together count as classes.

    A class is ``score:index`` or ``score:index:label``. Floating-point scores have six decimals, as C's ``%f`` prints
    them; integers print as integers. Equal scores come in index order; NaN is below every number. Raises InvalidRequest
    for a BYTES output, and for more than CLASSES_MAX classes."""
    datatype = output.datatype
    if datatype is Datatype.BYTES:
        raise InvalidRequest(f"output '{output.name}' holds BYTES and cannot be classified")
    scores = memoryview(output.data)
    rows = output.shape[0] if batched and output.shape else 1
    classes = len(scores) // datatype.size // rows if rows else 0
    kept = min(top, classes)
    if rows * kept > CLASSES_MAX:
        raise InvalidRequest(
            f"output '{output.name}' has {rows} rows of which {kept} classes each are asked for; at most {CLASSES_MAX} "
            "classes are given in all"
        )
    words = bytearray()
    width, since = classes * datatype.size, 0
    for row in range(rows):
        since += classes + ROW_COST
        if since > STEP_ELEMENTS:
            since = 0
            yield
        ranked = yield from _ranked(scores[row * width : (row + 1) * width], datatype, kept)
        for start in range(0, kept, WORDS):
            if start:
                yield
            words += _words(islice(ranked, min(WORDS, kept - start)), datatype, labels)
    shape = (rows, kept) if batched else (kept,)
    return OutputTensor(output.name, Datatype.BYTES, shape, memoryview(words))


def _ranked(raw: memoryview, datatype: Datatype, kept: int) -> Steps[Iterator[Scored]]:
    """The scores of one row with their indices, from the highest; more than ``kept`` may come."""
    runs: list[Iterable[Scored]] = []
    unordered = array("I")
    width = STEP_ELEMENTS * datatype.size
    for start in range(0, len(raw), width):
        if start:
            yield
        piece = raw[start : start + width]
        values = numbers(piece, datatype, len(piece) // datatype.size)
        runs.append(
            _run(values, start // datatype.size, _STORED.get(datatype, datatype.code), kept, unordered)
        )
    ordered = runs[0] if len(runs) == 1 else merge(*runs, key=itemgetter(0), reverse=True)
    return chain(ordered, ((nan, index) for index in unordered))


def _run(values: Sequence[Any], first: int, code: str, kept: int, unordered: array[int]) -> Iterable[Scored]:
    """The highest of ``values`` in order, with their indices from ``first``; those of NaN go to ``unordered``."""
    indices: Iterable[int] = range(len(values))
    if code in "fd" and any(map(isnan, values)):
        unordered.extend(first + index for index in indices if isnan(values[index]))
        indices = (index for index in indices if not isnan(values[index]))
    order = sorted(indices, key=values.__getitem__, reverse=True)[:kept]
    return zip(
        array(code, [values[index] for index in order]),
        array("I", [first + index for index in order]),
        strict=True,
    )


def _words(ranked: Iterable[Scored], datatype: Datatype, labels: Sequence[str]) -> bytes:
    spelled = "{:f}:{}" if datatype in FLOATS else "{:d}:{}"
    parts: list[bytes] = []
    for score, index in ranked:
        word = spelled.format(score, index)
        if index < len(labels) and labels[index]:
            word += f":{labels[index]}"
        encoded = word.encode()
        parts += (_LENGTH.pack(len(encoded)), encoded)
    return b"".join(parts)
