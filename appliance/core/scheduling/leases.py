"""Leases: when a front end may fill a lane by itself, how that counts in plans, and what it goes by.

A lane is leased while nothing is queued for its group and none of the group's models orders, bounds or delays its
queue; so what a front end sends overtakes nothing. The front end tells late, and in batch, what it has under way: for
plans the lane is busy with that until ``news + work_ns``. What comes to the scheduler meanwhile waits, unless that is
soon, so that batches form, and ends the lease. The worker takes what the scheduler sends it before what the front end
does, or by turns. So a batch that is sent to a leased lane waits for one leased batch at most, and the leased work
behind it ends later by as much as that batch takes.

What promises cannot know is leased work that was not told yet: a request may be late by it, and a leased one by the
batches sent to its lane meanwhile. The simulation holds them to no more than that.

A front end promises by ``Price``, as ``admission`` does for a queue without levels, in the order of arrival. A request
of r rows is charged ``charge_per_row_ns`` * (2r - 1), and the batch of the one sent to the lane before it when it is of
another kind or has other ``batch_rows``, because the worker merges only what is alike and side by side: that batch is
closed early. The work under way is one batch, for what runs, of the longest kind sent since the lane was idle, and all
charges. A request is in time if now + work under way + what it closes + ``charge_per_row_ns`` * (r - 1) + ``batch_ns``
+ ``margin_ns`` is not after its deadline; of the batch that runs, the time since the last completion, or since the lane
was idle, may be taken off. A front end does not refuse what it cannot promise on a lane with nothing under way: only
the scheduler can try whether its estimate is right.
"""

from __future__ import annotations

from typing import NamedTuple

from appliance.core.scheduling.actions import Action, GrantLease, RevokeLease
from appliance.core.scheduling.admission import spend
from appliance.core.scheduling.events import LeasedRan
from appliance.core.scheduling.group import NEVER, BatchKey, Group, Lane, Model, RunningBatch
from appliance.core.scheduling.profile import WARM_BATCHES

DOUBTFUL = 1
MIXED = 2
"""The company of a batch: leased work may have run between, or has. Without either none could."""
LEARNED_MAX = 4
"""Of equal leased batches told at once, so many are learned from: it bounds what the news cost. It is one while little
is known: all of them are told by their mean, and would confirm by each other that one of them stood still."""


class Price(NamedTuple):
    """The numbers that a front end admits by. ``batch_ns`` is how long the planned batch takes, and ``batch_rows`` its
    rows, beyond which the worker merges nothing: the requests before could not bear it. All zero but margin and rows:
    nothing is known yet, and everything is promised."""

    charge_per_row_ns: int
    batch_ns: int
    margin_ns: int
    batch_rows: int


def price(batch_key: BatchKey | None, margin_ns: int) -> Price:
    """The price of ``batch_key`` as of now."""
    if batch_key is None:
        return Price(0, 0, margin_ns, 0)
    if not batch_key.queued_rows:
        batch_key.replan(margin_ns)
    return Price(
        -(-batch_key.plan_ns // batch_key.plan_rows), batch_key.plan_ns, margin_ns, batch_key.plan_rows
    )


def goes_alone(model: Model) -> bool:
    """Whether requests of ``model`` may pass the scheduler by: it would do nothing but batch them as they come."""
    return model.plain and not model.delay_ns


def survey(group: Group) -> None:
    """Note whether ``group`` may be leased by the models it has now."""
    group.leases.plain = all(model.closed or goes_alone(model) for model in group.models)


def settle(group: Group, actions: list[Action]) -> None:
    """GrantLease all that can be leased of ``group``, or revoke all of it, after its lanes were filled."""
    if group.queued or not group.leases.plain:
        if group.leases.leased:
            for lane in group.lanes:
                if lane.leased:
                    lane.leased = False
                    actions.append(RevokeLease(lane.lane))
            group.leases.leased = 0
    elif group.leases.leased < group.leases.leasable:
        for lane in group.lanes:
            if lane.leasable and not lane.leased:
                lane.leased = lane.doubtful = True
                for running in lane.batches:
                    running.company = max(running.company, DOUBTFUL)
                actions.append(GrantLease(lane.lane))
        group.leases.leased = group.leases.leasable


def opened(lane: Lane) -> None:
    """``lane`` has come to its group, not leased."""
    lane.group.leases.leasable += lane.leasable
    survey(lane.group)


def closed(lane: Lane) -> None:
    """``lane`` leaves its group, and its lease ends with it."""
    lane.group.leases.leasable -= lane.leasable
    lane.group.leases.leased -= lane.leased


def told(lane: Lane, requests: int, work_ns: int, now_ns: int) -> bool:
    """The front end has ``requests`` under way in ``lane``, that take ``work_ns`` from now on. Whether something queued
    waits for the lane, which has drained."""
    before_ns = lane.free_at(now_ns)
    work_ns = work_ns if requests else 0
    if lane.batches:
        lane.free_ns = max(lane.free_ns + work_ns - lane.leased_ns, now_ns + work_ns)
        if requests:
            for running in lane.batches:
                running.company = MIXED
    else:
        lane.free_ns = now_ns + work_ns
    lane.doubtful = lane.leased
    lane.leased_requests = requests
    lane.leased_ns = work_ns
    _put_ahead(lane, before_ns, now_ns)
    return bool(lane.group.queued and not requests)


def ran(lane: Lane, ns: int, now_ns: int) -> None:
    """The lane was busy with leased batches for ``ns``, of late: so much later is what runs in it, at most."""
    if lane.batches:
        before_ns = lane.free_at(now_ns)
        lane.free_ns += min(ns, now_ns - lane.batches[0].start_ns)
        for running in lane.batches:
            running.company = MIXED
        _put_ahead(lane, before_ns, now_ns)


def learn(batch_key: BatchKey, event: LeasedRan, tolerance: float, now_ns: int) -> None:
    """Some leased batches ran, as the front end tells."""
    batch_key.profile.measured = True
    batch_key.refusals.end(now_ns)
    changed = False
    profile = batch_key.profile
    for _ in range(min(event.batches, LEARNED_MAX if profile.seen >= WARM_BATCHES else 1)):
        changed = profile.observe(event.rows, event.ns) or changed
    if changed:
        batch_key.learned(tolerance)


def drained(group: Group) -> int:
    """When the first lane should be free that has only leased work (NEVER: none has)."""
    return min(
        (lane.free_ns for lane in group.lanes if lane.leased_requests and not lane.batches), default=NEVER
    )


def joined(lane: Lane, running: RunningBatch, now_ns: int) -> int:
    """``running`` goes to ``lane``; when that is done with all else. What of that is leased work stands back from now
    on."""
    end_ns = lane.free_at(now_ns)
    if lane.leased_requests:
        running.company = MIXED
        if not lane.batches:
            lane.leased_ns = end_ns - now_ns
    elif lane.doubtful:
        running.company = DOUBTFUL
    return end_ns


def service_ns(running: RunningBatch, passed_ns: int, told_ns: int) -> int:
    """How long a batch in company took, for which ``passed_ns`` passed and the worker told ``told_ns`` (0: nothing); 0
    when that cannot be said."""
    if told_ns:
        return told_ns
    return 0 if running.company == MIXED else passed_ns


def _put_ahead(lane: Lane, before_ns: int, now_ns: int) -> None:
    """What is queued could not know of work that frees ``lane`` later than ``before_ns``."""
    more_ns = lane.free_at(now_ns) - before_ns
    if more_ns > 0 and lane.group.queued:
        spend(lane.group, 0, more_ns)
