"""A request that cannot be taken is refused within ``submit``, before its tensors are copied, and counted once."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import pytest

from appliance.config.workers import ArenaConfig
from appliance.core.scheduling.planning import Planning
from appliance.domain.errors import ApplianceError, DeadlineExpired, QueueFull, Stopping
from appliance.domain.inference import NO_DEADLINE, RequestHead, RequestPlan, TensorHead
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.domain.validation import plan_request
from appliance.engine.port import Submission
from appliance.telemetry.meter import Result
from tests.domain.sample import make_version
from tests.engine.rig import Rig, outcomes_of

ROW = 4 * 1024


class Unreadable:
    """Stands for a tensor: whoever copies it fails."""

    def __len__(self) -> int:
        return ROW

    def __buffer__(self, flags: int) -> memoryview:
        raise AssertionError("the tensor was copied")


def model() -> Any:
    spec = TensorSpec(name="x", datatype=Datatype.FP32, shape=(1024,))
    return make_version(
        "m", inputs=(spec,), outputs=(TensorSpec(name="y", datatype=Datatype.FP32, shape=(1,)),)
    )


def plan(rig: Rig) -> RequestPlan:
    head = RequestHead(model_name="m", model_version="", inputs=(TensorHead("x", "FP32", (1, 1024)),))
    return plan_request(rig.engine.resolve("m", ""), head)


def submit(
    rig: Rig, tensor: Any = bytes(ROW), deadline_ns: int = NO_DEADLINE, arrived_ns: int | None = None
) -> list[Any]:
    outcomes, done = outcomes_of(rig)
    rig.engine.submit(
        Submission(
            plan(rig),
            request_id="",
            arrived_ns=rig.engine.now_ns() if arrived_ns is None else arrived_ns,
            deadline_ns=deadline_ns,
            on_done=done,
        ),
        [tensor],
    )
    return outcomes


def refused(rig: Rig, why: type[ApplianceError], **more: Any) -> None:
    """One request is refused with ``why`` and leaves nothing behind."""
    before, live = rig.arena.statistics().allocated_bytes, rig.engine.live_requests
    with pytest.raises(why):
        submit(rig, **more)
    rig.turns()
    assert rig.arena.statistics().allocated_bytes == before
    assert rig.engine.live_requests == live


def counted(rig: Rig, result: Result) -> int:
    (found,) = rig.engine.statistics("m", "")
    return found.results[result]


def test_what_the_queue_does_not_take_is_refused_before_it_is_copied() -> None:
    rig = Rig(model(), Planning(max_queued_requests=1))
    submit(rig)
    rig.turns()
    submit(rig)
    refused(rig, QueueFull, tensor=Unreadable())
    rig.work((1, 1), 4)
    rig.work((1, 1), 4)
    assert (counted(rig, Result.SUCCESS), counted(rig, Result.REFUSED)) == (2, 1)


def test_a_refusal_leaves_no_cycle_that_keeps_the_tensors() -> None:
    rig = Rig(model())
    rig.engine.drain()
    gc.collect()
    gc.disable()
    try:
        for _ in range(50):
            memory = bytearray(ROW)
            with contextlib.suppress(Stopping):
                submit(rig, memoryview(memory))
            memory.clear()  # raises BufferError while anybody still looks at it
    finally:
        gc.enable()
    assert counted(rig, Result.UNAVAILABLE) == 50


def test_what_is_late_already_is_refused_before_it_is_copied() -> None:
    rig = Rig(model())
    refused(rig, DeadlineExpired, tensor=Unreadable(), deadline_ns=rig.engine.now_ns())
    assert counted(rig, Result.EXPIRED) == 1


def test_nothing_is_taken_while_draining() -> None:
    rig = Rig(model())
    rig.engine.drain()
    refused(rig, Stopping, tensor=Unreadable())
    assert counted(rig, Result.UNAVAILABLE) == 1


def test_what_waited_at_the_front_end_when_draining_began_is_still_served() -> None:
    rig = Rig(model())
    arrived_ns = rig.engine.now_ns()
    rig.engine.drain()
    outcomes = submit(rig, arrived_ns=arrived_ns)
    rig.engine.drain()
    refused(rig, Stopping)
    rig.turns()
    rig.work((1, 1), 4)
    assert len(outcomes) == 1
    assert (counted(rig, Result.SUCCESS), counted(rig, Result.UNAVAILABLE)) == (1, 1)


def test_without_memory_for_its_tensors_a_request_is_not_left_in_the_queue() -> None:
    rig = Rig(model(), arena=ArenaConfig(classes=((64 << 10, 8),)))
    held = [submit(rig) for _ in range(8)]
    refused(rig, QueueFull)
    while rig.engine.live_requests:
        rig.turns()
        rig.work((1, 1), 4)
    assert all(len(outcomes) == 1 for outcomes in held)
    assert (counted(rig, Result.SUCCESS), counted(rig, Result.REFUSED)) == (8, 1)
