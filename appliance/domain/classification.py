"""Top classes of an output, as the classification extension words them: ``score:index`` or ``score:index:label``.

Pure, and without numpy: scores are read from raw wire bytes. Floating-point scores have six decimals, as C's ``%f``
prints them; integers print as integers. Equal scores come in index order; NaN is below every number.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from math import isnan

from appliance.domain.errors import InvalidRequest
from appliance.domain.inference import Answer, OutputTensor, RequestHead
from appliance.domain.tensor import FLOATS, Datatype, encode_bytes, numbers


def asked_outputs(answer: Answer, head: RequestHead) -> tuple[OutputTensor, ...]:
    """The outputs of ``answer``, as classes where ``head`` asks for them."""
    model = answer.model
    tops = {output.name: output.classification for output in head.outputs if output.classification}
    return tuple(
        classify(
            output,
            tops[output.name],
            batched=model.max_batch_size > 0,
            labels=model.labels.get(output.name, ()),
        )
        if output.name in tops
        else output
        for output in answer.outputs
    )


def classify(output: OutputTensor, top: int, *, batched: bool, labels: Sequence[str] = ()) -> OutputTensor:
    """The ``top`` classes of ``output`` as a BYTES tensor of shape [rows, k], or [k] when not ``batched``; k is at
    most the number of classes. All dimensions but the batch one together count as classes. Raises InvalidRequest for
    a BYTES output."""
    if output.datatype is Datatype.BYTES:
        raise InvalidRequest(f"output '{output.name}' holds BYTES and cannot be classified")
    scores = numbers(output.data, output.datatype, len(output.data) // output.datatype.size)
    rows = output.shape[0] if batched and output.shape else 1
    classes = len(scores) // rows if rows else 0
    kept = min(top, classes)
    words: list[bytes] = []
    for row in range(rows):
        words.extend(_row_words(scores[row * classes : (row + 1) * classes], kept, output.datatype, labels))
    shape = (rows, kept) if batched else (kept,)
    return OutputTensor(output.name, Datatype.BYTES, shape, encode_bytes(words))


def _row_words(scores: Sequence[float], kept: int, datatype: Datatype, labels: Sequence[str]) -> list[bytes]:
    spelled = "{:f}" if datatype in FLOATS else "{:d}"
    words: list[bytes] = []
    for index in nlargest(kept, range(len(scores)), key=lambda index: _rank(scores[index])):
        word = f"{spelled.format(scores[index])}:{index}"
        if index < len(labels) and labels[index]:
            word += f":{labels[index]}"
        words.append(word.encode())
    return words


def _rank(score: float) -> tuple[bool, float]:
    return (False, 0.0) if isnan(score) else (True, score)
