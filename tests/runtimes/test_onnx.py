"""What is particular to ONNX Runtime: writing in place, devices, types it cannot mix."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from appliance.domain.device import cuda
from appliance.domain.device_wish import ON_CUDA
from appliance.domain.errors import InvalidRequest, LoadFailed, RunFailed
from appliance.domain.tensor import Datatype
from appliance.runtimes import onnx
from appliance.runtimes.onnx import OnnxRuntime
from appliance.runtimes.runtime import RuntimeSettings, Session
from appliance.tools.conformance.identity import INPUTS, OUTPUTS
from appliance.tools.conformance.memory import Memory
from models.generate import write_model
from models.generators.graph import model_bytes, node, tensor_port
from tests.devices.simulated_cuda import SimulatedCuda
from tests.runtimes.test_runtimes import write_identity
from tests.workers.bench import spec, version_of

SETTINGS = RuntimeSettings()
MLP = [spec("x", Datatype.FP32, -1, 64)], [spec("y", Datatype.FP32, -1, 10)]


def load_mlp(root: Path) -> Session:
    path = write_model("mlp", root) / "1" / "model.onnx"
    return OnnxRuntime().load(version_of(path, *MLP), SETTINGS)


def test_outputs_go_in_place_once_their_shapes_are_known(tmp_path: Path) -> None:
    session, memory = load_mlp(tmp_path), Memory(np.ones((2, 64), np.float32))
    first = memory.run(session, (0,))
    assert first.parts is not None
    memory.place.region.view[128:208] = bytes(80)
    assert memory.run(session, (0,)).parts is None
    assert bytes(memory.place.region.view[128:208]) == bytes(first.parts[0])
    memory.place.region.view[128:208] = bytes(80)
    assert memory.run(session, (0,)).parts is None
    assert bytes(memory.place.region.view[128:208]) == bytes(first.parts[0])


def test_a_place_that_became_too_small_is_not_written(tmp_path: Path) -> None:
    session, memory = load_mlp(tmp_path), Memory(np.ones((2, 64), np.float32))
    for _ in range(3):
        memory.run(session, (0,))
    memory.place = memory.place._replace(capacity=64)
    memory.place.region.view[:] = bytes(len(memory.place.region.view))
    assert memory.run(session, (0,)).parts is not None
    assert not any(memory.place.region.view)


def test_a_failed_run_in_place_does_not_end_running_in_place(tmp_path: Path) -> None:
    """A request whose values the model refuses says nothing about shapes."""
    model = model_bytes(
        "pick",
        [node("Gather", ["table", "x"], ["y"])],
        inputs=[tensor_port("table", "FP32", ["n"]), tensor_port("x", "INT64", ["k"])],
        outputs=[tensor_port("y", "FP32", ["k"])],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model)
    inputs = [spec("table", Datatype.FP32, -1), spec("x", Datatype.INT64, -1)]
    session = OnnxRuntime().load(version_of(path, inputs, [spec("y", Datatype.FP32, -1)]), SETTINGS)
    table = np.arange(3, dtype=np.float32)
    good, bad = Memory(table, np.array([2])), Memory(table, np.array([7]))
    good.run(session, (0,))
    for _ in range(2):
        assert good.run(session, (0,)).parts is None
        with pytest.raises((InvalidRequest, RunFailed), match=r"indices element out of data bounds"):
            bad.run(session, (0,))
    assert good.run(session, (0,)).parts is None
    assert good.outputs(good.run(session, (0,))) == [np.float32(2).tobytes()]


def test_nothing_is_prepared_before_it_ran_in_place(tmp_path: Path) -> None:
    session, memory = load_mlp(tmp_path), Memory(np.ones((2, 64), np.float32))
    for number in range(3):
        assert (memory.prepared(session, (0,)) is None) == (number < 2)
        memory.run(session, (0,))


def test_a_prepared_run_whose_outputs_get_another_shape_fails(tmp_path: Path) -> None:
    model = model_bytes(
        "nonzero",
        [node("NonZero", ["x"], ["y"])],
        inputs=[tensor_port("x", "FP32", ["n"])],
        outputs=[tensor_port("y", "INT64", [1, "k"])],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model)
    version = version_of(path, [spec("x", Datatype.FP32, -1)], [spec("y", Datatype.INT64, 1, -1)])
    session, memory = OnnxRuntime().load(version, SETTINGS), Memory(np.array([0, 1, 1], np.float32))
    for _ in range(2):
        memory.run(session, (0,))
    prepared = memory.prepared(session, (0,))
    assert prepared is not None
    prepared()
    for other in ([0, 0, 1], [1, 1, 1]):
        memory.put(np.array(other, np.float32))
        with pytest.raises(Exception, match=r"(?i)shape"):
            prepared()


@pytest.mark.parametrize(
    ("operator", "shapes", "reason"),
    [
        ("Add", ((3,), (2,)), "Attempting to broadcast an axis by a dimension other than 1. 2 by 3"),
        ("MatMul", ((3, 3), (2, 2)), "MatMul dimension mismatch"),
        ("Concat", ((3, 3), (2, 2)), "Non concat axis dimensions must match"),
    ],
)
def test_a_failed_run_tells_the_reason_and_no_place_in_the_runtimes_source(
    tmp_path: Path, operator: str, shapes: tuple[tuple[int, ...], ...], reason: str
) -> None:
    ports = [
        tensor_port(name, "FP32", [f"{name}{axis}" for axis in range(len(shapes[0]))]) for name in ("a", "b")
    ]
    attributes: dict[str, Any] = {"axis": 0} if operator == "Concat" else {}
    model = model_bytes(
        "mismatch",
        [node(operator, ["a", "b"], ["y"], **attributes)],
        inputs=ports,
        outputs=[tensor_port("y", "FP32", [f"y{axis}" for axis in range(len(shapes[0]))])],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model)
    free = [-1] * len(shapes[0])
    version = version_of(
        path,
        [spec("a", Datatype.FP32, *free), spec("b", Datatype.FP32, *free)],
        [spec("y", Datatype.FP32, *free)],
    )
    session = OnnxRuntime().load(version, SETTINGS)
    with pytest.raises(RunFailed) as failure:
        Memory(*(np.ones(shape, np.float32) for shape in shapes)).run(session, (0,))
    text = str(failure.value)
    assert f"running {operator} node" in text
    assert reason in text
    assert not re.search(r"\.(h|cc|cu):\d|onnxruntime_src|::", text)
    assert text == text.strip()


@pytest.mark.parametrize(
    ("index", "parameters", "room_bytes", "limit"),
    [
        (0, {}, 0, None),
        (1, {"gpu_mem_limit": "4294967296"}, 0, "4294967296"),
        (0, {"gpu_mem_limit": "0"}, 0, None),
        (0, {}, 3 << 30, "3221225472"),
        (0, {"gpu_mem_limit": "0"}, 3 << 30, "3221225472"),
        (1, {"gpu_mem_limit": "4294967296"}, 3 << 30, "3221225472"),
        (1, {"gpu_mem_limit": "4294967296"}, 5 << 30, "4294967296"),
    ],
)
def test_a_session_is_asked_for_on_the_device_that_was_chosen_within_its_limit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    index: int,
    parameters: dict[str, str],
    room_bytes: int,
    limit: str | None,
) -> None:
    """An onnxruntime that has the provider, and notes what it is asked for."""
    path = write_model("mlp", tmp_path) / "1" / "model.onnx"
    both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    asked: list[Any] = []

    def refuse(path: str, options: Any, providers: list[Any], **_: Any) -> None:
        asked.extend(providers)
        raise RuntimeError("no such device here")

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: both)
    runtime = OnnxRuntime()
    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    monkeypatch.setattr(onnx, "_cuda", lambda index: SimulatedCuda())
    version = version_of(path, *MLP, device=ON_CUDA, parameters=parameters)
    with pytest.raises(LoadFailed, match="no such device here"):
        runtime.load(version, replace(SETTINGS, device=cuda(index), room_bytes=room_bytes))
    (provider, options), last = asked
    assert (provider, last) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert (options["device_id"], options.get("gpu_mem_limit")) == (str(index), limit)


def test_a_session_that_silently_runs_elsewhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An onnxruntime that has the provider, but whose sessions fall back, as when a driver is missing."""
    path = write_model("mlp", tmp_path) / "1" / "model.onnx"
    both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    real = onnxruntime.InferenceSession
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: both)
    monkeypatch.setattr(onnx, "_cuda", lambda index: SimulatedCuda())
    monkeypatch.setattr(
        onnxruntime,
        "InferenceSession",
        lambda path, options, providers, **_: real(path, options, providers=providers[1:]),
    )
    with pytest.raises(LoadFailed, match="silently runs on CPUExecutionProvider; check the driver"):
        OnnxRuntime().load(version_of(path, *MLP, device=ON_CUDA), SETTINGS)


def test_strings_in_with_bfloat16_out_is_refused(tmp_path: Path) -> None:
    model = model_bytes(
        "mixed",
        [node("Identity", ["x"], ["y"]), node("Identity", ["a"], ["b"])],
        inputs=[tensor_port("x", "BYTES", ["n"]), tensor_port("a", "BF16", ["n"])],
        outputs=[tensor_port("y", "BYTES", ["n"]), tensor_port("b", "BF16", ["n"])],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model)
    kinds = Datatype.BYTES, Datatype.BF16
    inputs, outputs = (
        [spec(name, kind, -1) for name, kind in zip(names, kinds, strict=True)] for names in ("xa", "yb")
    )
    with pytest.raises(LoadFailed, match="cannot run BYTES inputs together with BF16"):
        OnnxRuntime().load(version_of(path, inputs, outputs), SETTINGS)


def test_external_data_beside_the_model_is_read(tmp_path: Path) -> None:
    path = write_model("external", tmp_path) / "1" / "model.onnx"
    version = version_of(path, [spec("x", Datatype.FP32, -1, 32)], [spec("y", Datatype.FP32, -1, 8)])
    session = OnnxRuntime().load(version, SETTINGS)
    memory = Memory(np.eye(1, 32, dtype=np.float32))
    assert memory.outputs(memory.run(session, (0,))) == [np.arange(8, dtype=np.float32).tobytes()]


def test_external_data_through_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    path = write_model("external", tmp_path) / "1" / "model.onnx"
    secret = tmp_path / "secret.bin"
    (path.parent / "weights.bin").rename(secret)
    (path.parent / "weights.bin").symlink_to(secret)
    version = version_of(path, [spec("x", Datatype.FP32, -1, 32)], [spec("y", Datatype.FP32, -1, 8)])
    with pytest.raises(LoadFailed, match=r"(?i)external data") as caught:
        OnnxRuntime().load(version, SETTINGS)
    assert str(path.parent) not in str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "level", "expected"),
    [
        ({}, 0, (3, 1, "ORT_SEQUENTIAL", "ORT_ENABLE_ALL", True, True)),
        ({"intra_op_thread_count": "0", "inter_op_thread_count": "5"}, -1,
         (3, 1, "ORT_SEQUENTIAL", "ORT_ENABLE_BASIC", True, True)),
        ({"intra_op_thread_count": "2", "execution_mode": "1", "inter_op_thread_count": "4"}, 1,
         (2, 4, "ORT_PARALLEL", "ORT_ENABLE_EXTENDED", True, True)),
        ({"execution_mode": "1", "enable_mem_arena": "0", "enable_mem_pattern": "0"}, 2,
         (3, 3, "ORT_PARALLEL", "ORT_DISABLE_ALL", False, False)),
        ({"intra_op_thread_count": "1024", "execution_mode": "1", "inter_op_thread_count": "1024"}, 0,
         (4, 4, "ORT_PARALLEL", "ORT_ENABLE_ALL", True, True)),
    ],
)  # fmt: skip
def test_a_session_has_the_options_that_its_model_asks_for_on_four_processors(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parameters: dict[str, str],
    level: int,
    expected: tuple[object, ...],
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    version = replace(
        version_of(write_identity(tmp_path), INPUTS, OUTPUTS), parameters=parameters, graph_level=level
    )
    session: Any = OnnxRuntime().load(version, RuntimeSettings(threads=3))
    options = session._session.session_options
    assert expected == (
        options.intra_op_num_threads,
        options.inter_op_num_threads,
        options.execution_mode.name,
        options.graph_optimization_level.name,
        options.enable_cpu_mem_arena,
        options.enable_mem_pattern,
    )
    memory = Memory(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32))
    for _ in range(3):
        assert memory.outputs(memory.run(session, (0, 1)))
