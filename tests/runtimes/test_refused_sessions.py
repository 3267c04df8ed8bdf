"""Sessions of ONNX Runtime on a GPU beside captures: those that are refused once they, or parts of them, are there go
at once, where nothing is captured, although their refusal is still told. The device is simulated."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from appliance.domain.device_wish import ON_CUDA
from appliance.domain.errors import DeviceFull, LoadFailed, RunFailed
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype
from appliance.runtimes import onnx
from appliance.runtimes.device_graphs import NotNow, capturing
from appliance.runtimes.runtime import Feed, RuntimeSettings
from appliance.tools.conformance.memory import Memory
from models.generate import write_model
from models.generators.graph import model_bytes, node, tensor_port
from tests.devices.simulated_cuda import SimulatedCuda
from tests.runtimes.cuda_bench import ANY_DEVICE
from tests.workers.bench import spec, version_of

ON_THE_PROCESSOR = SimpleNamespace(op_type="Neg", domain="")


class Held:
    """What a session has of the device: where it goes, handles of cuBLAS go. It says of all its nodes that they are on
    the processor."""

    def __init__(self, went: list[str]) -> None:
        self._went = went
        self.inputs_meta = [SimpleNamespace(name="x", type="tensor(float)", shape=["n", 3])]
        self.outputs_meta = [SimpleNamespace(name="y", type="tensor(float)", shape=["n", 3])]
        self.overridable_initializers = list[Any]()

    def __del__(self) -> None:
        try:
            with capturing(ANY_DEVICE):
                self._went.append("beside captures")
        except NotNow:
            self._went.append("apart")

    def get_provider_graph_assignment_info(self) -> list[Any]:
        """One node, elsewhere."""
        part = SimpleNamespace(ep_name="CPUExecutionProvider", get_nodes=lambda: [ON_THE_PROCESSOR])
        return [part]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> SimulatedCuda:
    """The device, for which there is a provider."""
    device = SimulatedCuda()
    monkeypatch.setattr(onnx, "_cuda", lambda index: device)
    names = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    return device


def on_cuda(folder: Path, *, texts: bool) -> ModelVersion:
    """A version; one with texts has no session of its own for the device."""
    path = write_model("mlp", folder) / "1" / "model.onnx"
    outputs = [spec("y", Datatype.FP32, -1, 3), *([spec("t", Datatype.BYTES, -1)] if texts else [])]
    return version_of(path, [spec("x", Datatype.FP32, -1, 3)], outputs, device=ON_CUDA)


@pytest.mark.parametrize("texts", [False, True])
def test_what_was_made_of_a_session_that_fails_goes_while_nothing_is_captured(
    tmp_path: Path, cuda: SimulatedCuda, monkeypatch: pytest.MonkeyPatch, texts: bool
) -> None:
    runtime, went = onnx.OnnxRuntime(), list[str]()

    def make(*arguments: object, **options: object) -> object:
        half = Held(went)
        raise RuntimeError(f"CUDA failure 2: out of memory, with {type(half)}")

    monkeypatch.setattr(onnxruntime, "InferenceSession", make)
    with pytest.raises(LoadFailed, match="no memory left") as told:
        runtime.load(on_cuda(tmp_path, texts=texts), RuntimeSettings())
    assert went == ["apart"]
    assert told.value.__cause__ is not None, "its reason is told all the same"
    assert not cuda.streams


@pytest.mark.parametrize("texts", [False, True])
def test_a_session_that_is_refused_goes_while_nothing_is_captured(
    tmp_path: Path, cuda: SimulatedCuda, monkeypatch: pytest.MonkeyPatch, texts: bool
) -> None:
    runtime, went = onnx.OnnxRuntime(), list[str]()

    def make(*arguments: object, **options: object) -> object:
        return SimpleNamespace(_sess=Held(went), get_providers=lambda: ["CUDAExecutionProvider"])

    monkeypatch.setattr(onnxruntime, "InferenceSession", make)
    with pytest.raises(LoadFailed, match="runs all of its 1 nodes on the processor") as told:
        runtime.load(on_cuda(tmp_path, texts=texts), RuntimeSettings())
    assert went == ["apart"]
    assert told.value.__traceback__ is not None
    assert not cuda.streams


def test_a_thread_that_runs_a_session_with_texts_uses_its_device_first(
    tmp_path: Path, cuda: SimulatedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else CUDA would forbid it to take memory while another thread captures, and spoil the capture."""
    model = model_bytes(
        "texts",
        [node("Identity", ["t"], ["u"])],
        inputs=[tensor_port("t", "BYTES", ["n"])],
        outputs=[tensor_port("u", "BYTES", ["n"])],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model)
    version = version_of(
        path, [spec("t", Datatype.BYTES, -1)], [spec("u", Datatype.BYTES, -1)], device=ON_CUDA
    )
    runtime, real = onnx.OnnxRuntime(), onnxruntime.InferenceSession

    def make(model: Any, options: Any, providers: list[Any], **_: Any) -> Any:
        session = real(model, options, providers=["CPUExecutionProvider"])
        return SimpleNamespace(_sess=session._sess, get_providers=lambda: ["CUDAExecutionProvider"])

    monkeypatch.setattr(onnxruntime, "InferenceSession", make)
    monkeypatch.setattr(onnx, "_note", lambda version, session: "")
    entered = list[int | None]()

    def in_a_thread(do: Any) -> None:
        thread = threading.Thread(target=do)
        thread.start()
        thread.join()
        entered.append(thread.ident)
        assert thread.ident in cuda.entered
        cuda.entered.clear()

    made = list[Any]()
    in_a_thread(lambda: made.append(runtime.load(version, RuntimeSettings())))
    text = b"\x04\x00\x00\x00abcd"
    memory = Memory(np.frombuffer(text, np.uint64))
    in_a_thread(lambda: made.append(memory.outputs(memory.run(made[0], (0,)))))
    in_a_thread(made[0].close)
    assert made[1] == [text]
    assert len(entered) == 3


@pytest.mark.parametrize("kind", ["TextSession", "BoundSession"])
def test_a_run_that_fails_of_a_session_with_texts_is_told_as_any_on_its_device(
    tmp_path: Path, cuda: SimulatedCuda, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A device that is full is no fault of the model, and one that is lost ends the process: it would fail each request
    for good where it has no other models."""
    version = on_cuda(tmp_path, texts=True)
    inputs, ended = [spec("x", Datatype.BYTES, -1)] if kind == "TextSession" else version.inputs, list[int]()
    version = replace(version, inputs=tuple(inputs))
    element = "tensor(string)" if kind == "TextSession" else "tensor(float)"
    ports = [SimpleNamespace(name="x", type=element, shape=[])]
    session = SimpleNamespace(inputs_meta=ports, overridable_initializers=[], outputs_meta=[], words="")

    def fail(*_: object) -> None:
        raise RuntimeError(session.words)

    session.run = fail
    made = SimpleNamespace(_sess=session, get_providers=lambda: ["CUDAExecutionProvider"])
    runtime = onnx.OnnxRuntime()
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **__: made)
    monkeypatch.setattr(onnx, "_note", lambda version, session: "")
    monkeypatch.setattr(os, "kill", lambda pid, number: ended.append(number))
    loaded = runtime.load(version, RuntimeSettings())
    assert type(loaded).__name__ == kind
    monkeypatch.setattr(loaded, "_bind_inputs", fail, raising=False)
    memory, nothing = Memory(np.zeros(0, np.float32)), tuple[Feed | None, ...]((None,))
    session.words = "CUDA failure 2: out of memory ; GPU=0"
    with pytest.raises(DeviceFull, match="its GPU has no memory left"):
        loaded.run(memory.source, nothing, (0,), memory.place)
    with pytest.raises(NotNow), capturing(cuda):
        pass
    assert not ended
    cuda.broken, session.words = True, "CUDA failure 700: an illegal memory access was encountered"
    with pytest.raises(RunFailed, match="illegal memory access"):
        loaded.run(memory.source, nothing, (0,), memory.place)
    assert ended == [signal.SIGABRT]
