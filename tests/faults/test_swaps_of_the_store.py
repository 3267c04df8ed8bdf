"""Swaps of installed versions: packed forms are taken up by themselves, tries and history outlive the daemon."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from appliance.cli.main import main
from appliance.engine.history import read_history
from models.generators.transformer import SIZES, write_transformer
from tests.appliance_process import ApplianceProcess
from tests.conftest import Serve

SECTIONS = {
    "store": {"free_floor_bytes": 0},
    "packages": {"unsigned": "allow"},
    "swap": {"watch_s": 0.3},
}


def endings(state: Path) -> list[str]:
    """What the history says of the model, one word for each line."""
    changes = read_history(state / "serve", "t")
    packed = [" packed" if change.identity.endswith("#packed") else "" for change in changes]
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
    write_transformer(tmp_path / "sources" / "t", SIZES[10])
    package = str(tmp_path / "t-1.model")
    source = str(tmp_path / "sources" / "t" / "1")
    assert main(["model", "pack", source, "--version", "1", "--name", "t", "-o", package]) == 0
    assert main(["model", "install", package, "--state-dir", str(folder), "--config", str(config)]) == 0
    return folder


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
