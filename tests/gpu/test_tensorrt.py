"""TensorRT itself on a GPU: engines that are built, sealed, run, captured and given other weights, and a daemon's.

The one part of `make test-gpu` that is left out, and said to be, where what it needs is not installed: a box with a GPU
may be without TensorRT. Written against the same code with *simulated* libraries; docs/TENSORRT.md says what was seen.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from appliance.config.repository import RepositoryConfig
from appliance.domain.device_wish import ON_CUDA
from appliance.domain.digest import digest_of
from appliance.domain.errors import LoadFailed
from appliance.domain.golden import GoldenCase, GoldenSet, TensorFile, write_golden
from appliance.domain.session_options import ENGINE_FREE_MAX, ENGINE_REFIT, ENGINE_WEIGHTS_MAX
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.repository.model_directory import read_model_directory
from appliance.runtimes.runtime import ENGINE_FILE, Runtime, RuntimeSettings, Session, note_of
from appliance.runtimes.tensorrt.runtime import TensorrtRuntime
from appliance.runtimes.tensorrt.session import EngineSession
from appliance.tools.conformance.memory import Memory
from appliance.workers.child.form_builder import build_form
from appliance.workers.daemon.forms_on_disk import for_worker, take_up_form
from appliance.workers.port import FormBuilt
from models.generators.graph import model_bytes, node, tensor_port
from tests.conftest import Serve
from tests.devices.absent import absent
from tests.runtimes.tensorrt.other_weights import other_weights
from tests.runtimes.tensorrt.test_daemon import SECTIONS, ask, install, is_packed, until_packed
from tests.workers.transformers import flip_bit, write_version

pytestmark = pytest.mark.timeout(300)  # an engine is built

MODELS = Path(__file__).parents[2] / "models"
WITHIN = 1e-3
"""Probabilities: both are built with TF32 allowed."""
CAPACITY = 48 << 10


@pytest.fixture(scope="module")
def tensorrt() -> TensorrtRuntime:
    """The runtime as workers have it."""
    try:
        runtime = TensorrtRuntime()
    except ImportError as problem:
        pytest.skip(f"no TensorRT: {problem}")
    if not runtime._driver.devices:
        absent(f"no GPU: {runtime._driver.problem}")
    return runtime


class Box:
    """The digits with a place for engines; ``version`` is what is built and loaded."""

    def __init__(self, runtime: Runtime, folder: Path) -> None:
        reading = read_model_directory(str(MODELS), "digits", RepositoryConfig())
        assert reading is not None
        self.runtime = runtime
        self.forms = folder / "forms"
        self.version = replace(
            reading.servable[-1].model, runtime="tensorrt", device=ON_CUDA, digest="d" * 64,
            forms=str(self.forms), weights=None, golden="",
        )  # fmt: skip
        """Without a golden set, so that engines are compared with their CUDA session."""

    def build(self) -> Path:
        """The engine of the version, built, proven and sealed."""
        name, nbytes, _ = build_form(
            for_worker(self.version), self.runtime, RuntimeSettings(), lambda *word: None
        )
        taken = take_up_form(self.version, FormBuilt(1, 1, name, nbytes, 1, None))
        assert taken is not None
        assert taken.failure is None
        return self.forms / name / ENGINE_FILE

    def opened(self, engine: Path, weights_max: str = "", *, beside: bool = False) -> Session:
        """The session of an engine, with the CUDA session ``beside`` it; it keeps so much of its weights there."""
        parameters = {ENGINE_WEIGHTS_MAX: weights_max} if weights_max else {}
        version = replace(
            for_worker(self.version),
            path=str(engine),
            digests={str(engine): digest_of(engine.read_bytes())},
            parameters={**self.version.parameters, **parameters},
        )
        original = for_worker(self.version) if beside else None
        return self.runtime.load(version, RuntimeSettings(packed=True, original=original))

    def plain(self) -> Session:
        """The CUDA session of the version."""
        return self.runtime.load(for_worker(self.version), RuntimeSettings())


@pytest.fixture
def box(tensorrt: TensorrtRuntime, tmp_path: Path) -> Box:
    return Box(tensorrt, tmp_path)


def answer(session: Session, *given: Any) -> bytes:
    """The first output."""
    memory = Memory(*given, capacity=CAPACITY)
    return memory.outputs(memory.run(session, (0,)))[0]


def probabilities(session: Session, rows: int) -> Any:
    """What it says of always the same pictures."""
    pictures = np.random.default_rng(rows).random((rows, 8, 8), np.float32) * 16
    return np.frombuffer(answer(session, pictures), np.float32).reshape(rows, 10)


def differ(one: Session, other: Session) -> float:
    """The largest difference of two sessions' answers."""
    return float(
        max(np.abs(probabilities(one, rows) - probabilities(other, rows)).max() for rows in (1, 4, 7, 32))
    )


def test_an_engine_answers_as_its_cuda_session_also_from_a_graph(
    box: Box, capfd: pytest.CaptureFixture[str]
) -> None:
    engine, plain = box.opened(box.build()), box.plain()
    assert isinstance(engine, EngineSession)
    assert differ(engine, plain) < WITHIN
    for rows in (1, 4, 7, 32, 4, 1):
        first, *again = (probabilities(engine, rows) for _ in range(6))
        assert all((each == first).all() for each in again)
    assert engine._graphs.captured
    assert "without CUDA graphs" not in capfd.readouterr().err
    engine.close()
    plain.close()


def test_an_engine_lives_on_when_the_one_that_was_opened_first_is_closed(box: Box) -> None:
    built = box.build()
    first, second, plain = box.opened(built), box.opened(built), box.plain()
    first.close()
    del first
    third = box.opened(built)
    assert max(differ(second, plain), differ(third, plain)) < WITHIN
    for each in (second, third, plain):
        each.close()


def test_weights_that_are_elsewhere_take_less_of_the_device_and_answer_the_same(
    box: Box, tmp_path: Path
) -> None:
    large = write_version(tmp_path / "large")
    assert large.weights is not None
    graph = onnx.load(large.path).SerializeToString()  # weights and all
    Path(large.path).write_bytes(graph)
    box.version = replace(
        large, runtime="tensorrt", device=ON_CUDA, digest="e" * 64, forms=str(box.forms), weights=None,
        parameters={ENGINE_WEIGHTS_MAX: str(len(graph) // 4)},
    )  # fmt: skip
    engine = box.build()
    part, whole = box.opened(engine), box.opened(engine, "0")
    saved = whole.memory() - part.memory()
    print(f"weights that are elsewhere: {saved} of {len(graph)} bytes")
    assert saved > len(graph) // 2
    (port,) = box.version.inputs
    given = np.random.default_rng(3).standard_normal((1, *port.shape), np.float32)
    one, other = (answer(each, given) for each in (part, whole))
    assert one == other
    part.close()
    whole.close()


def test_an_engine_takes_the_weights_of_the_next_version(
    box: Box, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    box.version = replace(box.version, parameters={ENGINE_REFIT: "1"})
    box.build()
    other_weights(box, tmp_path / "other")
    engine = box.opened(box.build())
    assert "with other weights" in capfd.readouterr().err
    plain = box.plain()
    assert differ(engine, plain) < WITHIN
    engine.close()
    plain.close()


def test_a_node_that_tensorrt_does_not_take_is_named_and_its_cuda_session_answers(
    box: Box, tmp_path: Path
) -> None:
    home = tmp_path / "unique"
    home.mkdir()
    graph = model_bytes(
        "unique",
        [node("Unique", ["image"], ["probabilities"])],
        inputs=[tensor_port("image", "FP32", ["batch", 8, 8])],
        outputs=[tensor_port("probabilities", "FP32", ["n"])],
    )
    (home / "model.onnx").write_bytes(graph)
    free = TensorSpec(name="probabilities", datatype=Datatype.FP32, shape=(-1,))
    given = replace(box.version.inputs[0], shape=(-1, 8, 8))
    box.version = replace(
        box.version, path=str(home / "model.onnx"), max_batch_size=0, batching=None, inputs=(given,), outputs=(free,),
        parameters={ENGINE_FREE_MAX: "8"},
    )  # fmt: skip
    with pytest.raises(LoadFailed, match=r"does not take node '\w*' \(Unique\)"):
        box.build()
    plain = box.plain()
    assert answer(plain, np.ones((1, 8, 8), np.float32)) == np.float32(1).tobytes()
    plain.close()


def test_a_length_that_no_engine_was_built_for_is_answered_by_the_session_beside_it(
    box: Box, tmp_path: Path
) -> None:
    graph = model_bytes(
        "text",
        [node("Relu", ["image"], ["probabilities"])],
        inputs=[tensor_port("image", "FP32", ["batch", "length"])],
        outputs=[tensor_port("probabilities", "FP32", ["batch", "length"])],
    )
    (tmp_path / "model.onnx").write_bytes(graph)
    file, five = TensorFile(), np.arange(-2, 3, dtype=np.float32).reshape(1, 5)
    given = file.add("image", Datatype.FP32, five.shape, five.tobytes())
    right = file.add("probabilities", Datatype.FP32, five.shape, np.maximum(five, 0).tobytes())
    case = GoldenCase(name="five", inputs=(given,), outputs=(right,))
    write_golden(str(tmp_path / "golden"), GoldenSet(cases=(case,), tolerances={}), file.data())
    inputs, outputs = ((replace(spec, shape=(-1,)),) for (spec,) in (box.version.inputs, box.version.outputs))
    box.version = replace(
        box.version, path=str(tmp_path / "model.onnx"), inputs=inputs, outputs=outputs, digest="e" * 64,
        golden=str(tmp_path / "golden" / "set.json"), free_sizes={"image": (64,)},
    )  # fmt: skip
    engine = box.opened(box.build(), beside=True)
    assert "'image' [1, 1] to [32, 64]; all else" in note_of(engine)
    for rows, length in ((1, 64), (3, 65), (32, 5), (1, 4_000), (7, 64)):
        values = np.random.default_rng(length).standard_normal((rows, length), np.float32)
        assert answer(engine, values) == np.maximum(values, 0).tobytes()
    engine.close()


def test_a_changed_engine_is_not_opened(box: Box) -> None:
    engine = box.build()
    digest = digest_of(engine.read_bytes())
    flip_bit(str(engine), 9)
    version = replace(for_worker(box.version), path=str(engine), digests={str(engine): digest})
    with pytest.raises(LoadFailed, match="is not"):
        box.runtime.load(version, RuntimeSettings(packed=True))


def test_a_daemon_answers_at_once_then_from_its_engine_also_after_its_worker_was_killed(
    tensorrt: TensorrtRuntime, tmp_path: Path, serve: Serve
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    install(tmp_path, state)
    daemon = serve(None, SECTIONS, arguments=("--state-dir", str(state)))
    first = ask(daemon, 1)
    until_packed(daemon)
    assert ask(daemon, 7) == pytest.approx(first, abs=WITHIN)
    (pid,) = {each["pid"] for each in daemon.status()["workers"]}
    os.kill(pid, signal.SIGKILL)
    daemon.until(
        "its engine in another worker",
        lambda told: is_packed(told) and {each["pid"] for each in told["workers"]} not in ({pid}, {0}),
    )
    assert ask(daemon, 7) == pytest.approx(first, abs=WITHIN)
    print(json.dumps(daemon.status()["models"]))
