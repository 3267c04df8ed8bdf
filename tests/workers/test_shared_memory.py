"""A worker reaches tensors of the requests that its group serves, and no others, whatever jail it is in."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from appliance.config.workers import ArenaConfig
from appliance.workers.port import ItemStatus, WorkerExited
from tests.runtimes.shared_memory import complement
from tests.workers.bench import FOUR, FREE, Bench, Placed, Tensor, fake

SECRET = os.urandom(32)
RINGS = [pytest.param(False, id="by messages"), pytest.param(True, id="with rings")]


def seen_by(bench: Bench, group: int) -> str:
    """Where a new worker of a group sees the secret."""
    worker = bench.start(FREE, group)
    model = bench.load(worker, fake("look", secret=complement(SECRET)))
    placed = bench.place([FOUR], [0], group=group)
    (result,) = bench.run(worker, model, placed)
    assert result.status is ItemStatus.FAILED
    bench.free(placed)
    stop(bench, worker)
    return result.error


def stop(bench: Bench, *workers: int) -> None:
    for worker in workers:
        bench.call(bench.pool.stop, worker)
        bench.event(WorkerExited)


def put(bench: Bench, group: int) -> Placed:
    return bench.place([Tensor((2, 4), SECRET)], [0], rows=2, group=group)


@pytest.fixture(scope="module", params=RINGS)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    rings = None
    if request.param:
        rings = pytest.importorskip("edge_appliance_native").LaneMemory
    made = Bench(runtimes=("fake",), rings=rings, arena=ArenaConfig(classes=((8192, 16),)))
    yield made
    made.close()


def test_tensors_of_another_group_are_out_of_reach(bench: Bench) -> None:
    """While they wait, while they are with their worker, and when they have been answered."""
    worker = bench.start(FREE, group=1)
    model = bench.load(worker, fake())
    placed = put(bench, 1)
    assert "appliance-tensors" in seen_by(bench, 1), "else seeing nothing would say nothing"
    assert seen_by(bench, 2) == "[]"
    (result,) = bench.run(worker, model, placed)
    assert bench.read(placed, result) == [SECRET]
    assert seen_by(bench, 2) == "[]"
    bench.free(placed)
    assert seen_by(bench, 2) == "[]"
    assert "appliance-tensors" in seen_by(bench, 1), "what was answered lies there until it is written over"
    stop(bench, worker)


def test_tensors_that_wait_for_a_group_are_out_of_reach_of_all(bench: Bench) -> None:
    placed = put(bench, 1)
    assert placed.slot.memory is bench.arena.own
    assert [seen_by(bench, group) for group in (1, 2)] == ["[]", "[]"]
    bench.free(placed)


def test_tensors_that_went_to_another_group_are_gone_from_where_they_were(bench: Bench) -> None:
    first, second = bench.start(FREE, group=1), bench.start(FREE, group=2)
    placed = put(bench, 1)
    model = bench.load(second, fake())
    (result,) = bench.run(second, model, placed)
    assert bench.read(placed, result) == [SECRET]
    assert seen_by(bench, 1) == "[]"
    assert "appliance-tensors" in seen_by(bench, 2)
    bench.free(placed)
    stop(bench, first, second)


def test_the_next_worker_of_a_group_does_not_see_what_one_has_left(bench: Bench) -> None:
    worker = bench.start(FREE, group=1)
    placed = put(bench, 1)
    bench.free(placed)
    stop(bench, worker)
    assert seen_by(bench, 1) == "[]"
