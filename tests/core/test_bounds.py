"""Every queue has a bound, in requests and in bytes; crossing it is a refusal that names it."""

from __future__ import annotations

from appliance.core.scheduling import events as on
from appliance.core.scheduling.actions import Dropped, RefusalReason, Refused
from appliance.domain.model import Batching, QueuePolicy
from tests.core.rig import Rig
from tests.core.scheduler_detail import batch_keys, lanes, running_requests


def reason(actions: list[object]) -> RefusalReason | None:
    """Why an arrival was refused."""
    if not actions:
        return None
    (action,) = actions
    assert isinstance(action, Refused)
    return action.reason


def test_requests_of_all_models() -> None:
    rig = Rig(max_queued_requests=2)
    rig.open_model(2)
    rig.open_batch_key(2, 2)
    rig.occupy()
    assert reason([*rig.arrive(1)]) is None
    assert reason([*rig.arrive(2, batch_key=2)]) is None
    assert reason([*rig.arrive(3)]) is RefusalReason.QUEUE_FULL


def test_bytes_of_all_models() -> None:
    rig = Rig(max_queued_bytes=1000)
    rig.occupy()
    assert reason([*rig.arrive(1, nbytes=600)]) is None
    assert reason([*rig.arrive(2, nbytes=401)]) is RefusalReason.QUEUE_BYTES
    assert reason([*rig.arrive(3, nbytes=400)]) is None


def test_requests_of_one_model() -> None:
    rig = Rig(max_queued_per_model=1)
    rig.open_model(2)
    rig.open_batch_key(2, 2)
    rig.occupy()
    assert reason([*rig.arrive(1)]) is None
    assert reason([*rig.arrive(2)]) is RefusalReason.QUEUE_FULL
    assert reason([*rig.arrive(3, batch_key=2)]) is None


def test_a_level_has_the_bound_of_its_policy() -> None:
    batching = Batching(
        priority_levels=2,
        default_priority_level=2,
        default_queue_policy=QueuePolicy(max_queue_size=2),
        priority_queue_policy={1: QueuePolicy(max_queue_size=1)},
    )
    rig = Rig(batching=batching)
    rig.occupy()
    assert reason([*rig.arrive(1, priority=1)]) is None
    assert reason([*rig.arrive(2, priority=1)]) is RefusalReason.QUEUE_FULL
    assert reason([*rig.arrive(3)]) is None
    assert reason([*rig.arrive(4)]) is None
    assert reason([*rig.arrive(5)]) is RefusalReason.QUEUE_FULL


def test_what_runs_is_not_counted_and_what_leaves_makes_room() -> None:
    rig = Rig(max_batch=1, max_queued_requests=1)
    rig.occupy()
    assert reason([*rig.arrive(1)]) is None
    assert rig.step(on.CancelRequested(1), 1) == [Dropped(1)]
    assert reason([*rig.arrive(2, at=1)]) is None
    rig.finish(1, at=9)
    assert rig.batches(at=9) == [(2,)]
    assert reason([*rig.arrive(3, at=9)]) is None


def test_an_unknown_or_closed_shape_is_refused() -> None:
    rig = Rig()
    assert reason([*rig.arrive(1, batch_key=77)]) is RefusalReason.UNKNOWN
    rig.step(on.ModelClosed(1), 0)
    assert reason([*rig.arrive(2)]) is RefusalReason.UNKNOWN


def test_statistics_say_what_is_queued_and_what_runs() -> None:
    rig = Rig()
    rig.occupy()
    rig.arrive(1, nbytes=70)
    rig.arrive(2, rows=3, nbytes=30)
    statistics = rig.scheduler.statistics()
    assert (statistics.queued, statistics.queued_bytes, running_requests(rig.scheduler)) == (2, 100, 1)
    assert statistics.queued_by_model == {1: 2}
    assert statistics.batch_keys == 1
    (lane,) = lanes(rig.scheduler)
    assert (lane.lane, len(lane.batches)) == (1, 1)
    (batch_key,) = batch_keys(rig.scheduler)
    assert (batch_key.queued_rows, batch_key.profile.known, batch_key.fixed_ns, batch_key.per_row_ns) == (
        4,
        True,
        8_000_000,
        1_000_000,
    )
