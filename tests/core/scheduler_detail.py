"""What a scheduler keeps of each lane and batch key, which its own sums do not tell: to be read only."""

from __future__ import annotations

from appliance.core.scheduling.group import BatchKey, Lane
from appliance.core.scheduling.scheduler import Scheduler


def lanes(scheduler: Scheduler) -> list[Lane]:
    """Those that are open, in the order in which they were opened."""
    return list(scheduler._lanes.values())


def batch_keys(scheduler: Scheduler) -> list[BatchKey]:
    """Those that are open, in the order in which they were opened."""
    return list(scheduler._batch_keys.values())


def running_requests(scheduler: Scheduler) -> int:
    """How many are in batches that workers have."""
    return sum(len(running.entries) for running in scheduler._running.values())


def is_empty(scheduler: Scheduler) -> bool:
    """Whether nothing is queued, runs or is open."""
    busy = scheduler.queued or running_requests(scheduler)
    return not (busy or lanes(scheduler) or batch_keys(scheduler))
