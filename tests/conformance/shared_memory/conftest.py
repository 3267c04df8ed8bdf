"""A daemon of each front end that lets this user have shared memory, and regions that go with their test."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import tritonclient.utils.shared_memory as shm

from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.architecture.sources import ROOT
from tests.conformance.shared_memory.rig import (
    MODEL,
    Make,
    path_of,
    started,
)
from tests.faults.fake_models import write_fake
from tests.fronts import NATIVE, PYTHON


@pytest.fixture(scope="package")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name in (MODEL, "identity_bytes", "add_sub"):
        write_model(name, root)
    write_fake(root, "gated", gate=root / "gate")
    shutil.copytree(ROOT / "models" / "digits", root / "digits")
    return root


@pytest.fixture(scope="package")
def folder() -> Iterator[Path]:
    """Where the native front end has its sockets, which every user may open."""
    with TemporaryDirectory(prefix="appliance-test-") as made:
        os.chmod(made, 0o755)
        yield Path(made)


@pytest.fixture(scope="package")
def native(models: Path, folder: Path) -> Iterator[ApplianceProcess]:
    with started(NATIVE, folder, models) as process:
        yield process.wait_ready()


@pytest.fixture(scope="package")
def python(models: Path) -> Iterator[Path]:
    """Where the Python front end has its sockets."""
    with TemporaryDirectory(prefix="appliance-test-") as made:
        os.chmod(made, 0o755)
        with started(PYTHON, Path(made), models) as process:
            process.wait_ready()
            yield Path(made)


@pytest.fixture
def make() -> Iterator[Make]:
    """Make a region of the client's; gives its handle, whose key no other test has."""
    made = []

    def region(nbytes: int) -> Any:
        key = f"/appliance-test-{uuid.uuid4().hex}"
        made.append(shm.create_shared_memory_region("made", key, nbytes, create_only=True))
        return made[-1]

    yield region
    for handle in made:
        # One that a test has removed cannot be removed again.
        os.close(os.open(path_of(handle), os.O_CREAT | os.O_RDWR))
        shm.destroy_shared_memory_region(handle)
