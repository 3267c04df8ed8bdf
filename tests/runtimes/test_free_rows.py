"""Graphs that say how many rows their outputs have, and have as many as they are asked."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from appliance.domain.digest import digest_of
from appliance.domain.errors import LoadFailed
from appliance.domain.tensor import Datatype
from appliance.runtimes.free_rows import with_free_rows
from appliance.runtimes.onnx import OnnxRuntime
from appliance.runtimes.runtime import RuntimeSettings
from appliance.tools.conformance.memory import Memory
from tests.repository.classifiers import classifier
from tests.workers.bench import spec, version_of

PORTS = (
    [spec("x", Datatype.FP32, 2)],
    [spec("label", Datatype.INT64), spec("probabilities", Datatype.FP32, 2)],
)


@pytest.mark.parametrize("known", [False, True])
def test_batches_of_any_size_are_answered_in_place(tmp_path: Path, known: bool) -> None:
    """By ONNX Runtime itself, the first run of several rows would be the last one in place."""
    path, model = tmp_path / "model.onnx", classifier().SerializeToString()
    path.write_bytes(model)
    digests = {str(path): digest_of(model)} if known else {}
    version = version_of(path, *PORTS, max_batch_size=8, digests=digests)
    session = OnnxRuntime().load(version, RuntimeSettings())
    rows = np.array([[0.1, 0], [0.9, 0], [0.6, 0]], np.float32)
    for count in (3, 1, 2):
        memory = Memory(rows[:count])
        memory.run(session, (0, 1))
        assert memory.run(session, (0, 1)).parts is None
        labels = np.frombuffer(memory.place.region.view, np.int64, count, memory.place.offset)
        assert labels.tolist() == [3, 7, 7][:count]


def test_a_version_that_is_not_batched_keeps_what_its_graph_says(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(classifier().SerializeToString())
    ports = [spec("x", Datatype.FP32, -1, 2)], [spec("label", Datatype.INT64, 1)]
    session = OnnxRuntime().load(version_of(path, *ports), RuntimeSettings())
    assert [port.shape for port in session.outputs] == [(1,), (-1, 2)]


def test_nothing_else_in_the_graph_changes() -> None:
    before = classifier(rows=4, label=[1], shares=[5, 2])
    after = onnx.load_from_string(with_free_rows(before.SerializeToString()))
    for port in before.graph.output:
        port.type.tensor_type.shape.dim[0].Clear()
    assert after == before
    before.graph.output[0].type.tensor_type.ClearField("shape")
    assert onnx.load_from_string(with_free_rows(before.SerializeToString())) == before


def test_what_is_no_graph_is_refused() -> None:
    with pytest.raises(LoadFailed, match=re.escape("is not an ONNX file")):
        with_free_rows(b"\xff" * 20)
