"""Which requests are taken: those that can be answered in time without breaking a promise made before.

Units are lane-nanoseconds of work. A shape plans with batches of ``plan_rows`` (b) rows that take ``plan_ns``
(p), cheaper per row than any smaller one. A request of r rows is charged p * (2r - 1) / b: its rows, and the
at most r - 1 rows that the batch before it wasted because it did not fit. So the charges of requests cover
the batches they will run in, except for one batch per shape that is not full or pulls later requests ahead;
that one is counted as ``partial_ns``.

The promise, after Graham's bound for list scheduling (1966): while a request waits, no lane idles, so all
lanes together work on what is ahead of it. It starts by ``latest`` (deadline less margin less its own batch)
when the lane time that is free until then, sum over lanes of (latest - free)+, is at least the work ahead.
What is left over is its spare: how much may still be put ahead of it. A request that would overtake others
must cost no more than the smallest spare.

A request that its planned batch would make late even with nothing ahead of it may be tight: promised only its
own rows. Its deadline may then close a batch early, its own or the one before, so it is charged both whole.

Under an estimate that is exact, no promise is broken, as the simulation checks.
"""

from __future__ import annotations

from appliance.scheduling.group import LEVEL_DELAYED, Group, Shape
from appliance.scheduling.queue import Waiting

RECOUNT_MAX = 32
"""The spares are computed again from what is queued when no more than this is."""


def admit(group: Group, entry: Waiting, now_ns: int, margin_ns: int) -> int:
    """0 when ``entry`` can be promised its deadline, with its charge set and the spares of others reduced;
    else by how many ns it would be late."""
    shape = entry.shape
    if not shape.queued_rows:
        shape.replan(margin_ns)
    order = (entry.level, entry.deadline_ns)
    overtakes = order < group.latest
    ahead_ns = group.partial_ns - (shape.plan_ns if shape.queued_rows else 0)
    if overtakes:
        ahead_ns += group.ledger.until(entry.level, entry.deadline_ns, now_ns)
    else:
        ahead_ns += group.ledger.total_ns
    latest_ns = entry.deadline_ns - margin_ns
    frees = group.lane_times(now_ns)
    _charge_planned(shape, entry)
    spare_ns = _spare(frees, latest_ns - entry.own_ns, ahead_ns)
    if spare_ns < 0:
        late_ns = -(spare_ns // len(frees))
        if entry.rows >= shape.plan_rows or latest_ns - entry.own_ns >= min(frees):
            return late_ns
        _charge_tight(shape, entry)
        spare_ns = _spare(frees, latest_ns - entry.own_ns, ahead_ns)
        if spare_ns < 0:
            return late_ns
    if overtakes:
        missing_ns = _overtake(group, entry, now_ns, margin_ns)
        if missing_ns:
            return missing_ns
    known_ns = group.spare_ns.get(entry.level)
    if known_ns is None or spare_ns < known_ns:
        group.spare_ns[entry.level] = spare_ns
    return 0


def _charge_planned(shape: Shape, entry: Waiting) -> None:
    rows, planned = entry.rows, shape.plan_rows
    if rows <= planned:
        entry.charge_ns = -(-shape.plan_ns * (2 * rows - 1) // planned)
        entry.own_ns = shape.plan_ns
    else:
        entry.own_ns = shape.fixed_ns + shape.per_row_ns * rows
        entry.charge_ns = entry.own_ns + shape.plan_ns


def _charge_tight(shape: Shape, entry: Waiting) -> None:
    entry.charge_ns = 2 * shape.plan_ns
    entry.own_ns = shape.fixed_ns + shape.per_row_ns * entry.rows


def _spare(frees: list[int], latest_ns: int, ahead_ns: int) -> int:
    """Lane time left over before ``latest_ns``; negative when a start by then cannot be promised."""
    if len(frees) == 1:
        return latest_ns - frees[0] - ahead_ns
    room_ns = 0
    for free_ns in frees:
        if free_ns < latest_ns:
            room_ns += latest_ns - free_ns
    if not room_ns and (late_ns := min(frees) - latest_ns) > 0:
        return -late_ns - ahead_ns
    return room_ns - ahead_ns


def _overtake(group: Group, entry: Waiting, now_ns: int, margin_ns: int) -> int:
    """0 when those behind ``entry`` can bear its cost, which is then taken from their spares; else what is
    missing."""
    cost_ns = entry.charge_ns
    shape = entry.shape
    head = shape.head
    others = len(group.heads) - (head is not None)
    if others and (head is None or (entry.level, entry.deadline_ns) < head[:2]):
        cost_ns += shape.plan_ns
    spare_ns = smallest_spare(group, entry.level, now_ns)
    if cost_ns > spare_ns and not group.spare_fresh and group.queued <= RECOUNT_MAX:
        recount(group, now_ns, margin_ns)
        spare_ns = smallest_spare(group, entry.level, now_ns)
    if cost_ns > spare_ns:
        return cost_ns - max(spare_ns, 0)
    spend(group, entry.level, cost_ns)
    return 0


def smallest_spare(group: Group, level: int, now_ns: int) -> int:
    """Lane time that may be put ahead of everything queued at ``level`` and the less urgent ones."""
    idle_ns = (now_ns - group.held_ns) * len(group.lanes) if group.held_ns else 0
    return (
        min((spare for other, spare in group.spare_ns.items() if other >= level), default=1 << 62) - idle_ns
    )


def spend(group: Group, level: int, cost_ns: int) -> None:
    """Work of ``cost_ns`` was put ahead of what is queued at ``level`` and the less urgent ones."""
    for other in group.spare_ns:
        if other >= level:
            group.spare_ns[other] -= cost_ns


def release_hold(group: Group, now_ns: int) -> None:
    """The idle lane waits no longer; the time it did is taken from the spares."""
    if group.held_ns:
        spend(group, 0, (now_ns - group.held_ns) * len(group.lanes))
        group.held_ns = 0


def recount(group: Group, now_ns: int, margin_ns: int) -> None:
    """Compute the spares from what is queued; the time an idle lane waited so far is thereby accounted
    for."""
    keys = sorted(key for head in group.heads for key in head[3].queue)
    frees = group.lane_times(now_ns)
    ahead_ns = 0
    spares: dict[int, int] = {}
    for level, deadline_ns, _, entry in keys:
        if level < LEVEL_DELAYED:
            others_ns = group.partial_ns - entry.shape.plan_ns
            spare_ns = _spare(frees, deadline_ns - margin_ns - entry.own_ns, ahead_ns + others_ns)
            spares[level] = min(spare_ns, spares.get(level, spare_ns))
        ahead_ns += entry.charge_ns
    group.spare_ns = spares
    group.spare_fresh = True
    group.latest = keys[-1][:2] if keys else (0, 0)
    if group.held_ns:
        group.held_ns = now_ns
