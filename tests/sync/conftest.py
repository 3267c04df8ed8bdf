"""A controller, a box that belongs to its fleet, and the agent's commands."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run, appliance, config, files_of, pack, state
from tests.sync.controller_double import ControllerDouble

__all__ = ["appliance", "config", "files_of", "pack", "state"]


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[ControllerDouble]:
    (tmp_path / "controller").mkdir()
    with ControllerDouble(tmp_path / "controller") as found:
        yield found


@pytest.fixture
def enrolled(appliance: Run, controller: ControllerDouble, state: Path) -> Path:
    status, out, err = appliance("sync", "enrol", controller.token())
    assert status == 0, err
    assert "This box is 'box-1'" in out
    return state


@pytest.fixture
def start(state: Path, config: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts agents as processes of their own, which are killed in the end."""
    begun: list[subprocess.Popen[str]] = []

    def started() -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-c",
            "from appliance.cli.main import main; raise SystemExit(main())",
            "sync",
        ]
        command += ["--state-dir", str(state), "--config", str(config)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        begun.append(process)
        return process

    yield started
    for process in begun:
        process.kill()
        print(*process.communicate(), file=sys.stderr)  # shown where the test fails
