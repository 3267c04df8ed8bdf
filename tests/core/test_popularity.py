"""What is wanted how much is remembered of models that are there, and of no others."""

from __future__ import annotations

import tracemalloc

from appliance.core.memory.popularity import Popularity

BUDGET = 1 << 30
ROUNDS = 3_000
FEW_BYTES = 40_000


def come_and_go(popularity: Popularity, first: int) -> None:
    """Models that are wanted once, one after the other, each gone before the next."""
    for model in range(first, first + ROUNDS):
        popularity.describe(model, 1_000_000, 1 << 20)
        popularity.use(model, 1, model * 1_000_000)
        popularity.forget(model)


def test_models_that_are_gone_take_no_memory() -> None:
    popularity = Popularity(BUDGET)
    come_and_go(popularity, 0)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        come_and_go(popularity, ROUNDS)
        assert tracemalloc.get_traced_memory()[0] - before < FEW_BYTES
    finally:
        tracemalloc.stop()
