"""A store in a directory of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.store.writer import StoreWriter, open_store
from tests.store.stores import NO_FLOOR


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Where the store is, or is to be."""
    return tmp_path / "state"


@pytest.fixture
def store(state: Path) -> Iterator[StoreWriter]:
    """Its writer."""
    with open_store(state, NO_FLOOR) as writer:
        yield writer
