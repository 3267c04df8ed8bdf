"""Other people's clients run in an environment of their own, made by ``make test``, as programs against our daemon."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

PROGRAMS = Path(__file__).parent / "programs"
RUN_S = 50.0
RunClient = Callable[..., str]


@pytest.fixture(scope="session")
def clients_python() -> str:
    """The interpreter of the environment of clients; the variable CLIENTS_PYTHON names another one."""
    path = Path(os.environ.get("CLIENTS_PYTHON", ROOT / ".venv-clients" / "bin" / "python"))
    if not path.exists():
        pytest.skip(f"no environment of other people's clients at {path}; 'make test' makes it")
    return str(path)


@pytest.fixture
def require_client(clients_python: str) -> Callable[[str], None]:
    """Skip the test when the environment of clients lacks a package: not every one installs on every Python."""

    def require(package: str) -> None:
        program = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
        if subprocess.run([clients_python, "-c", program, package], check=False).returncode:
            pytest.skip(f"{package} does not install on the Python of {clients_python}")

    return require


@pytest.fixture
def run_client(clients_python: str) -> RunClient:
    """Run a program of this folder, or a line of Python, in the environment of clients; gives what it printed and fails
    with its output when it fails."""

    def run(program: str, *arguments: str) -> str:
        path = PROGRAMS / program
        what = [str(path)] if path.suffix == ".py" and path.is_file() else ["-c", program]
        command = [clients_python, "-W", "ignore", *what, *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_S, check=False)
        assert done.returncode == 0, f"{program}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run
