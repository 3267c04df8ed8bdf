"""Histories of orders. ``python -m tests.simulation.order_world SEED`` replays one; ``FIRST HISTORIES`` plays many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from appliance.core.rollout.trials import Trials
from appliance.sources.store import StoreSource
from tests.simulation.order_world import play

SEEDS = 200
CHUNK = 25


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_what_is_ordered_is_live_whatever_comes_between(first: int) -> None:
    checks = sum(play(seed).book.checks for seed in range(first, first + CHUNK))
    assert checks > 5 * CHUNK, "histories in which nothing was looked at"


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def compares(begin: Callable[..., Any]) -> Callable[..., Any]:
    """An order is held to what it leaves."""
    return lambda *given, **more: begin(*given, **{**more, "order": False})


def forgets(read: Callable[..., Any]) -> Callable[..., Any]:
    """A daemon that starts takes an order for a proposal."""
    return lambda source: replace(read(source), orders=frozenset())


def keeps(scan: Callable[..., Any]) -> Callable[..., Any]:
    """What is uninstalled stays as long as others are slower."""
    return lambda source: replace(scan(source), uninstalled=frozenset())


@pytest.mark.parametrize(
    ("owner", "name", "mutation", "seeds"),
    [
        (Trials, "begin", compares, range(12, 60)),
        (StoreSource, "read", forgets, range(58, 120)),
        (StoreSource, "scan", keeps, range(2, 60)),
    ],
)
def test_what_is_planted_is_found(
    owner: type, name: str, mutation: Wrap, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, mutation(getattr(owner, name)))
    assert any(not held(seed) for seed in seeds)


def held(seed: int) -> bool:
    """Whether what must be live is, all along a history."""
    try:
        play(seed)
    except AssertionError as problem:
        return "is live and must be one of" not in str(problem.__cause__)
    return True
