"""Shapes exchanged on both ways, and what a model does that its reshape does not say."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.domain.errors import LoadFailed, RunFailed
from appliance.domain.reshape import reshape_problem, reshaped
from appliance.domain.tensor import FREE, Datatype, encode_bytes
from appliance.runtimes import reshape
from appliance.runtimes.onnx import OnnxRuntime
from appliance.runtimes.runtime import Place, RuntimeSettings, check_signature
from appliance.tools.conformance.memory import Memory
from appliance.workers.child.tensors import Tensor, lay_out
from models.generators.graph import model_bytes, node, tensor_port
from tests.workers.bench import spec, version_of


@st.composite
def pairs(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A shape, and the same elements in another arrangement of its stretches."""
    stretches = draw(st.lists(st.lists(st.sampled_from([1, 2, 3, 4, 6]), max_size=3), min_size=1, max_size=3))
    one: list[int] = []
    other: list[int] = []
    for index, stretch in enumerate(stretches):
        between = [FREE] if index else []
        one += [*between, *stretch]
        other += [*between, *draw(st.sampled_from([[prod(stretch)], stretch[::-1], [1, *stretch]]))]
    return tuple(one), tuple(other)


@given(pair=pairs(), batch=st.sampled_from([0, 1]), data=st.data())
def test_a_shape_goes_there_and_back(
    pair: tuple[tuple[int, ...], tuple[int, ...]], batch: int, data: st.DataObject
) -> None:
    one, other = pair
    assert reshape_problem(one, other) == ""
    full = tuple(data.draw(st.integers(0, 5)) if size == FREE else size for size in (*batch * (FREE,), *one))
    there = reshaped(full, one, other, batch)
    assert there is not None
    assert prod(there) == prod(full)
    assert there[:batch] == full[:batch]
    assert reshaped(there, other, one, batch) == full
    assert reshaped((*full, 1), one, other, batch) is None


def write(home: Path, datatype: str, shape: list[int | str]) -> Path:
    path = home / "model.onnx"
    ports = {name: tensor_port(name, datatype, shape) for name in "xy"}
    path.write_bytes(
        model_bytes("copy", [node("Identity", ["x"], ["y"])], inputs=[ports["x"]], outputs=[ports["y"]])
    )
    return path


def test_strings_are_reshaped_as_well(tmp_path: Path) -> None:
    path = write(tmp_path, "BYTES", ["n", 2, 2])
    version = version_of(
        path, [spec("x", Datatype.BYTES, 4)], [spec("y", Datatype.BYTES, 4)], max_batch_size=8
    )
    version = replace(version, input_reshapes={"x": (2, 2)}, output_reshapes={"y": (2, 2)})
    session = reshape.load(OnnxRuntime(), version, RuntimeSettings())
    check_signature(version, session)
    words = encode_bytes([b"a", b"bc", b"", b"d"])
    region, feeds = lay_out([Tensor((1, 4), words)])
    produced = session.run(region, feeds, (0,), Place(region, 0, 0))
    assert produced.shapes == ((1, 4),)
    assert [bytes(part) for part in produced.parts or ()] == [words]


def test_an_output_of_another_shape_is_a_failed_run(tmp_path: Path) -> None:
    """A graph may say that a dimension is free and a reshape that it is one size."""
    path = write(tmp_path, "FP32", ["n", "m"])
    version = version_of(path, [spec("x", Datatype.FP32, -1, -1)], [spec("y", Datatype.FP32, 4)])
    version = replace(version, output_reshapes={"y": (2, 2)})
    session = reshape.load(OnnxRuntime(), version, RuntimeSettings())
    check_signature(version, session)
    assert Memory(np.ones((2, 2), np.float32)).run(session, (0,)).shapes == ((4,),)
    with pytest.raises(
        RunFailed, match=r"output 'y' has shape \[2, 3\]; its reshape in config.pbtxt says \[2, 2\]"
    ):
        Memory(np.ones((2, 3), np.float32)).run(session, (0,))


def test_a_graph_that_is_not_what_the_reshape_says_does_not_load(tmp_path: Path) -> None:
    path = write(tmp_path, "FP32", [2, 2])
    version = version_of(path, [spec("x", Datatype.FP32, 4)], [spec("y", Datatype.FP32, 2, 2)])
    session = OnnxRuntime().load(version, RuntimeSettings())
    check_signature(replace(version, input_reshapes={"x": (2, 2)}), session)
    with pytest.raises(LoadFailed, match=r"input 'x' is said to have shape \[1, 4\], the model has \[2, 2\]"):
        check_signature(replace(version, input_reshapes={"x": (1, 4)}), session)
