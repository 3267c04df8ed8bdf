"""A bench per test, one that tests which leave it as they found it may share, and a transformer that none changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.domain.model import ModelVersion
from tests.workers.bench import Bench
from tests.workers.transformers import read_version, write_version


@pytest.fixture(scope="module")
def shared_bench() -> Iterator[Bench]:
    """For tests that end only the workers they start."""
    bench = Bench()
    yield bench
    bench.close()


@pytest.fixture
def make_bench() -> Iterator[Callable[..., Bench]]:
    """``make_bench(run_timeout_ms=100)``: a bench of one's own, closed at the end."""
    made: list[Bench] = []

    def make(**config: Any) -> Bench:
        made.append(Bench(**config))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of models that no test changes."""
    root = tmp_path_factory.mktemp("models")
    write_version(root)
    return root


@pytest.fixture
def version(home: Path) -> ModelVersion:
    return read_version(home)
