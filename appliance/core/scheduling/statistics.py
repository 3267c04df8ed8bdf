"""What the scheduler tells about itself; values only."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.core.scheduling.group import BatchKey, Lane


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStatistics:
    """One lane: how many batches and requests it holds, and when it should be free (0: idle). ``leased``: a front end
    may send to it; ``leased_requests`` are those that it has under way there, as far as it has told."""

    lane: int
    group: int
    batches: int
    requests: int
    free_ns: int
    leased: bool
    leased_requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchKeyStatistics:
    """What is known of one batch key. A batch of n rows is estimated to take ``fixed_ns`` + n * ``per_row_ns``;
    plans count with batches of ``plan_rows``."""

    batch_key: int
    model: int
    queued: int
    queued_rows: int
    known: bool
    fixed_ns: int
    per_row_ns: int
    plan_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatistics:
    """A picture of the scheduler between two steps. ``queued_by_model`` holds models with something
    queued."""

    queued: int
    queued_bytes: int
    running: int
    queued_by_model: dict[int, int]
    lanes: tuple[LaneStatistics, ...]
    batch_keys: tuple[BatchKeyStatistics, ...]


def lane_statistics(lane: Lane) -> LaneStatistics:
    """A picture of ``lane``."""
    return LaneStatistics(
        lane=lane.lane,
        group=lane.group.group,
        batches=len(lane.batches),
        requests=sum(len(running.entries) for running in lane.batches),
        free_ns=lane.free_ns if lane.batches or lane.leased_requests else 0,
        leased=lane.leased,
        leased_requests=lane.leased_requests,
    )


def batch_key_statistics(batch_key: BatchKey) -> BatchKeyStatistics:
    """A picture of ``batch_key``."""
    return BatchKeyStatistics(
        batch_key=batch_key.batch_key,
        model=batch_key.model.model,
        queued=len(batch_key.queue),
        queued_rows=batch_key.queued_rows,
        known=batch_key.profile.known,
        fixed_ns=batch_key.fixed_ns,
        per_row_ns=batch_key.per_row_ns,
        plan_rows=batch_key.plan_rows,
    )
