"""Which requests are taken: those that can be answered in time without breaking a promise made before.

Work is counted in lane-nanoseconds. A batch key plans with batches of ``plan_rows`` (b) rows that take
``plan_ns`` (p), cheaper per row than any smaller one. A request of r rows is charged p * r / b, and p * (r -
1) / b for the rows that the batch before it wastes when it does not fit. So the charges of requests cover the
batches they will run in, except for one batch per batch key that is not full or pulls later requests ahead; that
one is counted in ``partial_ns``.

The promise, after Graham's bound for list scheduling (1966): while a request waits no lane idles, so all
lanes work on what is ahead of it. It starts by ``latest`` (deadline less margin less its own batch) if the
lane time until then, the sum over lanes of (latest - free)+, is at least the work ahead. What is left over is
its spare: the work that may still be put ahead of it. A request that overtakes others must cost no more than
the smallest of their spares. When it becomes the first of its batch key it may start a batch that was not counted
(one that pulls later requests ahead of those of another batch key, or is closed early by one behind it that does
not fit); then it costs a planned batch more.

A request that its planned batch would make late even with nothing ahead of it may be tight: promised its own
rows only. Its deadline may then close a batch early, its own or the one before, so it is charged with both
whole.

While service times are not longer than estimated and no lane fails, no promise is broken; the simulation
checks that. Where nothing is known of a batch key its estimate is zero and everything is promised.
"""

from __future__ import annotations

from appliance.core.scheduling.group import LEVEL_DELAYED, BatchKey, Group, QueuedRequest

NO_BOUND = 1 << 62
NOWHERE = (NO_BOUND, 0)
"""Behind everything that is queued."""
RECOUNT_MAX = 32
"""Up to so many queued requests the spares are computed from each of them; else from the sums of the
charges."""
RECOUNT_EVERY = 16
"""Requests that would overtake too much and are refused, for one for which the charges is looked through."""


def admit(group: Group, entry: QueuedRequest, now_ns: int, margin_ns: int) -> int:
    """0 when ``entry`` can be promised its deadline, with its charge set and the spares of others reduced; else in how
    many ns one like it, with as long a deadline, would be promised that if nothing else came."""
    batch_key = entry.batch_key
    others_ns = group.partial_ns
    if batch_key.queued_rows:
        others_ns -= batch_key.plan_ns
    else:
        batch_key.replan(margin_ns)
    _charge_planned(batch_key, entry)
    level, deadline_ns = entry.level, entry.deadline_ns
    latest_ns = deadline_ns - margin_ns - entry.own_ns
    ahead_ns = others_ns + entry.waste_ns + group.charges.total_ns
    lanes = group.lanes
    frees = [lanes[0].free_at(now_ns)] if len(lanes) == 1 else group.lane_times(now_ns)
    spare_ns = _spare(frees, latest_ns, ahead_ns)
    known_ns = group.promises.spare_ns.get(level, NO_BOUND)
    overtakes = (level, deadline_ns) < group.promises.latest
    if overtakes and (spare_ns < known_ns or spare_ns < 0):
        ahead_ns += group.charges.until(level, deadline_ns, now_ns) - group.charges.total_ns
        spare_ns = _spare(frees, latest_ns, ahead_ns)
    if spare_ns < 0:
        late_ns = _start(frees, ahead_ns) - latest_ns
        if entry.rows >= batch_key.plan_rows or latest_ns >= min(frees):
            return late_ns
        spare_ns = _tight(entry, frees, ahead_ns - entry.waste_ns, latest_ns + entry.own_ns)
        if spare_ns < 0:
            return late_ns
    if overtakes:
        missing_ns = _overtake(group, entry, now_ns, margin_ns)
        if missing_ns:
            # The overtaken ones stay the same until the next batch leaves.
            return max(missing_ns, min(frees) - now_ns)
        known_ns = group.promises.spare_ns.get(level, NO_BOUND)
    if spare_ns < known_ns:
        group.promises.spare_ns[level] = spare_ns
    return 0


def _charge_planned(batch_key: BatchKey, entry: QueuedRequest) -> None:
    rows, planned, plan_ns = entry.rows, batch_key.plan_rows, batch_key.plan_ns
    entry.own_ns = plan_ns
    if not entry.uneven:
        entry.charge_ns = -(-plan_ns // planned)
        return
    if entry.retried:
        entry.waste_ns = plan_ns if batch_key.queued_rows else 0
        entry.charge_ns = plan_ns + entry.waste_ns
        return
    if rows <= planned:
        entry.charge_ns = -(-plan_ns * rows // planned)
    else:
        entry.charge_ns = entry.own_ns = batch_key.fixed_ns + batch_key.per_row_ns * rows
    if batch_key.queued_rows:
        entry.waste_ns = -(-plan_ns * (min(rows, planned + 1) - 1) // planned)
        entry.charge_ns += entry.waste_ns


def _tight(entry: QueuedRequest, frees: list[int], ahead_ns: int, latest_ns: int) -> int:
    """The spare of ``entry`` as a tight request, charged as such; negative when it would be late all the
    same."""
    batch_key = entry.batch_key
    entry.uneven = True
    entry.own_ns = batch_key.fixed_ns + batch_key.per_row_ns * entry.rows
    entry.waste_ns = batch_key.plan_ns if batch_key.queued_rows else 0
    entry.charge_ns = batch_key.plan_ns + entry.waste_ns
    return _spare(frees, latest_ns - entry.own_ns, ahead_ns + entry.waste_ns)


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


def _start(frees: list[int], ahead_ns: int) -> int:
    """When lanes that are free at ``frees`` have worked off what is ahead."""
    if len(frees) == 1:
        return frees[0] + ahead_ns
    start_ns = 0
    for lanes, free_ns in enumerate(sorted(frees), 1):
        if lanes > 1 and free_ns >= start_ns:
            break
        ahead_ns += free_ns
        start_ns = -(-ahead_ns // lanes)
    return start_ns


def _overtake(group: Group, entry: QueuedRequest, now_ns: int, margin_ns: int) -> int:
    """0 when those behind ``entry`` can bear its cost, which is then taken from their spares; else what is
    missing."""
    level = entry.level
    cost_ns = entry.charge_ns
    batch_key = entry.batch_key
    head = batch_key.head
    if head is None or (level, entry.deadline_ns) < (head[0], head[1]):
        others = len(group.heads) - (head is not None)
        if others or batch_key.uneven:
            cost_ns += batch_key.plan_ns
    if cost_ns <= smallest_spare(group, level, now_ns):
        spend(group, level, cost_ns)
        return 0
    if group.queued <= RECOUNT_MAX:
        missing_ns = recount(group, now_ns, margin_ns, (level, entry.deadline_ns), cost_ns)
    else:
        missing_ns = _recount_sums(group, now_ns, margin_ns, (level, entry.deadline_ns), cost_ns)
    return missing_ns


def smallest_spare(group: Group, level: int, now_ns: int) -> int:
    """Lane time that may be put ahead of everything queued at ``level`` and the less urgent ones."""
    least_ns = NO_BOUND
    for other, spare_ns in group.promises.spare_ns.items():
        if other >= level and spare_ns < least_ns:
            least_ns = spare_ns
    if group.held_ns:
        least_ns -= (now_ns - group.held_ns) * len(group.lanes)
    return least_ns


def spend(group: Group, level: int, cost_ns: int) -> None:
    """Work of ``cost_ns`` was put ahead of what is queued at ``level`` and the less urgent ones."""
    for other in group.promises.spare_ns:
        if other >= level:
            group.promises.spare_ns[other] -= cost_ns


def release_hold(group: Group, now_ns: int) -> None:
    """The idle lane waits no longer; the time it did is taken from the spares."""
    if group.held_ns:
        spend(group, 0, (now_ns - group.held_ns) * len(group.lanes))
        group.held_ns = 0


def recount(
    group: Group, now_ns: int, margin_ns: int, place: tuple[int, int] = NOWHERE, cost_ns: int = 0
) -> int:
    """Compute the spares from what is queued, and put work of ``cost_ns`` ahead of all behind ``place`` if
    they can bear it; by how much they cannot, or 0. The time that an idle lane waited so far is accounted
    for."""
    keys = sorted(key for head in group.heads for key in head[3].queue)
    frees = group.lane_times(now_ns)
    ahead_ns = 0
    before: dict[int, int] = {}
    behind: dict[int, int] = {}
    for level, deadline_ns, _, entry in keys:
        if level < LEVEL_DELAYED:
            more_ns = entry.waste_ns + group.partial_ns - entry.batch_key.plan_ns
            spare_ns = _spare(frees, deadline_ns - margin_ns - entry.own_ns, ahead_ns + more_ns)
            spares = behind if place < (level, deadline_ns) else before
            spares[level] = min(spare_ns, spares.get(level, spare_ns))
        ahead_ns += entry.charge_ns
    group.promises.latest = keys[-1][:2] if keys else (0, 0)
    group.promises.own_ns_max = max((key[3].own_ns + key[3].waste_ns for key in keys), default=0)
    group.held_ns = now_ns if group.held_ns else 0
    return _put_ahead(group, before, behind, cost_ns)


def _put_ahead(group: Group, before: dict[int, int], behind: dict[int, int], cost_ns: int) -> int:
    """Take over the spares of those before and behind a place, less a cost if those behind can bear it."""
    missing_ns = cost_ns - min(behind.values(), default=NO_BOUND)
    cost_ns = cost_ns if missing_ns <= 0 else 0
    group.promises.spare_ns = before
    for level, spare_ns in behind.items():
        before[level] = min(spare_ns - cost_ns, before.get(level, NO_BOUND))
    return max(missing_ns, 0)


def _recount_sums(group: Group, now_ns: int, margin_ns: int, place: tuple[int, int], cost_ns: int) -> int:
    """As ``recount``, for a long queue, and not for every request that asks: from the sums of the charges, as
    if every request in a bucket had its earliest deadline, were behind all others in it, and counted with the
    longest batch. Nothing is less than the spares known before, which stay valid."""
    group.promises.recount_in -= 1
    if group.promises.recount_in > 0 or group.held_ns:
        return cost_ns
    group.promises.recount_in = RECOUNT_EVERY
    frees = group.lane_times(now_ns)
    own_ns = margin_ns + group.promises.own_ns_max
    ahead_ns = group.partial_ns
    before: dict[int, int] = {}
    behind: dict[int, int] = {}
    for level, charge_ns in group.charges.levels():
        known_ns = group.promises.spare_ns.get(level)
        if known_ns is not None:
            reached_ns = ahead_ns
            for start_ns, end_ns, charged_ns in group.charges.buckets(level, now_ns):
                reached_ns += charged_ns
                spare_ns = _spare(frees, start_ns - own_ns, reached_ns)
                spares = behind if place < (level, end_ns) else before
                spares[level] = max(min(spare_ns, spares.get(level, spare_ns)), known_ns)
            if level not in before and level not in behind:
                before[level] = known_ns
        ahead_ns += charge_ns
    return _put_ahead(group, before, behind, cost_ns)
