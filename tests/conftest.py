"""Fixtures that every test may use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from models.generate import write_model
from tests.appliance_process import ApplianceProcess

Serve = Callable[..., ApplianceProcess]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a daemon: ``serve(models_dir, {"section": {"key": value}})``; it is ready when this returns and stopped at
    the end of the test. ``ready=False`` returns at once."""
    running: list[ApplianceProcess] = []

    def start(
        models: Path,
        sections: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        ready: bool = True,
        **rest: Any,
    ) -> ApplianceProcess:
        process = ApplianceProcess(models, sections, **rest)
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
