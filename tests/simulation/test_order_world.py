"""Histories of orders. ``python -m tests.simulation.order_world SEED`` replays one; ``FIRST HISTORIES`` plays many."""

from __future__ import annotations

import pytest

from tests.simulation.order_world import play

SEEDS = 300
CHUNK = 100


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_what_is_ordered_is_live_whatever_comes_between(first: int) -> None:
    checks = sum(play(seed).book.checks for seed in range(first, first + CHUNK))
    assert checks > 5 * CHUNK, "histories in which nothing was looked at"
