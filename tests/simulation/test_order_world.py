"""Histories of orders. ``python -m tests.simulation.order_world SEED`` replays one; ``FIRST HISTORIES`` plays many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.cli import store_session
from appliance.cli.model import retention
from appliance.core.rollout.trials import Trials
from appliance.sources.store import StoreSource
from appliance.store.catalog import identity_of
from tests.simulation.careful_world import CarefulWorld
from tests.simulation.order_world import NAME, play
from tests.simulation.rollout_world import REFUSED, SOUND

SEEDS = 200
CHUNK = 25


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_what_is_ordered_is_live_whatever_comes_between(first: int) -> None:
    checks = sum(play(seed).book.checks for seed in range(first, first + CHUNK))
    assert checks > 5 * CHUNK, "histories in which nothing was looked at"


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def compares(begin: Callable[..., Any]) -> Callable[..., Any]:
    """An order is held to what it leaves."""
    return lambda trials, contender, now_ns: begin(trials, replace(contender, order=False), now_ns)


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


# --- without force


@pytest.mark.parametrize("first", range(0, SEEDS, 2 * CHUNK))
def test_once_something_has_served_something_does_where_nobody_forces_it_away(first: int) -> None:
    spared = sum(careful(seed).spared for seed in range(first, first + 2 * CHUNK))
    assert spared, "nobody wanted to uninstall what served last"


def test_that_the_last_one_is_taken_away_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "check_spared", lambda *given: None)
    assert any("nothing serves, and " in problem(seed) for seed in range(3 * SEEDS))


def problem(seed: int) -> str:
    """What does not hold in a history without force."""
    try:
        careful(seed)
    except AssertionError as found:
        return str(found.__cause__)
    return ""


@pytest.mark.parametrize("proven", [False, True])
def test_what_served_for_a_moment_stands_in_where_what_was_proven_later_is_gone(
    tmp_path: Path, proven: bool
) -> None:
    """As for what is ``proven``: version 3 is refused, 2 is uninstalled, and the daemon starts anew."""
    world = CarefulWorld(1, tmp_path / "state")
    world.policy = replace(world.policy, watch_s=3.0)
    world.may_be = (SOUND,)
    world.install(want=True)
    world.start()
    until_serves(world, 1)
    if proven:
        world.settle()
    world.install(want=True)
    world.run_ns = dict.fromkeys(world.run_ns, 1_000_000)
    world.see()
    until_serves(world, 2)
    world.settle()
    first = store_session.catalog_of(world.state).models[0].versions[0]
    found = world.records.proof(identity_of(NAME, first), "box")
    assert found is not None
    assert found.proven is proven
    world.may_be = (REFUSED,)
    world.install(want=True)
    world.settle()
    assert world.serving == 2
    world.uninstall(2)
    world.stop()
    world.start()
    world.settle()
    assert world.serving == 1
    world.uninstall(1)
    assert world.spared == 1
    world.stop()


def until_serves(world: CarefulWorld, number: int) -> None:
    """Let time pass until the version answers, and no longer."""
    for _ in range(100):
        if world.serving == number:
            return
        world.tick()
    raise AssertionError(f"{number} does not serve")


def careful(seed: int) -> CarefulWorld:
    """A history without force."""
    world = play(seed, CarefulWorld)
    assert isinstance(world, CarefulWorld)
    return world
