"""Which batch a lane gets next: the most urgent request, and as many like it as still meet the earliest
deadline.

A lane never idles while something can run, unless the model asks to wait for its batches to fill and nothing
else is queued for the lane. Late work is not run: what cannot finish by its deadline, as far as is known,
expires at once.
"""

from __future__ import annotations

from enum import Enum

from appliance.core.scheduling.admission import RECOUNT_MAX, recount, smallest_spare, spend
from appliance.core.scheduling.group import LANE_DEPTH, NEVER, BatchKey, Group, Lane, QueuedRequest


class Verdict(Enum):
    """What to do with the most urgent request when a lane could take it."""

    RUN = 0
    LATE = 1
    HOLD = 2


def lane_to_fill(group: Group, now_ns: int, prefetch_ns: int, margin_ns: int) -> Lane | None:
    """An idle lane; or else the one that is free first, when that is soon and a full batch waits for it that would
    be in time even if the lane is not free earlier than planned. If it would not, what to run is decided when
    the lane is idle: then the time is known. Nothing is sent ahead to share the fate of a request that a worker
    died with, nor is such a one. A lane with only leased work, which stands back, need not wait for
    a full batch then, nor for anything when the first request would be late otherwise."""
    lanes = group.lanes
    for lane in lanes:
        if not lane.batches and (not lane.leased_requests or lane.free_ns <= now_ns):
            return lane
    if not lanes:
        return None
    lane = lanes[0] if len(lanes) == 1 else min(lanes, key=lambda lane: lane.free_at(now_ns))
    _, deadline_ns, _, batch_key = group.heads[0]
    first = batch_key.queue.first()[3]
    if not lane.batches:
        soon = lane.free_ns - now_ns <= prefetch_ns and not first.retried
        return lane if soon or not _in_time(group, lane, now_ns, margin_ns) else None
    if not may_follow(lane, now_ns, prefetch_ns) or first.retried or lane.batches[0].entries[0].retried:
        return None
    rows = rows_max(group, batch_key)
    if batch_key.queued_rows < rows or not batch_key.plan_ns:
        return None
    rows = max(rows, first.rows)
    end_ns = lane.free_at(now_ns) + batch_key.fixed_ns + batch_key.per_row_ns * rows
    return lane if end_ns + margin_ns <= deadline_ns else None


def _in_time(group: Group, lane: Lane, now_ns: int, margin_ns: int) -> bool:
    """Whether the most urgent request is in time after all that ``lane`` has to do."""
    _, deadline_ns, _, batch_key = group.heads[0]
    rows = batch_key.queue.first()[3].rows
    return lane.free_at(now_ns) + batch_key.fixed_ns + batch_key.per_row_ns * rows + margin_ns <= deadline_ns


def start_at(group: Group, lane: Lane, now_ns: int, margin_ns: int) -> int:
    """When the most urgent request would start in ``lane``: after all that this has to do, or at once if it is late
    otherwise and only leased work is there, which stands back."""
    if lane.leased_requests and not lane.batches and not _in_time(group, lane, now_ns, margin_ns):
        return now_ns
    return lane.free_at(now_ns)


def may_follow(lane: Lane, now_ns: int, prefetch_ns: int) -> bool:
    """Whether ``lane`` is idle, or runs one batch that should end so soon that another should be there then:
    news of the end and the next batch cross two processes, and the worker would wait for both."""
    batches = lane.batches
    if not batches:
        return not lane.leased_requests or lane.free_ns - now_ns <= prefetch_ns
    return (
        len(batches) < LANE_DEPTH and batches[0].estimate_ns > 0 and lane.free_ns - now_ns <= prefetch_ns > 0
    )


def next_follow(group: Group, prefetch_ns: int) -> int:
    """When the first of the busy lanes may be given a batch to follow (NEVER: none before one is idle)."""
    soonest_ns = NEVER
    for lane in group.lanes:
        batches = lane.batches
        sure = not batches or (len(batches) < LANE_DEPTH and batches[0].estimate_ns > 0)
        if sure and lane.free_ns < soonest_ns:
            soonest_ns = lane.free_ns
    return soonest_ns - prefetch_ns if soonest_ns < NEVER else NEVER


def rows_max(group: Group, batch_key: BatchKey) -> int:
    """The largest batch: the planned one where other batch keys wait for the same lanes, because they were
    promised so."""
    return batch_key.model.max_batch if len(group.heads) == 1 else batch_key.plan_rows


def judge(
    group: Group, entry: QueuedRequest, lane: Lane, start_ns: int, now_ns: int, margin_ns: int
) -> Verdict:
    """Whether ``entry``, the most urgent request, goes to ``lane``, where it would start at ``start_ns``."""
    batch_key = entry.batch_key
    estimate_ns = batch_key.fixed_ns + batch_key.per_row_ns * entry.rows
    if start_ns + estimate_ns > entry.deadline_ns:
        alone = group.queued == 1 and not lane.batches and not lane.leased_requests
        return Verdict.RUN if alone else Verdict.LATE
    if (
        batch_key.model.delay_ns
        and not entry.retried
        and hold_until(group, batch_key, now_ns, margin_ns) > now_ns
    ):
        return Verdict.HOLD
    return Verdict.RUN


def hold_until(group: Group, batch_key: BatchKey, now_ns: int, margin_ns: int) -> int:
    """Until when an idle lane waits for the batch of ``batch_key`` to fill; not later than ``now_ns``: it does
    not."""
    batching = batch_key.model.batching
    wanted = min(batching.preferred_batch_size, default=batch_key.model.max_batch)
    if len(group.heads) > 1 or batch_key.queued_rows >= wanted:
        return now_ns
    oldest_ns = min(key[3].arrived_ns for key in batch_key.queue)
    if group.queued <= RECOUNT_MAX:
        recount(group, now_ns, margin_ns)
    spare_ns = smallest_spare(group, 0, now_ns) // len(group.lanes)
    return min(oldest_ns + batch_key.model.delay_ns, now_ns + spare_ns)


def gather(
    group: Group, batch_key: BatchKey, lane: Lane, start_ns: int, margin_ns: int, now_ns: int
) -> tuple[list[QueuedRequest], int]:
    """The first requests of ``batch_key`` that make its next batch when it starts in ``lane`` at ``start_ns``, and
    their rows; beside leased work not more than was planned.

    A request whose worker died with it runs alone. Where the model waits for batches to fill, a preferred
    size is made exactly when the others can bear the rest becoming a batch of its own.
    """
    limit = batch_key.plan_rows if lane.leased_requests else rows_max(group, batch_key)
    if batch_key.model.delay_ns:
        limit = _preferred(group, batch_key, now_ns) or limit
    fixed_ns, per_row_ns = batch_key.fixed_ns + start_ns + margin_ns, batch_key.per_row_ns
    entries: list[QueuedRequest] = []
    rows = 0
    earliest_ns = 0
    for _, deadline_ns, _, entry in batch_key.queue:
        if entries:
            grown = rows + entry.rows
            if deadline_ns < earliest_ns:
                earliest_ns = deadline_ns
            if grown > limit or fixed_ns + per_row_ns * grown > earliest_ns or entry.retried:
                break
            rows = grown
        else:
            rows, earliest_ns = entry.rows, deadline_ns
        entries.append(entry)
        if rows >= limit or entry.retried:
            break
    return entries, rows


def _preferred(group: Group, batch_key: BatchKey, now_ns: int) -> int:
    """The largest preferred size that the queued rows reach, or 0 to take what there is."""
    batching = batch_key.model.batching
    rows = batch_key.queued_rows
    preferred = max((size for size in batching.preferred_batch_size if size <= rows), default=0)
    if not preferred or preferred == rows or rows >= batch_key.model.max_batch:
        return 0
    if preferred < batch_key.plan_rows:
        if smallest_spare(group, 0, now_ns) < batch_key.plan_ns:
            return 0
        spend(group, 0, batch_key.plan_ns)
    return preferred
