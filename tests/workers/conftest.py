"""A bench per test, and one that tests which leave it as they found it may share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.workers.bench import Bench


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
