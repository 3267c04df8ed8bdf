"""Recompute every number a group keeps and assert that it agrees. For tests, simulation and idle
moments."""

from __future__ import annotations

from appliance.core.scheduling.group import LANE_DEPTH, Group, Model, Shape
from appliance.core.scheduling.leases import goes_alone


def check_group(group: Group) -> None:
    """Assert that queues, heads, sums and lanes of ``group`` are what its requests make them."""
    shapes = [shape for model in group.models for shape in model.shapes]
    for shape in shapes:
        _check_shape(shape)
    filled = [shape for shape in shapes if shape.queue]
    entries = [key[3] for shape in filled for key in shape.queue]
    assert sorted(group.heads) == group.heads, "heads out of order"
    assert {id(head[3]) for head in group.heads} == {id(shape) for shape in filled}, (
        "heads of the wrong shapes"
    )
    assert group.queued == len(entries), "group counts what is not queued"
    assert group.partial_ns == sum(shape.plan_ns for shape in filled), "planned batches do not add up"
    assert group.ledger.total_ns == sum(entry.charge_ns for entry in entries), "charges do not add up"
    group.ledger.check_integrity()
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


def _check_shape(shape: Shape) -> None:
    shape.queue.check_integrity()
    entries = [key[3] for key in shape.queue]
    assert all(key[:3] == (key[3].level, key[3].deadline_ns, key[3].sequence) for key in shape.queue), (
        "stale key"
    )
    assert all(entry.shape is shape for entry in entries), "request in the wrong queue"
    assert shape.queued_rows == sum(entry.rows for entry in entries), "rows do not add up"
    assert shape.uneven == sum(entry.uneven for entry in entries), "uneven requests do not add up"
    head = shape.head
    assert (head[:3] if head else None) == (shape.queue.first()[:3] if entries else None), "wrong head"
    assert shape.plan_ns == shape.fixed_ns + shape.per_row_ns * shape.plan_rows, "stale plan"
    assert 1 <= shape.plan_rows <= shape.model.max_batch, "planned batch out of range"


def _check_model(model: Model) -> None:
    entries = [key[3] for shape in model.shapes for key in shape.queue]
    assert not (model.closed and entries), "closed model has requests queued"
    assert model.queued == len(entries), "model counts what is not queued"
    if not model.plain:
        for level, count in model.queued_at.items():
            assert count == sum(entry.level == level for entry in entries), "level counts what is not queued"
