"""The state directory goes away under a daemon: what is in memory serves on, and what comes back is taken up."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto

from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.store.layout import INCUMBENTS, RUNNING_LOCK
from appliance.store.running import read_running
from tests.conftest import Serve
from tests.faults.clients import Stream
from tests.repository.onnx_files import plain_model, write_version

Install = Callable[[Path, int], None]
SECTIONS: dict[str, Any] = {
    "store": {"free_floor_bytes": 0},
    "packages": {"unsigned": "allow"},
    "reload": {"poll_s": 0.1},
    "swap": {"watch_s": 0.0},
}


def ready(now: dict[str, Any]) -> list[int]:
    return [entry["version"] for entry in now["models"] if entry["state"] == "READY"]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Make a package of model ``m`` in this version, and install it there."""
    config = tmp_path / "store.toml"
    config.write_text('[store]\nfree_floor_bytes = 0\n[packages]\nunsigned = "allow"\n')

    def run(*words: object) -> None:
        assert main([str(word) for word in words]) == Exit.OK

    def put(state: Path, version: int) -> None:
        source = write_version(tmp_path / "sources", "m", plain_model(element=TensorProto.UINT8), version)
        package = tmp_path / f"m-{version}.model"
        run("model", "pack", source, "--version", version, "-o", package, "--force")
        run("model", "install", package, "--state-dir", state, "--config", config)

    return put


def test_a_state_directory_that_is_moved_away_costs_no_request_and_is_taken_up_when_it_is_back(
    serve: Serve, state: Path, install: Install, tmp_path: Path
) -> None:
    away = tmp_path / "away"
    install(state, 1)
    daemon = serve(None, SECTIONS, arguments=("--state-dir", str(state)))
    daemon.until("the first", lambda now: ready(now) == [1])
    with Stream(daemon.grpc, "m") as stream:
        state.rename(away)
        now = daemon.until("the trouble", lambda now: now["store"]["trouble"])
        assert ready(now) == [1]
        assert "appliance_store_unreadable 1" in daemon.get("/metrics").decode()
        install(away, 2)
        assert [each.version for each in read_running(away)] == [1], "it is still told what runs"
        stream.wait_for(20)
        assert not state.exists(), "nothing is made in its place"
        away.rename(state)
        daemon.until("what was installed meanwhile", lambda now: ready(now) == [2])
        stream.wait_for(20)
    assert set(stream.outcomes) == {"OK"}
    assert daemon.status()["store"]["trouble"] == ""
    assert daemon.log().count("models cannot be read") == 1
    assert daemon.log().count("models can be read again") == 1


def copy_in_use(state: Path, copy: Path) -> None:
    """Copy a state directory that is written to: a file may go while it is copied, and then it is copied anew."""
    while subprocess.run(["cp", "-a", state, copy], check=False, capture_output=True).returncode:
        shutil.rmtree(copy)


def remove_in_use(folder: Path) -> None:
    """Remove a directory that may still be written to for a moment: a file of it may come and go meanwhile."""
    while folder.exists():
        subprocess.run(["rm", "-rf", folder], check=False, capture_output=True)


def test_another_directory_in_its_place_is_taken_over_with_all_that_was_recorded(
    serve: Serve, state: Path, install: Install, tmp_path: Path
) -> None:
    install(state, 1)
    daemon = serve(None, SECTIONS, arguments=("--state-dir", str(state)))
    daemon.until("the first", lambda now: ready(now) == [1])
    install(state, 2)
    daemon.until("the second", lambda now: ready(now) == [2])
    copy_in_use(state, tmp_path / "copy")
    (tmp_path / "copy" / INCUMBENTS).unlink()
    state.rename(tmp_path / "old")
    state.mkdir()  # as a disk leaves its mount point
    daemon.until("the trouble", lambda now: now["store"]["trouble"])
    state.rmdir()
    (tmp_path / "copy").rename(state)
    daemon.until("its end", lambda now: not now["store"]["trouble"])
    assert [each.version for each in read_running(state)] == [2], "no writer takes for free what runs"
    remove_in_use(tmp_path / "old")
    install(state, 3)
    daemon.until("the third", lambda now: ready(now) == [3])
    daemon.signal(signal.SIGTERM)
    daemon.process.wait(30)
    assert json.loads((state / INCUMBENTS).read_bytes())["models"]["m"].startswith("m/3@")
    assert (state / RUNNING_LOCK).exists()


def test_what_could_not_be_loaded_without_it_comes_back_with_it(
    serve: Serve, state: Path, install: Install, tmp_path: Path
) -> None:
    install(state, 1)
    daemon = serve(None, SECTIONS, arguments=("--state-dir", str(state)))
    now = daemon.until("the first", lambda now: ready(now) == [1])
    state.rename(tmp_path / "away")
    daemon.until("the trouble", lambda now: now["store"]["trouble"])
    os.kill(now["workers"][0]["pid"], signal.SIGKILL)
    daemon.until("that it cannot be loaded", lambda now: now["models"][0]["state"] == "UNAVAILABLE")
    (tmp_path / "away").rename(state)
    daemon.until("it again", lambda now: ready(now) == [1])
