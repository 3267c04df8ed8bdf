"""Warm-up requests: their data files and how they meet the inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from appliance.domain.tensor import encode_bytes
from tests.repository.conftest import ReadModel
from tests.repository.onnx_files import model_of, plain_model, port
from tests.repository.outcomes import only_problem, served

FROM_FILE = """
max_batch_size: 8
model_warmup { name: "w" batch_size: 3
  inputs { key: "x" value { data_type: %s dims: [ 2, 4 ] input_data_file: "deep/row" } } }
"""


def test_a_file_holds_one_row(read_model: ReadModel, tmp_path: Path) -> None:
    row = np.arange(8, dtype=np.float32).tobytes()
    graph = plain_model(["batch", None, 4])
    model = served(read_model(FROM_FILE % "TYPE_FP32", graph=graph, files={"warmup/deep/row": row}))
    (warmup,) = model.warmups
    (tensor,) = warmup.inputs
    assert (warmup.batch_size, warmup.count) == (3, 1)
    assert tensor.spec.shape == (2, 4)
    assert tensor.file == str(tmp_path.resolve() / "m" / "warmup" / "deep" / "row")
    assert not tensor.random


@pytest.mark.parametrize("size", [0, 31, 33, 96])
def test_a_file_of_another_size_is_refused(read_model: ReadModel, size: int) -> None:
    graph = plain_model(["batch", None, 4])
    found = read_model(FROM_FILE % "TYPE_FP32", graph=graph, files={"warmup/deep/row": bytes(size)})
    problem = only_problem(found)
    assert problem.key == 'model_warmup[0].inputs["x"]'
    assert f"has {size} bytes; one row of TYPE_FP32 [2, 4] has 32" in problem.text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (encode_bytes([b"word"] * 7), "has 7 strings; dims [2, 4] are 8"),
        (encode_bytes([b"word"] * 8)[:-1], "incomplete string data"),
    ],
)
def test_strings_in_a_file_are_counted(read_model: ReadModel, data: bytes, text: str) -> None:
    graph = plain_model(["batch", 2, 4], TensorProto.STRING)
    found = read_model(FROM_FILE % "TYPE_STRING", graph=graph, files={"warmup/deep/row": data})
    assert text in only_problem(found).text


def test_strings_in_a_file_that_fit(read_model: ReadModel) -> None:
    graph = plain_model(["batch", 2, 4], TensorProto.STRING)
    data = encode_bytes([b"word"] * 8)
    assert served(read_model(FROM_FILE % "TYPE_STRING", graph=graph, files={"warmup/deep/row": data})).warmups


def test_every_input_must_be_warmed_and_known(read_model: ReadModel) -> None:
    graph = model_of([port("x", ["n", 2]), port("z", ["n", 2])], [port("y", ["n", 2])])
    found = read_model(
        'model_warmup { name: "w" inputs { key: "q" value { dims: 2 zero_data: true } } '
        'inputs { key: "z" value { dims: 2 random_data: true } } }',
        graph=graph,
    )
    assert {problem.text for problem in found.problems} == {
        "gives nothing for the input 'x'",
        "the model has no input 'q'; it has 'x', 'z'",
    }


def test_a_model_without_batches_is_warmed_with_one(read_model: ReadModel) -> None:
    found = read_model(
        'max_batch_size: 0 model_warmup { name: "w" batch_size: 2 '
        'inputs { key: "x" value { dims: [ 1, 4 ] zero_data: true } } }'
    )
    assert only_problem(found).text == "batch_size 2 is too large; the model is not batched"
