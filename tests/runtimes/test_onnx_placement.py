"""Where ONNX Runtime runs the nodes of a session on a GPU. What it tells of them is of real sessions on the processor,
in which providers are exchanged; no GPU is here, and the session that is made is simulated."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest

from appliance.domain.device_wish import ON_CPU, ON_CUDA
from appliance.domain.errors import LoadFailed
from appliance.domain.tensor import Datatype
from appliance.runtimes import onnx
from appliance.runtimes.onnx import OnnxRuntime
from appliance.runtimes.onnx_placement import RECORD, TOLD_MAX, Placement, placement
from appliance.runtimes.reshape import ReshapedSession
from appliance.runtimes.runtime import RuntimeSettings, note_of
from models.generate import write_model
from models.generators.graph import model_bytes, node, tensor_port
from tests.devices.simulated_cuda import SimulatedCuda
from tests.workers.bench import spec, version_of

SETTINGS = RuntimeSettings()
MLP = [spec("x", Datatype.FP32, -1, 64)], [spec("y", Datatype.FP32, -1, 10)]


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, tell: Callable[[Any], list[Any]] | None) -> list[Any]:
    """An onnxruntime whose sessions say that they have CUDA, though all that they run is on the processor: ``tell``
    gives what they tell of their nodes, made of what they record; None: they are of a release that tells nothing. Gives
    the options of the sessions that are made."""
    real, options_of = onnxruntime.InferenceSession, list[Any]()
    both = ["CUDAExecutionProvider", "CPUExecutionProvider"]

    class Native:
        def __init__(self, session: Any) -> None:
            self._session = session
            if tell is not None:
                self.get_provider_graph_assignment_info = lambda: tell(
                    session.get_provider_graph_assignment_info()
                )

        def __getattr__(self, name: str) -> Any:
            if name == "get_provider_graph_assignment_info":
                raise AttributeError(name)
            return getattr(self._session, name)

    def make(path: str, options: Any, providers: list[Any], **_: Any) -> Any:
        options_of.append(options)
        session = real(path, options, providers=providers[-1:])
        if providers[-1:] == providers:
            return session
        return SimpleNamespace(get_providers=lambda: both, _sess=Native(session._sess))

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: both)
    monkeypatch.setattr(onnxruntime, "InferenceSession", make)
    monkeypatch.setattr(onnx, "_cuda", lambda index: SimulatedCuda())
    return options_of


def on_cuda(*operators: str) -> Callable[[Any], list[Any]]:
    """What a session tells of its nodes, as if these operators were on CUDA."""

    def tell(recorded: Any) -> list[Any]:
        return [
            SimpleNamespace(
                ep_name="CUDAExecutionProvider" if node.op_type in operators else part.ep_name,
                get_nodes=lambda node=node: [node],
            )
            for part in recorded
            for node in part.get_nodes()
        ]

    return tell


def recorded(model: bytes) -> Any:
    """What a real session on the processor tells of its nodes."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(RECORD, "1")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.get_provider_graph_assignment_info()


def test_nodes_are_counted_as_a_real_session_tells_of_them() -> None:
    model = model_bytes(
        "three",
        [
            node("Abs", ["x"], ["a"]),
            node("Exp", ["a"], ["b"]),
            node("Abs", ["b"], ["c"]),
            node("NonZero", ["c"], ["y"]),
        ],
        inputs=[tensor_port("x", "FP32", ["n"])],
        outputs=[tensor_port("y", "INT64", [1, "k"])],
    )
    told = recorded(model)
    assert placement(told, "CPUExecutionProvider") == Placement(4, 0, ())
    assert placement(told, "CPUExecutionProvider").note == ""
    found = placement(told, "CUDAExecutionProvider")
    assert found == Placement(4, 4, ("Abs", "Exp", "NonZero"))
    assert found.nowhere
    some = placement(on_cuda("Abs")(told), "CUDAExecutionProvider")
    assert (some.note, some.nowhere) == ("2 of 4 nodes run on the processor: Exp, NonZero", False)


def test_a_graph_without_nodes_runs_nowhere_and_is_no_error() -> None:
    assert not placement([], "CUDAExecutionProvider").nowhere


def test_operators_are_told_with_their_domain_and_only_so_many() -> None:
    nodes = [SimpleNamespace(domain="ai.onnx.ml", op_type=f"Op{number}") for number in range(TOLD_MAX + 2)]
    part = SimpleNamespace(ep_name="CPUExecutionProvider", get_nodes=lambda: nodes)
    note = placement([part], "CUDAExecutionProvider").note
    assert note.startswith("10 of 10 nodes run on the processor: ai.onnx.ml.Op0, ai.onnx.ml.Op1, ")
    assert note.endswith(", ai.onnx.ml.Op7 and 2 more")


def test_a_session_whose_nodes_all_run_elsewhere_is_refused_though_its_provider_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model("mlp", tmp_path) / "1" / "model.onnx"
    as_on_a_gpu(monkeypatch, on_cuda())
    with pytest.raises(LoadFailed) as refused:
        OnnxRuntime().load(version_of(path, *MLP, device=ON_CUDA), SETTINGS)
    assert re.search(
        r"its session runs all of its 5 nodes on the processor: onnxruntime \S+ has nothing of CUDAExecutionProvider "
        r"for Gemm, Relu; export the model with other operators, or say kind: KIND_CPU",
        str(refused.value),
    )


@pytest.mark.parametrize(
    ("operators", "note"),
    [(("Gemm",), "2 of 5 nodes run on the processor: Relu"), (("Gemm", "Relu"), "")],
)
def test_what_of_a_session_runs_on_the_processor_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operators: tuple[str, ...], note: str
) -> None:
    path = write_model("mlp", tmp_path) / "1" / "model.onnx"
    as_on_a_gpu(monkeypatch, on_cuda(*operators))
    session = OnnxRuntime().load(version_of(path, *MLP, device=ON_CUDA), SETTINGS)
    assert note_of(session) == note
    assert note_of(ReshapedSession(session, version_of(path, *MLP))) == note, "whatever stands before it"


def cannot_tell(recorded: Any) -> list[Any]:
    raise RuntimeError("not for this session")


@pytest.mark.parametrize("tell", [None, cannot_tell], ids=["of a release that does not", "one that cannot"])
def test_a_session_that_does_not_tell_where_nodes_run_is_believed_by_its_providers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tell: Callable[[Any], list[Any]] | None
) -> None:
    path = write_model("mlp", tmp_path) / "1" / "model.onnx"
    as_on_a_gpu(monkeypatch, tell)
    assert note_of(OnnxRuntime().load(version_of(path, *MLP, device=ON_CUDA), SETTINGS)) == ""


def test_where_nodes_run_is_recorded_on_a_gpu_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_model("mlp", tmp_path) / "1" / "model.onnx"
    made = as_on_a_gpu(monkeypatch, on_cuda("Gemm", "Relu"))
    runtime = OnnxRuntime()
    for device, records in ((ON_CUDA, True), (ON_CPU, False)):
        runtime.load(version_of(path, *MLP, device=device), SETTINGS)
        try:
            assert (made[-1].get_session_config_entry(RECORD) == "1") is records
        except RuntimeError:  # its word for what was never said
            assert not records
