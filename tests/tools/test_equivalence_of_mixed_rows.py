"""A model whose rows change one another's answers, on a device whose sessions fill batches up: it is held against its
golden set as a box serves it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from appliance.domain.golden import GoldenCase, GoldenSet, TensorFile, write_golden
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype
from appliance.runtimes.onnx import OnnxRuntime
from appliance.runtimes.runtime import RuntimeSettings, Session
from appliance.tools.evaluation.equivalence import compare_forms
from appliance.tools.evaluation.jobs import EquivalenceJob
from models.generators.graph import model_bytes, node, tensor_port
from tests.runtimes.cuda_bench import Bench

ROWS = 5
"""Filled up to six."""


class OnSimulatedDevice(OnnxRuntime):
    """Its sessions fill batches up, as on a GPU."""

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        return Bench().load(version, settings)


def test_its_golden_set_is_answered_by_sessions_that_fill_no_batch_up(tmp_path: Path) -> None:
    """The rows that fill up are zeros, which would be the largest here."""
    nodes = [node("ReduceMax", ["x"], ["most"], keepdims=1), node("Sub", ["x", "most"], ["y"])]
    inputs, outputs = ([tensor_port(name, "FP32", ["n", 4])] for name in "xy")
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model_bytes("over_all", nodes, inputs=inputs, outputs=outputs))
    asked = np.linspace(-9, -4, 4 * ROWS, dtype=np.float32).reshape(ROWS, 4)
    file = TensorFile()
    case = GoldenCase(
        name="five rows",
        inputs=(file.add("x", Datatype.FP32, asked.shape, asked.tobytes()),),
        outputs=(file.add("y", Datatype.FP32, asked.shape, (asked - asked.max()).tobytes()),),
    )
    write_golden(str(folder / "golden"), GoldenSet(cases=(case,), tolerances={}), file.data())
    job = EquivalenceJob(source=str(folder / "model.onnx"), packed=str(tmp_path / "m"))
    found = compare_forms(job, OnSimulatedDevice(), lambda *said: None)
    assert (found.differs, found.refusal, found.mixes, found.cases) == ("", "", True, 1)
