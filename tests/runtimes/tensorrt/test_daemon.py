"""The whole way of a model of TensorRT through a daemon: packed, installed, served at once, then from its engine.

Its processes have a simulated TensorRT, device and CUDA session in the place of NVIDIA's; everything else is real.
"""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from appliance.cli.main import main
from appliance.runtimes.runtime import ENGINE_FILE
from tests.appliance_process import ApplianceProcess
from tests.conftest import Serve
from tests.workers.transformers import flip_bit

pytestmark = pytest.mark.timeout(240)  # each test starts two daemons, and waits for workers at the idle class

MODELS = Path(__file__).parents[3] / "models"
SECTIONS = {
    "store": {"free_floor_bytes": 0},
    "packages": {"unsigned": "allow"},
    "repository": {"runtimes": ["onnx", "tensorrt"]},
    "swap": {"watch_s": 0.3},
    "reload": {"poll_s": 0.2},
}
SIMULATED = """
from types import MappingProxyType

from appliance.runtimes import runtime

PLACE = "tests.runtimes.tensorrt.simulated:SimulatedFaster"
runtime._BUILT_IN = MappingProxyType({**runtime._BUILT_IN, "tensorrt": PLACE})
"""
"""Run by each process before anything else."""


class Site:
    """A store with the digits in it, for TensorRT; daemons that serve it one after the other."""

    def __init__(self, folder: Path, serve: Serve, more: str = "", *, slower: bool = False) -> None:
        self.folder, self.state, self._serve = folder, folder / "state", serve
        self.state.mkdir()
        self._python = folder / "python"
        self._python.mkdir()
        code = SIMULATED.replace("SimulatedFaster", "SimulatedSlower") if slower else SIMULATED
        (self._python / "sitecustomize.py").write_text(code)
        install(folder, self.state, more=more)

    def start(self, before: str = "", **environment: str) -> ApplianceProcess:
        paths = os.pathsep.join((str(self._python), os.environ["PYTHONPATH"]))
        return self._serve(
            None,
            SECTIONS,
            arguments=("--state-dir", str(self.state)),
            environment={"PYTHONPATH": paths, **environment},
            before=before,
        )

    @property
    def engine(self) -> Path:
        (engine,) = (self.state / "serve" / "forms").glob(f"*/{ENGINE_FILE}")
        return engine


CONFIG = """
backend: "tensorrt"
instance_group [ { kind: KIND_GPU } ]
dynamic_batching { preferred_batch_size: [ 4 ] }
"""
BOX = """
[store]
free_floor_bytes = 0
[packages]
unsigned = "allow"
[repository]
runtimes = ["onnx", "tensorrt"]
"""


def install(folder: Path, state: Path, version: str = "1", more: str = "", scale: float = 1.0) -> None:
    """Pack the digits for TensorRT, with their weights times ``scale``, and without a proof, which would take a GPU,
    and install them."""
    home, config, package = (
        folder / "sources" / "digits",
        folder / "box.toml",
        folder / f"digits-{version}.model",
    )
    (home / version).mkdir(parents=True)
    model = onnx.load(MODELS / "digits" / "1" / "model.onnx")
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.size > 1:
            tensor.CopyFrom(numpy_helper.from_array(values * np.float32(scale), tensor.name))
    (home / version / "model.onnx").write_bytes(model.SerializeToString())
    (home / "config.pbtxt").write_text(CONFIG + more)
    config.write_text(BOX)
    named = ("-o", str(package), "--config", str(config))
    assert main(["model", "pack", str(home), "--version", version, "--no-proof", *named]) == 0
    place = ("--state-dir", str(state), "--config", str(config))
    assert main(["model", "install", str(package), *place]) == 0


@pytest.fixture
def site(tmp_path: Path, serve: Serve) -> Site:
    return Site(tmp_path, serve)


def ask(daemon: ApplianceProcess, rows: int) -> list[float]:
    """What the model says of ``rows`` equal pictures, which has to be the same of each."""
    tensor = {"name": "image", "shape": [rows, 8, 8], "datatype": "FP32", "data": [0.5] * 64 * rows}
    body = json.dumps({"inputs": [tensor]}).encode()
    with urllib.request.urlopen(f"http://{daemon.http}/v2/models/digits/infer", body, timeout=60) as answer:
        data: list[float] = json.load(answer)["outputs"][0]["data"]
    assert len(data) == 10 * rows
    assert all(data[10 * row : 10 * row + 10] == pytest.approx(data[:10]) for row in range(rows))
    return data[:10]


def entry(document: dict[str, Any]) -> dict[str, Any]:
    (model,) = document["models"]
    assert isinstance(model, dict)
    return model


def is_packed(document: dict[str, Any]) -> bool:
    return bool(entry(document)["packed"]) and entry(document)["state"] == "READY"


def until_packed(daemon: ApplianceProcess) -> None:
    daemon.until("an engine that serves", is_packed)


def stop(daemon: ApplianceProcess) -> None:
    daemon.signal(signal.SIGTERM)
    assert daemon.process.wait(30) == 0, daemon.log()


def test_it_answers_at_once_and_then_the_same_from_its_engine_which_is_there_after_a_restart(
    site: Site,
) -> None:
    daemon = site.start()
    first = ask(daemon, 1)
    until_packed(daemon)
    assert [ask(daemon, rows) for rows in (1, 4, 7, 32)] == [pytest.approx(first, abs=1e-6)] * 4
    assert "the packed form is under way" in daemon.log()
    assert entry(daemon.status())["notes"] == []
    stop(daemon)
    inode = site.engine.stat().st_ino
    daemon = site.start()
    until_packed(daemon)
    assert ask(daemon, 3) == pytest.approx(first, abs=1e-6)
    assert "building the packed form" not in daemon.log()
    assert site.engine.stat().st_ino == inode


def test_an_engine_that_is_slower_than_the_session_is_abandoned_and_not_built_again(
    tmp_path: Path, serve: Serve
) -> None:
    site = Site(tmp_path, serve, slower=True)

    def said(document: dict[str, Any]) -> bool:
        return any("its engine is slower: a run takes" in note for note in entry(document)["notes"])

    daemon = site.start()
    first = ask(daemon, 1)
    daemon.until("an engine that is not taken", said)
    assert not is_packed(daemon.status())
    assert entry(daemon.status())["state"] == "READY"
    assert ask(daemon, 7) == pytest.approx(first, abs=1e-6)
    (line,) = [line for line in daemon.log().splitlines() if "packed form abandoned" in line]
    assert "in the session that it has without (medians of" in line
    assert "version unavailable" not in daemon.log()
    (form,) = (site.state / "serve" / "forms").iterdir()
    assert "its engine is slower" in (form / "refused").read_text()
    assert not (form / ENGINE_FILE).exists()
    assert not (form / "seal").exists()
    history = (site.state / "serve" / "history.jsonl").read_text().splitlines()
    last = json.loads(history[-1])
    assert last["ending"] == "abandoned"
    assert last["identity"].endswith("#packed")
    stop(daemon)
    daemon = site.start()
    daemon.until("why there is no engine", said)
    assert "refused before" in str(entry(daemon.status())["notes"])
    assert not is_packed(daemon.status())
    assert "the packed form is under way" not in daemon.log(), "it is built again"
    assert ask(daemon, 3) == pytest.approx(first, abs=1e-6)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda site: flip_bit(str(site.engine), 5), "is not"),
        (lambda site: (site.engine.parent / "seal").unlink(), "this box has not sealed it"),
    ],
    ids=["flipped", "unsealed"],
)
def test_an_engine_that_does_not_hold_any_more_is_dropped_aloud_and_built_anew_while_the_model_serves(
    site: Site, spoil: Callable[[Site], None], said: str
) -> None:
    daemon = site.start()
    until_packed(daemon)
    stop(daemon)
    spoil(site)
    daemon = site.start()
    ask(daemon, 2)
    until_packed(daemon)
    daemon.wait_log("packed form dropped")
    (line,) = [line for line in daemon.log().splitlines() if "packed form dropped" in line]
    assert said in line
    assert "packed form built" in daemon.log()
    end = time.monotonic() + 30
    while len(list((site.state / "serve" / "forms").iterdir())) > 1:
        assert time.monotonic() < end, "what was there before does not leave"


CHANGING = """
import os
import pynvml
from tests.devices.simulated_nvml import ANY, Board, SimulatedNvml
class Changing(Board):
    @property
    def errors(self):
        return {ANY: pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH} if os.path.exists("PLACE") else {}
    @errors.setter
    def errors(self, _):
        pass
pynvml.nvmlLib = SimulatedNvml(Changing(processes=()))
"""
"""A driver that is another one as soon as there is a file."""


def test_no_engine_is_opened_once_the_driver_was_changed_until_the_daemon_starts_anew(
    site: Site, tmp_path: Path
) -> None:
    place = tmp_path / "changed"
    daemon = site.start(CHANGING.replace("PLACE", str(place)))
    first = ask(daemon, 1)
    until_packed(daemon)
    place.touch()
    daemon.until("a driver that was changed", lambda now: now["devices"][0].get("driver_changed"))
    assert is_packed(daemon.status()), "what runs keeps what it has"
    daemon.wait_log("version unloaded")
    (worker,) = daemon.status()["workers"]
    os.kill(worker["pid"], signal.SIGKILL)
    daemon.until(
        "a session without an engine",
        lambda now: entry(now)["state"] == "READY" and not entry(now)["packed"] and entry(now)["workers"],
    )
    assert ask(daemon, 3) == pytest.approx(first, abs=1e-6)
    install(tmp_path / "second", site.state, "2")
    now = daemon.until(
        "a new version without an engine",
        lambda now: [each["version"] for each in now["models"] if each["notes"]] == [2],
    )
    (note,) = [each["notes"][0] for each in now["models"] if each["version"] == 2]
    assert "the driver was changed under the appliance" in note
    assert daemon.log().count("building the packed form") == 1
    stop(daemon)
    place.unlink()
    daemon = site.start()
    daemon.until("an engine of the new version", serves(2))


REFIT = 'parameters { key: "tensorrt_refit" value { string_value: "1" } }\n'


def serves(version: int) -> Callable[[dict[str, Any]], bool]:
    """Whether that version serves from its engine, alone."""

    def holds(document: dict[str, Any]) -> bool:
        ready = [model for model in document["models"] if model["state"] == "READY"]
        return [(str(model["version"]), bool(model["packed"])) for model in ready] == [(str(version), True)]

    return holds


def test_the_next_version_takes_the_engine_of_the_one_before_with_its_own_weights(
    tmp_path: Path, serve: Serve
) -> None:
    site = Site(tmp_path, serve, REFIT)
    daemon = site.start()
    first = ask(daemon, 1)
    until_packed(daemon)
    before = site.engine.parent.name
    install(tmp_path, site.state, "2", REFIT, 0.5)
    daemon.until("the next version from its engine", serves(2))
    second = ask(daemon, 3)
    assert second != pytest.approx(first, abs=1e-3)
    assert f"digits/2: its engine is {before} with other weights" in daemon.log()
    end = time.monotonic() + 30
    while len(forms := list((site.state / "serve" / "forms").iterdir())) > 1:
        assert time.monotonic() < end, "what the next version was made from does not leave"
    assert forms[0].name != before
    stop(daemon)
    daemon = site.start()
    daemon.until("the engine after a restart", serves(2))
    assert ask(daemon, 3) == pytest.approx(second, abs=1e-6)
    assert "building the packed form" not in daemon.log()
