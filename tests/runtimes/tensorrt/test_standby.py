"""An engine with a session beside it for what it was not built for, on a simulated TensorRT and a simulated device."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.cli.main import main
from appliance.domain.device_wish import ON_CUDA
from appliance.domain.digest import digest_of
from appliance.domain.errors import LoadFailed
from appliance.domain.golden import GoldenCase, GoldenSet, TensorFile, write_golden
from appliance.domain.model import Batching, ModelVersion
from appliance.domain.tensor import Datatype
from appliance.runtimes.runtime import Produced, RuntimeSettings, Session
from appliance.runtimes.tensorrt.runtime import TensorrtRuntime
from appliance.runtimes.tensorrt.standby import EngineWithStandby
from appliance.tools.conformance.cases import CASES, Case, Rig
from appliance.tools.conformance.identity import INPUTS, OUTPUTS, onnx_bytes
from appliance.tools.conformance.memory import Memory, any_floats
from appliance.workers.child.form_builder import build_form
from models.generators.graph import model_bytes, node, tensor_port
from tests.appliance_process import ApplianceProcess
from tests.conftest import Serve
from tests.runtimes.tensorrt.simulated import DRIVER, HostDevice, SimulatedLibrary, SimulatedPlain
from tests.runtimes.tensorrt.test_daemon import BOX, CONFIG, SECTIONS, SIMULATED, entry, stop, until_packed
from tests.runtimes.tensorrt.test_session import session_of
from tests.workers.bench import spec, version_of

IDENTITY = version_of("identity", INPUTS, OUTPUTS, free_sizes={"a": (4, 4), "b": (4, 4), "text": (4,)})
TEXT = version_of(
    "text",
    [spec("x", Datatype.FP32, -1)],
    [spec("y", Datatype.FP32, -1)],
    max_batch_size=8,
    batching=Batching(),
    free_sizes={"x": (16,)},
)


def text_bytes() -> bytes:
    """Gives what it takes."""
    return model_bytes(
        "text",
        [node("Identity", ["x"], ["y"])],
        inputs=[tensor_port("x", "FP32", ["n", "length"])],
        outputs=[tensor_port("y", "FP32", ["n", "length"])],
    )


def session_beside(
    version: ModelVersion, graph: bytes, device: HostDevice, folder: Path
) -> EngineWithStandby:
    file = folder / "model.onnx"
    file.write_bytes(graph)
    standby = SimulatedPlain().load(replace(version, path=str(file)), RuntimeSettings())
    return EngineWithStandby(session_of(version, graph, device), standby)


@pytest.fixture
def device() -> HostDevice:
    return HostDevice()


@pytest.fixture
def session(device: HostDevice, tmp_path: Path) -> Iterator[EngineWithStandby]:
    session = session_beside(TEXT, text_bytes(), device, tmp_path)
    yield session
    session.close()
    assert not device.held


@dataclass
class Beside:
    """A runtime for the conformance suite whose engines were built for small requests."""

    folder: Path
    name: str = "tensorrt"

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        if version.path != "identity":
            raise LoadFailed("there is no such engine")
        return session_beside(version, onnx_bytes(), HostDevice(), self.folder)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_conformance(case: Case, tmp_path: Path) -> None:
    rig = Rig(Beside(tmp_path), IDENTITY, replace(IDENTITY, path="nowhere"))
    assert bool(case.run(rig)) == (case.name == "weights")


def test_each_request_is_answered_by_what_takes_it(
    session: EngineWithStandby, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def told(name: str, real: Callable[..., Produced]) -> Callable[..., Produced]:
        def run(*given: Any) -> Produced:
            ran.append(name)
            return real(*given)

        return run

    for name, one in (("engine", session._session), ("standby", session._standby)):
        monkeypatch.setattr(one, "run", told(name, one.run))
    for rows, length in ((2, 16), (3, 17), (8, 1), (1, 400), (2, 0)):
        x = any_floats(rows, length, rows)
        memory = Memory(x)
        produced = memory.run(session, (0,))
        assert produced.shapes == ((rows, length),)
        assert memory.outputs(produced) == [x.tobytes()]
    assert ran == ["engine", "standby", "engine", "standby", "standby"]


def test_only_runs_of_the_engine_are_prepared(session: EngineWithStandby) -> None:
    for length, prepared in ((16, True), (17, False)):
        memory = Memory(any_floats(2, length))
        memory.run(session, (0,))
        given = memory.source, memory.feeds, (0,), memory.place
        assert (session.prepared(*given) is not None) is prepared


def test_it_says_what_goes_which_way_and_holds_what_both_hold(
    session: EngineWithStandby, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert session.note.startswith(
        "its engine takes 'x' [1, 1] to [8, 16]; all else runs in its CUDA session"
    )
    monkeypatch.setattr(session._standby, "note", "3 of 120 nodes run on the processor", raising=False)
    assert session.note.endswith("kept beside it; 3 of 120 nodes run on the processor")
    assert session.memory() == session._session.memory() + session._standby.memory()
    assert session.batch_sizes == session._session.batch_sizes


class Box:
    """A runtime on a simulated device, and a version for it whose file is in ``folder``."""

    def __init__(self, device: HostDevice, folder: Path) -> None:
        self.plain, self.library = SimulatedPlain(), SimulatedLibrary(device)
        self.runtime = TensorrtRuntime(
            lambda: self.library, lambda: DRIVER, lambda index: device.as_cuda, self.plain
        )
        self.engine = folder / "engine.plan"
        (folder / "model.onnx").write_bytes(text_bytes())
        self.version = replace(TEXT, path=str(folder / "model.onnx"), device=ON_CUDA)

    def packed(self, version: ModelVersion) -> ModelVersion:
        """The version with its engine, which is built, in the place of its file."""
        self.runtime.pack(version, RuntimeSettings(), str(self.engine), "")
        digests = {str(self.engine): digest_of(self.engine.read_bytes())}
        return replace(version, path=str(self.engine), digests=digests)


def test_a_session_that_has_no_room_beside_the_engine_leaves_nothing(
    device: HostDevice, tmp_path: Path
) -> None:
    box = Box(device, tmp_path)
    original = box.version
    packed = box.packed(original)
    rooms: list[int] = []

    def load(version: ModelVersion, settings: RuntimeSettings) -> Session:
        assert (version.path, version.runtime, settings.packed) == (original.path, "onnx", False)
        rooms.append(settings.room_bytes)
        raise LoadFailed("no room")

    box.plain.load = load  # type: ignore[method-assign]
    with pytest.raises(LoadFailed, match="no room"):
        box.runtime.load(packed, RuntimeSettings(packed=True, room_bytes=1 << 20, original=original))
    assert 0 < rooms[0] < 1 << 20, "what the engine leaves"
    assert not device.held


def test_what_requests_were_answered_does_not_let_an_engine_take_what_others_have(
    device: HostDevice, tmp_path: Path
) -> None:
    box = Box(device, tmp_path)
    original = replace(box.version, max_batch_size=32, free_sizes={"x": (1 << 24,)})
    packed = box.packed(original)
    device.total = 8 << 30
    settings = RuntimeSettings(packed=True, room_bytes=1 << 20, original=original)
    with pytest.raises(LoadFailed, match=r"takes at least .* bytes of its GPU"):
        box.runtime.load(packed, settings)
    assert not device.held
    assert not box.plain.loaded


def test_an_engine_that_nothing_can_prove_is_not_built_first(device: HostDevice, tmp_path: Path) -> None:
    box = Box(device, tmp_path)
    (tmp_path / "forms").mkdir()
    version = replace(box.version, digest="d" * 64, forms=str(tmp_path / "forms"))
    with pytest.raises(LoadFailed, match="give it a golden set"):
        build_form(version, box.runtime, RuntimeSettings(), lambda name, verdict, reason: None)
    assert not box.library.asked


class TestDaemon:
    """A whole daemon, real but for TensorRT, device and CUDA session."""

    @pytest.fixture
    def daemon(self, tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> ApplianceProcess:
        home, python, state = tmp_path / "text", tmp_path / "python", tmp_path / "state"
        for folder in (home / "1" / "golden", python, state):
            folder.mkdir(parents=True)
        (home / "1" / "model.onnx").write_bytes(text_bytes())
        (home / "config.pbtxt").write_text(
            CONFIG.replace("preferred_batch_size: [ 4 ]", "") + "max_batch_size: 8\n"
        )
        file, raw = TensorFile(), np.arange(5, dtype=np.float32).tobytes()
        tensors = [(file.add(name, Datatype.FP32, (1, 5), raw),) for name in "xy"]
        case = GoldenCase(name="five", inputs=tensors[0], outputs=tensors[1])
        write_golden(str(home / "1" / "golden"), GoldenSet(cases=(case,), tolerances={}), file.data())
        settled = "from appliance.engine.versions import shape_history\nshape_history.SETTLED_NS = 1\n"
        looks = "from appliance.engine.control import forms\nforms.LOOK_NS = 10_000_000\n"
        (python / "sitecustomize.py").write_text(SIMULATED + settled + looks)
        (tmp_path / "box.toml").write_text(BOX)
        package, config = str(tmp_path / "text.model"), ("--config", str(tmp_path / "box.toml"))
        assert main(["model", "pack", str(home), "--no-proof", "-o", package, *config]) == 0
        assert main(["model", "install", package, "--state-dir", str(state), *config]) == 0
        monkeypatch.setenv("PYTHONPATH", f"{python}:{Path(__file__).parents[3]}")
        return serve(None, SECTIONS, arguments=("--state-dir", str(state)))

    @pytest.mark.timeout(240)  # workers at the idle class
    def test_an_engine_is_built_for_what_requests_brought_and_longer_ones_are_answered_as_before(
        self, daemon: ApplianceProcess
    ) -> None:
        daemon.until("it serves", lambda now: entry(now)["state"] == "READY")
        daemon.until(
            "what it waits for", lambda now: "for the shapes that requests have" in str(entry(now)["notes"])
        )
        assert "building the packed form" not in daemon.log()
        ask(daemon, 9)
        until_packed(daemon)
        (note,) = entry(daemon.status())["notes"]
        assert note.startswith("its engine takes 'x' [1, 1] to [8, 9]; all else runs in its CUDA session")
        for length in (9, 10, 3, 400):
            ask(daemon, length)
        assert daemon.log().count("building the packed form") == 1
        stop(daemon)


def ask(daemon: ApplianceProcess, length: int) -> None:
    """It says again what it is told."""
    data = [float(each) for each in range(length)]
    body: dict[str, Any] = {"inputs": [{"name": "x", "shape": [1, length], "datatype": "FP32", "data": data}]}
    url = f"http://{daemon.http}/v2/models/text/infer"
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60) as answer:
        assert json.load(answer)["outputs"][0]["data"] == data
