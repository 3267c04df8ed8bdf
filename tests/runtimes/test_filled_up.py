"""Batches of several inputs that are filled up: what a model finds over all rows is nothing of other requests, whatever
lay between the inputs. ONNX Runtime's and TensorRT's sessions, on simulated devices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from appliance.domain.model import Batching
from appliance.domain.tensor import Datatype
from appliance.runtimes.runtime import RuntimeSettings, Session, region_maker
from appliance.tools.conformance.memory import FIRST_INPUT, Memory
from models.generators.graph import model_bytes, node, tensor_port
from tests.runtimes.cuda_bench import Bench
from tests.runtimes.tensorrt.simulated import HostDevice
from tests.runtimes.tensorrt.test_session import BOTH, session_of
from tests.workers.bench import spec, version_of

LEFT = np.float32(800).tobytes()
"""What earlier requests left between the inputs of this one."""


def session_for(kind: str, widths: tuple[int, int], folder: Path, order: str = "ab") -> Session:
    """Of a model that takes the largest of all rows from each; its file names inputs in this order."""
    sizes = dict(zip("ab", widths, strict=True))
    outputs = {"a": "p", "b": "q"}
    graph = model_bytes(
        "over_all",
        [
            each
            for name in order
            for each in (
                node("ReduceMax", [name], [f"most_{name}"], keepdims=1),
                node("Sub", [name, f"most_{name}"], [outputs[name]]),
            )
        ],
        inputs=[tensor_port(name, "FP32", ["n", sizes[name]]) for name in order],
        outputs=[tensor_port(outputs[name], "FP32", ["n", sizes[name]]) for name in order],
    )
    path = folder / "model.onnx"
    path.write_bytes(graph)
    version = version_of(
        path,
        [spec(name, Datatype.FP32, sizes[name]) for name in "ab"],
        [spec(outputs[name], Datatype.FP32, sizes[name]) for name in "ab"],
        max_batch_size=8,
        batching=Batching(),
    )
    return (
        Bench().load(version, RuntimeSettings())
        if kind == "onnx"
        else session_of(version, graph, HostDevice())
    )


def ask(session: Session, rows: int, value: float, widths: tuple[int, int], *, pinned: bool) -> None:
    """A request whose first row is the largest has what it asked for."""
    arrays = [np.full((rows, width), value + number, np.float32) for number, width in enumerate(widths)]
    for array in arrays:
        array[0, 0] += 1
    memory = Memory(*arrays)
    source = memory.source
    if pinned:
        make = region_maker(session)
        assert make is not None
        source, place = make(8192), make(8192)
        memory.source, memory.place = source, memory.place._replace(region=place)
    source.view[FIRST_INPUT:8192] = LEFT * ((8192 - FIRST_INPUT) // len(LEFT))
    memory.put(*arrays)
    found = memory.outputs(memory.run(session, BOTH))
    assert found == [(array - array.max()).tobytes() for array in arrays]


@pytest.mark.parametrize("pinned", [False, True], ids=["ordinary", "pinned"])
@pytest.mark.parametrize("widths", [(3, 20), (1, 1), (20, 3)], ids=["apart", "together", "the first larger"])
@pytest.mark.parametrize("kind", ["onnx", "tensorrt"])
def test_rows_that_fill_up_are_nothing_of_what_lay_between_inputs(
    kind: str, widths: tuple[int, int], pinned: bool, tmp_path: Path
) -> None:
    session = session_for(kind, widths, tmp_path)
    for rows, value in ((5, 2), (6, 900), (5, 3), (8, 700), (7, 1), (5, 4), (6, 600), (5, 9)):
        ask(session, rows, value, widths, pinned=pinned)
    session.close()


@pytest.mark.parametrize("pinned", [False, True], ids=["ordinary", "pinned"])
@pytest.mark.parametrize("widths", [(3, 200), (200, 3)])
@pytest.mark.parametrize("kind", ["onnx", "tensorrt"])
def test_a_model_whose_file_names_its_inputs_in_another_order_has_each_in_its_place(
    kind: str, widths: tuple[int, int], pinned: bool, tmp_path: Path
) -> None:
    session = session_for(kind, widths, tmp_path, "ba")
    for rows, value in ((8, 900), (1, 2), (5, 3), (6, 1)):
        ask(session, rows, value, widths, pinned=pinned)
    session.close()
