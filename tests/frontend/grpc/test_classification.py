"""Top classes from raw scores, against numpy for every datatype."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import DTypeLike

from appliance.domain import classification
from appliance.domain.errors import InvalidRequest
from appliance.domain.inference import OutputTensor
from appliance.domain.protocol import output_classification
from appliance.domain.steps import STEP_ELEMENTS
from appliance.domain.tensor import Datatype, split_bytes
from tests.steps import finished

DTYPES: dict[Datatype, DTypeLike] = {
    Datatype.BOOL: np.bool_,
    Datatype.UINT8: np.uint8,
    Datatype.UINT16: np.uint16,
    Datatype.UINT32: np.uint32,
    Datatype.UINT64: np.uint64,
    Datatype.INT8: np.int8,
    Datatype.INT16: np.int16,
    Datatype.INT32: np.int32,
    Datatype.INT64: np.int64,
    Datatype.FP16: np.float16,
    Datatype.FP32: np.float32,
    Datatype.FP64: np.float64,
    Datatype.BF16: ml_dtypes.bfloat16,
}


def classify(output: OutputTensor, top: int, *, batched: bool, labels: Sequence[str] = ()) -> OutputTensor:
    return finished(classification.classify(output, top, batched=batched, labels=labels))


def words(output: OutputTensor) -> list[str]:
    return [bytes(word).decode() for word in split_bytes(memoryview(output.data))]


def floats(*values: float, shape: tuple[int, ...]) -> OutputTensor:
    return OutputTensor("y", Datatype.FP32, shape, memoryview(struct.pack(f"<{len(values)}f", *values)))


@pytest.mark.parametrize("datatype", DTYPES, ids=lambda datatype: datatype.wire)
def test_order_and_scores_are_numpys(datatype: Datatype) -> None:
    scores = np.random.default_rng(5).uniform(0, 100, (3, 7)).astype(DTYPES[datatype])
    output = classify(OutputTensor("y", datatype, (3, 7), scores.tobytes()), 4, batched=True)
    assert (output.name, output.datatype, output.shape) == ("y", Datatype.BYTES, (3, 4))
    expected = []
    for row in scores:
        for index in np.argsort(-row.astype(np.float64), kind="stable")[:4]:
            exact = datatype.wire.startswith(("INT", "UINT", "BOOL"))
            score = str(int(row[index])) if exact else f"{float(row[index]):.6f}"
            expected.append(f"{score}:{index}")
    assert words(output) == expected


def test_labels_follow_where_there_are_any() -> None:
    output = classify(floats(1, 3, 2, shape=(1, 3)), 3, batched=True, labels=("zero", "", "two"))
    assert words(output) == ["3.000000:1", "2.000000:2:two", "1.000000:0:zero"]
    assert words(classify(floats(1, 3, shape=(1, 2)), 2, batched=True, labels=("zero",))) == [
        "3.000000:1",
        "1.000000:0:zero",
    ]


def test_more_than_there_are_gives_all() -> None:
    assert classify(floats(1, 2, shape=(1, 2)), 10, batched=True).shape == (1, 2)


def test_without_a_batch_dimension_there_is_one_row() -> None:
    output = classify(floats(1, 4, 2, 3, shape=(2, 2)), 3, batched=False)
    assert (output.shape, words(output)) == ((3,), ["4.000000:1", "3.000000:3", "2.000000:2"])


def test_equal_scores_come_in_order_and_nan_last() -> None:
    output = classify(floats(float("nan"), 1, 1, float("-inf"), shape=(1, 4)), 4, batched=True)
    assert words(output) == ["1.000000:1", "1.000000:2", "-inf:3", "nan:0"]


def test_empty_outputs_have_no_classes() -> None:
    assert classify(floats(shape=(0, 3)), 2, batched=True).shape == (0, 0)
    assert classify(floats(shape=(2, 0)), 2, batched=True).shape == (2, 0)


def test_texts_cannot_be_ranked() -> None:
    with pytest.raises(InvalidRequest, match="holds BYTES"):
        classify(OutputTensor("y", Datatype.BYTES, (1, 1), b"\0\0\0\0"), 1, batched=True)


def test_many_classes_are_ranked_in_steps_and_in_little_memory() -> None:
    count, kept = 200_000, 50_000
    scores = np.random.default_rng(7).integers(0, 5000, count).astype(np.float32)
    scores[::1000] = np.nan
    output = OutputTensor("y", Datatype.FP32, (1, count), memoryview(scores.tobytes()))
    tracemalloc.start()
    ranking = classification.classify(output, kept, batched=True)
    taken = 0
    while True:
        try:
            next(ranking)
        except StopIteration as end:
            ranked = end.value
            break
        taken += 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken >= count // STEP_ELEMENTS
    assert peak < 8 * scores.nbytes
    order = np.argsort(-np.where(np.isnan(scores), -np.inf, scores), kind="stable")[:kept]
    assert words(ranked) == [f"{scores[index]:.6f}:{index}" for index in order]


def test_there_are_bounds_on_classes() -> None:
    most = classification.CLASSES_MAX
    assert output_classification("y", {"classification": most}) == most
    with pytest.raises(InvalidRequest, match="must be at most 1000000"):
        output_classification("y", {"classification": most + 1})
    many = OutputTensor("y", Datatype.UINT8, (2, most), bytes(2 * most))
    with pytest.raises(InvalidRequest, match="at most 1000000 classes"):
        classify(many, most, batched=True)


def test_many_rows_take_many_steps() -> None:
    rows = 10_000
    output = OutputTensor("y", Datatype.UINT8, (rows, 2), bytes(range(2)) * rows)
    assert sum(1 for _ in classification.classify(output, 1, batched=True)) > rows // STEP_ELEMENTS
    assert words(classify(output, 1, batched=True)) == ["1:1"] * rows
