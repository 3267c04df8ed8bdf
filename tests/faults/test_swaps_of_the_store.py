"""Swaps of installed versions: packed forms are taken up by themselves, tries and history outlive the daemon."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from appliance.cli.main import main
from appliance.core.rollout.version import Artifact
from appliance.engine.versions.history import read_history
from models.generators.transformer import SIZES, write_transformer
from tests.appliance_process import ApplianceProcess
from tests.conftest import Serve

ONE_EVICTED = {("READY", "resident"), ("READY", "weights_evicted")}
SECTIONS = {
    "store": {"free_floor_bytes": 0},
    "packages": {"unsigned": "allow"},
    "swap": {"watch_s": 0.3},
}


def endings(state: Path) -> list[str]:
    """What the history says of the model, one word for each line."""
    changes = read_history(state / "serve", "t")
    packed = [" packed" if change.artifact is Artifact.PACKED else "" for change in changes]
    return [f"{change.ending.value}{form}" for change, form in zip(changes, packed, strict=True)]


def wait_for(state: Path, wanted: list[str], daemon: ApplianceProcess) -> None:
    """Wait until the history says this."""
    end = time.monotonic() + 60
    while endings(state) != wanted:
        assert time.monotonic() < end, f"{endings(state)}\n{daemon.log()}"
        daemon.status()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A store with a transformer of 10 MB, which is wanted."""
    folder, config = tmp_path / "state", tmp_path / "store.toml"
    folder.mkdir()
    config.write_text('[store]\nfree_floor_bytes = 0\n[packages]\nunsigned = "allow"\n')
    install(folder, "t")
    return folder


def install(folder: Path, name: str) -> None:
    """Make a transformer of 10 MB and install it into the store."""
    home = folder.parent
    write_transformer(home / "sources" / name, SIZES[10], seed=len(name) + ord(name[-1]))
    package = str(home / f"{name}-1.model")
    source = str(home / "sources" / name / "1")
    assert main(["model", "pack", source, "--version", "1", "--name", name, "-o", package]) == 0
    config = str(home / "store.toml")
    assert main(["model", "install", package, "--state-dir", str(folder), "--config", config]) == 0


def test_a_promise_of_a_package_that_is_not_kept_keeps_it_out(
    serve: Serve, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The source has no golden set."""
    sections = {**SECTIONS, "swap": {"watch_s": 0.0, "packed_forms": False}}
    daemon = serve(None, sections, arguments=("--state-dir", str(state)))
    wait_for(state, ["live"], daemon)
    source, package = str(state.parent / "sources" / "t" / "1"), str(state.parent / "t-2.model")
    words = ("--version", "2", "--name", "t", "--promise", "1:1", "--no-proof", "-o", package)
    assert main(["model", "pack", source, *words]) == 0
    assert main(["model", "verify", package]) == 0
    place = ("--state-dir", str(state), "--config", str(state.parent / "store.toml"))
    assert main(["model", "install", package, *place, "--wait", "--url", daemon.http]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert re.search(r"t/2 does not go live: .*take up to [\d,]+ us; 1 us are promised", told), told
    states = {entry["version"]: entry["state"] for entry in daemon.status()["models"]}
    assert states == {1: "READY", 2: "UNAVAILABLE"}


def test_a_packed_form_is_built_and_taken_up_and_used_from_then_on(serve: Serve, state: Path) -> None:
    arguments = ("--state-dir", str(state))
    daemon = serve(None, SECTIONS, arguments=arguments)
    wait_for(state, ["live", "live packed"], daemon)
    daemon.until("the end of the first", lambda now: len(now["workers"]) == 1)
    assert [(entry["state"], entry["reason"]) for entry in daemon.status()["models"]] == [("READY", "")]
    daemon.signal(signal.SIGTERM)
    daemon.process.wait(30)
    again = serve(None, SECTIONS, arguments=arguments)
    again.until("the model", lambda now: now["models"][0]["state"] == "READY")
    again.until("the end of its trial", lambda now: now["models"][0]["trial"] is None)
    assert endings(state) == ["live", "live packed"], "the form was there already"
    tries = json.loads((state / "serve" / "tries.json").read_bytes())
    assert tries["versions"] == {}


def test_nobody_waits_for_a_form_that_is_being_built_when_the_daemon_ends(serve: Serve, state: Path) -> None:
    """The builder is stopped, so that it would never be done by itself."""
    arguments = ("--state-dir", str(state))
    daemon = serve(None, SECTIONS, arguments=arguments)
    daemon.wait_log("building the packed form")
    builder = builder_of(daemon)
    os.kill(builder, signal.SIGSTOP)
    daemon.signal(signal.SIGTERM)
    assert daemon.process.wait(30) == 0
    assert not Path(f"/proc/{builder}").exists()
    assert "the packed form is left unbuilt" in daemon.log()
    assert "killed at shutdown" not in daemon.log(), "the time of grace was over"
    again = serve(None, SECTIONS, arguments=arguments)
    wait_for(state, ["live", "live packed"], again)


HASTY_FIRST = """
import signal
import appliance.workers.daemon.pool as pool
pool.BACKGROUND_PATIENCE = 1
signal.signal(signal.SIGUSR1, lambda number, frame: setattr(pool, "BACKGROUND_PATIENCE", 20))
"""


@pytest.mark.timeout(120)
def test_a_builder_that_never_ends_keeps_no_other_version_from_its_form(serve: Serve, state: Path) -> None:
    """Its time is all that a load in the background has. The one after it has much, for a machine that is busy."""
    install(state, "u")
    sections = {**SECTIONS, "workers": {"load_timeout_ms": 5_000}}
    daemon = serve(None, sections, arguments=("--state-dir", str(state)), before=HASTY_FIRST)
    daemon.wait_log("building the packed form")
    os.kill(builder_of(daemon), signal.SIGSTOP)
    daemon.signal(signal.SIGUSR1)
    daemon.wait_log("a packed form took longer than 5000 ms; raise workers.load_timeout_ms if it needs more")
    daemon.wait_log("packed form built")
    told = [json.loads(line) for line in daemon.log().splitlines() if "packed form" in line]
    begun, ended, _, built = ((each["event"], each["model"]) for each in told)
    assert ended == ("no packed form", begun[1])
    assert {begun[1], built[1]} == {"t/1", "u/1"}
    daemon.until("the other form", lambda now: [it["packed"] for it in now["models"]].count(True) == 1)
    assert daemon.log().count("building the packed form") == 2, "not again in this life"


def builder_of(daemon: ApplianceProcess) -> int:
    """The process that serves nothing, and builds."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        serving = {int(worker["pid"]) for worker in daemon.status()["workers"]}
        zygote = Path(f"/proc/{min(serving)}/stat").read_text().rpartition(")")[2].split()[1]
        forked = Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()
        if others := set(map(int, forked)) - serving:
            (builder,) = others
            return builder
    raise AssertionError(daemon.log())


def ask(daemon: ApplianceProcess, name: str) -> Any:
    """What a transformer says of ones."""
    client = triton.InferenceServerClient(daemon.grpc)
    feed = triton.InferInput("x", [1, 16, SIZES[10].width], "FP32")
    feed.set_data_from_numpy(np.ones((1, 16, SIZES[10].width), dtype=np.float32))
    try:
        return client.infer(name, [feed], client_timeout=60.0).as_numpy("y")
    finally:
        client.close()


@pytest.mark.parametrize("damage", ["flipped", "truncated"])
def test_damage_in_a_packed_form_costs_a_model_without_weights_its_form_and_nobody_an_answer(
    serve: Serve, state: Path, damage: str
) -> None:
    install(state, "u")
    arguments = ("--state-dir", str(state))
    daemon = serve(None, SECTIONS, arguments=arguments)
    daemon.until("both forms", lambda now: daemon.log().count("version unloaded") == 2)
    before = {name: ask(daemon, name) for name in ("t", "u")}
    budget_bytes = daemon.status()["residency"]["used_bytes"] - (4 << 20)
    daemon.signal(signal.SIGTERM)
    daemon.process.wait(30)
    tight = {**SECTIONS, "residency": {"budget_bytes": budget_bytes}}
    daemon = serve(None, tight, arguments=arguments)
    document = daemon.until(
        "one without weights",
        lambda now: {(e["state"], e["residency"]) for e in now["models"]} == ONE_EVICTED,
    )
    (away,) = [entry["name"] for entry in document["models"] if entry["residency"] == "weights_evicted"]
    for weights in (state / "serve" / "forms").glob("*/weights.bin"):
        data = bytearray(weights.read_bytes())
        data[len(data) // 2] ^= 1
        if damage == "truncated":
            os.truncate(weights, 8192)
        else:
            weights.write_bytes(data)
    assert np.allclose(ask(daemon, away), before[away], atol=1e-5)
    states = [(entry["state"], entry["reason"]) for entry in daemon.status()["models"]]
    assert states == [("READY", "")] * 2
