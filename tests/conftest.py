"""Fixtures that every test may use."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from appliance.cli.command_table import CommandTable, Entry
from appliance.cli.failure import ALWAYS
from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.fronts import EVERY_FRONT_END, FRONT_ENDS, Sections, with_front_end

# Daemons and their workers find the fake runtime as they would one of a third party: as an installed distribution.
_PATHS = (
    str(Path(__file__).parents[1]),
    str(Path(__file__).parent / "plugins"),
    os.environ.get("PYTHONPATH"),
)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _PATHS))
# What one of them compiled is there for the next: an environment that forbids it costs each process that starts more
# than half a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# What is forked has none of the threads that this process has. Garbage of gRPC that waits for one of them when it is
# swept would wait for ever there, so a child sweeps nothing that was made before. It is frozen before the fork, for
# hooks of other modules run in the child ahead of this one, and what they make may have the interpreter sweep.
os.register_at_fork(before=gc.freeze, after_in_parent=gc.unfreeze, after_in_child=gc.freeze)

Serve = Callable[..., ApplianceProcess]

LONG_S = 120
"""What is given so long or longer begins before everything else: one of these that begins last would be waited for by
all other processes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In the order in which they were shuffled, but for long ones."""
    given = ((item, item.get_closest_marker("timeout")) for item in items)
    long = {item for item, marker in given if marker is not None and marker.args[0] >= LONG_S}
    items.sort(key=lambda item: item not in long)


@pytest.fixture(autouse=True)
def _swept() -> Iterator[None]:
    """Let what a test had frozen, as loading does in a worker, be swept: garbage that is in it would keep its memory
    and its descriptors as long as this process lives. And leave the level of libraries' logs as it was: at that of
    debug, pytest keeps a line for each header of HTTP/2."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever command a test runs here ends with a status that its help lists."""
    ended = CommandTable._ended

    def checked(table: CommandTable, program: str, entry: Entry, words: Sequence[str]) -> int:
        status = ended(table, program, entry, words)
        assert status in entry.exits | ALWAYS, f"the help of '{program}' does not list the status {status}"
        return status

    monkeypatch.setattr(CommandTable, "_ended", checked)


# No thresholds of time: a machine that is busy with something else is no defect of a test. The same examples each time,
# for a change is judged by them; `pytest --hypothesis-profile explore` looks for new ones.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("patient", settings.get_profile("explore"), derandomize=True)
settings.load_profile("patient")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test marked ``every_front_end`` runs once per front end."""
    if metafunc.definition.get_closest_marker("every_front_end"):
        metafunc.parametrize("front_end", EVERY_FRONT_END, indirect=True, ids=str)


@pytest.fixture
def front_end(request: pytest.FixtureRequest) -> Sections:
    """Configuration that selects a front end; else what a module of tests has as ``FRONT_END``, or nothing, where it
    does not care."""
    if hasattr(request, "param"):
        return FRONT_ENDS[request.param]
    selected: Sections = getattr(request.module, "FRONT_END", {})
    return selected


@pytest.fixture
def serve(front_end: Sections) -> Iterator[Serve]:
    """Start a daemon: ``serve(models_dir, {"section": {"key": value}})``; it is ready when this returns and stopped at
    the end of the test. ``ready=False`` returns at once."""
    running: list[ApplianceProcess] = []

    def start(
        models: Path | None,
        sections: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        ready: bool = True,
        **rest: Any,
    ) -> ApplianceProcess:
        process = ApplianceProcess(models, with_front_end(front_end, sections or {}), **rest)
        running.append(process)
        return process.wait_ready() if ready else process

    yield start
    for process in running:
        process.close()


@pytest.fixture
def model_directory(tmp_path: Path) -> Callable[..., Path]:
    """Write generated sample models: ``model_directory("mlp", "add_sub")`` gives the directory that holds them."""

    def write(*names: str) -> Path:
        root = tmp_path / "models"
        for name in names:
            write_model(name, root)
        return root

    return write
