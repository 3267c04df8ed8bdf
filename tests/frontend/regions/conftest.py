"""A folder in memory, and regions in it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from appliance.config.shared_memory import SharedMemoryConfig
from appliance.frontend.regions.registry import FOLDER, Regions
from tests.frontend.regions.rig import ME, OTHER, SIZE


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="appliance-test-", dir=FOLDER) as made:
        os.chmod(made, 0o755)
        (Path(made) / "mine").write_bytes(bytes(range(SIZE)))
        yield Path(made)


@pytest.fixture
def regions(folder: Path) -> Regions:
    config = SharedMemoryConfig(max_bytes=4 * mmap.PAGESIZE)
    return Regions(config, frozenset({ME, OTHER}), folder=str(folder))
