"""Thousands of requests queued at once, which no simulated world has: coarse sums, spares from sums."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from appliance.core.scheduling import events as on
from appliance.core.scheduling.actions import Dispatch, Refused
from appliance.core.scheduling.planning import Planning
from appliance.core.scheduling.scheduler import Scheduler
from appliance.domain.inference import NO_DEADLINE
from appliance.domain.model import Batching, QueuePolicy, TimeoutAction
from tests.core.scheduler_detail import lanes

MILLISECOND = 1_000_000
CROWD_SEEDS = range(4)
CROWD_STEPS = 6_000
CROWD_LANES = 4
CROWD_PRESENT = 2_500


@pytest.mark.parametrize("seed", CROWD_SEEDS)
def test_a_crowd_keeps_the_schedulers_integrity(seed: int) -> None:
    """It is checked on the way."""
    assert len(list(crowd(seed))) > CROWD_STEPS


def test_a_crowd_is_one() -> None:
    """Thousands wait at once, batches run, and some requests are refused: else it would check nothing."""
    told = "\n".join(crowd(0))
    assert max(int(part.partition(",")[0]) for part in told.split("SchedulerStatistics(queued=")[1:]) > 1_000
    assert told.count(Dispatch.__name__) > 100
    assert told.count(Refused.__name__) > 100


def crowd(seed: int) -> Iterator[str]:
    """Every event with the actions that answered it, with the scheduler's integrity checked now and then."""
    rng = random.Random(seed)
    config = Planning(max_queued_requests=CROWD_PRESENT + 100, max_queued_per_model=CROWD_PRESENT)
    scheduler = Scheduler(config)
    now_ns = 1 << 40
    models = open_crowd(scheduler, now_ns)
    running: list[int] = []
    request = 0
    for step in range(CROWD_STEPS):
        now_ns += rng.randrange(MILLISECOND // 4)
        queued = scheduler.queued
        choice = rng.random()
        event: on.Event
        if step < CROWD_PRESENT or (choice < 0.5 and queued < CROWD_PRESENT):
            request += 1
            event = arrival(rng, request, models, now_ns)
        elif choice < 0.8 and running:
            event = on.BatchFinished(running.pop(rng.randrange(len(running))), rng.random() < 0.9)
        elif choice < 0.85:
            event = on.CancelRequested(rng.randrange(request + 1))
        elif choice < 0.855:
            event = on.LaneClosed(rng.randrange(CROWD_LANES), now_ns + MILLISECOND)
        elif choice < 0.86 and len(lanes(scheduler)) < CROWD_LANES:
            there = {lane.lane for lane in lanes(scheduler)}
            event = on.LaneOpened(min(set(range(CROWD_LANES)) - there), 0)
        else:
            event = on.Settle()
        actions = scheduler.step(event, now_ns)
        running += [action.batch for action in actions if isinstance(action, Dispatch)]
        yield f"{now_ns} {event} -> {actions}"
        if step % 500 == 0:
            scheduler.check_integrity()
            yield f"{scheduler.statistics()}"


def open_crowd(scheduler: Scheduler, now_ns: int) -> int:
    """One group whose models batch in every way there is; how many they are."""
    delaying = QueuePolicy(timeout_action=TimeoutAction.DELAY, default_timeout_us=400_000)
    ways = (
        Batching(),
        Batching(max_queue_delay_us=3_000, preferred_batch_size=(4, 8)),
        Batching(priority_levels=3, default_priority_level=2, priority_queue_policy={3: delaying}),
        Batching(default_queue_policy=QueuePolicy(default_timeout_us=5_000_000, max_queue_size=1_000)),
    )
    scheduler.step(on.GroupOpened(0), now_ns)
    for lane in range(CROWD_LANES):
        scheduler.step(on.LaneOpened(lane, 0), now_ns)
    for model, way in enumerate(ways):
        scheduler.step(on.ModelOpened(model, 0, 1 << (model + 1), way), now_ns)
        seeds = ((1, 300_000 + 50_000 * model), (8, 900_000)) if model else ()
        scheduler.step(on.BatchKeyOpened(model, model, seeds), now_ns)
    return len(ways)


def arrival(rng: random.Random, request: int, models: int, now_ns: int) -> on.Arrived:
    """Due soon, in seconds, in minutes, or never."""
    far = MILLISECOND * rng.choice((20, 2_000, 30_000, 300_000, 300_000, 300_000))
    deadline_ns = now_ns + rng.randrange(far) if rng.random() < 0.9 else NO_DEADLINE
    model = rng.randrange(models)
    rows = rng.choice((1, 1, 1, 1, rng.randrange(1, (1 << (model + 1)) + 1)))
    timeout_us = rng.randrange(1, 10_000_000) if rng.random() < 0.1 else 0
    return on.Arrived(
        request, model, rows, rng.randrange(1, 5_000), rng.randrange(5), deadline_ns, timeout_us
    )
