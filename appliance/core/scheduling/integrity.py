"""Recompute every number a group keeps and assert that it agrees. For tests, simulation and idle
moments."""

from __future__ import annotations

from appliance.core.scheduling.group import LANE_DEPTH, BatchKey, Group, Model
from appliance.core.scheduling.leases import goes_alone


def check_group(group: Group) -> None:
    """Assert that queues, heads, sums and lanes of ``group`` are what its requests make them."""
    batch_keys = [batch_key for model in group.models for batch_key in model.batch_keys]
    for batch_key in batch_keys:
        _check_batch_key(batch_key)
    filled = [batch_key for batch_key in batch_keys if batch_key.queue]
    entries = [key[3] for batch_key in filled for key in batch_key.queue]
    assert sorted(group.heads) == group.heads, "heads out of order"
    assert {id(head[3]) for head in group.heads} == {id(batch_key) for batch_key in filled}, (
        "heads of the wrong batch keys"
    )
    assert group.queued == len(entries), "group counts what is not queued"
    assert group.partial_ns == sum(batch_key.plan_ns for batch_key in filled), "planned batches do not add up"
    assert group.charges.total_ns == sum(entry.charge_ns for entry in entries), "charges do not add up"
    group.charges.check_integrity()
    assert all((entry.level, entry.deadline_ns) <= group.promises.latest for entry in entries), (
        "latest is not the latest"
    )
    delayed = sorted((0, entry.delay_at_ns, entry.sequence) for entry in entries if entry.delay_at_ns)
    assert [key[:3] for key in group.delays] == delayed, "queue time-outs differ"
    group.delays.check_integrity()
    for model in group.models:
        _check_model(model)
    for lane in group.lanes:
        assert len(lane.batches) <= LANE_DEPTH, "lane too full"
        assert all(running.lane is lane for running in lane.batches), "batch in the wrong lane"


def check_grants(group: Group, seen_to: bool) -> None:
    """Assert that the leases of ``group`` are those it may have. ``seen_to``: the next Settle looks at it."""
    assert group.leases.leasable == sum(lane.leasable for lane in group.lanes), "leasable lanes miscounted"
    assert group.leases.leased == sum(lane.leased for lane in group.lanes), "leased lanes miscounted"
    for lane in group.lanes:
        assert lane.leasable or not lane.leased, "leased what cannot be"
        assert lane.doubtful or not lane.leased, "sure of what a front end does"
        assert lane.leased_requests or not lane.leased_ns, "leased work without a request"
    plain = all(model.closed or goes_alone(model) for model in group.models)
    assert group.leases.plain == plain or not group.leases.leasable, "models differ"
    held_back = bool(group.queued) or not group.leases.plain
    if held_back and group.leases.leased:
        assert seen_to, "nobody would revoke"
    if not held_back and group.leases.leased < group.leases.leasable:
        assert seen_to, "nobody would grant"


def _check_batch_key(batch_key: BatchKey) -> None:
    batch_key.queue.check_integrity()
    entries = [key[3] for key in batch_key.queue]
    assert all(key[:3] == (key[3].level, key[3].deadline_ns, key[3].sequence) for key in batch_key.queue), (
        "stale key"
    )
    assert all(entry.batch_key is batch_key for entry in entries), "request in the wrong queue"
    assert batch_key.queued_rows == sum(entry.rows for entry in entries), "rows do not add up"
    assert batch_key.uneven == sum(entry.uneven for entry in entries), "uneven requests do not add up"
    head = batch_key.head
    assert (head[:3] if head else None) == (batch_key.queue.first()[:3] if entries else None), "wrong head"
    assert batch_key.plan_ns == batch_key.fixed_ns + batch_key.per_row_ns * batch_key.plan_rows, "stale plan"
    assert 1 <= batch_key.plan_rows <= batch_key.model.max_batch, "planned batch out of range"


def _check_model(model: Model) -> None:
    entries = [key[3] for batch_key in model.batch_keys for key in batch_key.queue]
    assert not (model.closed and entries), "closed model has requests queued"
    assert model.queued == len(entries), "model counts what is not queued"
    if not model.plain:
        for level, count in model.queued_at.items():
            assert count == sum(entry.level == level for entry in entries), "level counts what is not queued"
