"""How much room requests reserve for outputs whose size the graph leaves open: one large answer decides for nobody
else, and not for good."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.config.workers import ArenaConfig
from appliance.domain.errors import QueueFull
from appliance.domain.inference import NO_DEADLINE, RequestHead, RequestPlan, TensorHead
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.domain.validation import plan_request
from appliance.engine.port import Submission
from appliance.engine.versions.layout import FIRST_GUESS_BYTES, KEPT, LAYOUTS_KEPT, Expectations
from tests.domain.sample import make_version
from tests.engine.rig import Rig, outcomes_of
from tests.engine.versions import make_served

PAGE = 4 << 10
LARGE = 1 << 20
ARENA = ArenaConfig(classes=((PAGE, 64), (64 << 10, 16), (2 * LARGE, 4)))
MANY = 60
"""More than there are slots for large ones, fewer than there are pages."""


def make_rig(datatype: Datatype = Datatype.UINT8) -> Rig:
    """It serves one model of which nothing is known, neither of its inputs nor of its outputs."""
    spec = TensorSpec(name="x", datatype=datatype, shape=(-1,))
    out = TensorSpec(name="y", datatype=datatype, shape=(-1,))
    return Rig(make_version("m", inputs=(spec,), outputs=(out,), max_batch_size=0), arena=ARENA)


def plan_for(rig: Rig, elements: int) -> RequestPlan:
    version = rig.engine.resolve("m", "")
    heads = (TensorHead("x", version.inputs[0].datatype.wire, (elements,)),)
    return plan_request(version, RequestHead(model_name="m", model_version="", inputs=heads))


def submit(rig: Rig, plan: RequestPlan, tensor: bytes) -> list[Any]:
    """Its outcome, once there is one; memory of answers is given back at once."""
    outcomes, done = outcomes_of(rig)

    def ended(outcome: Any) -> None:
        done(outcome)
        if not isinstance(outcome, Exception):
            outcome.release()

    rig.engine.submit(
        Submission(
            plan, request_id="", arrived_ns=rig.engine.now_ns(), deadline_ns=NO_DEADLINE, on_done=ended
        ),
        [tensor],
    )
    return outcomes


def ask(rig: Rig, nbytes: int) -> list[Any]:
    return submit(rig, plan_for(rig, nbytes), bytes(nbytes))


def reserved(rig: Rig) -> int:
    return rig.arena.statistics().allocated_bytes


def answer(rig: Rig, nbytes: int, times: int = 1, asked: int = 16) -> None:
    """``times`` requests of ``asked`` bytes, one after the other, are answered with ``nbytes``."""
    for _ in range(times):
        outcomes = ask(rig, asked)
        rig.turns()
        rig.work((nbytes,), nbytes)
        assert len(outcomes) == 1
        assert reserved(rig) == 0


def test_a_large_answer_does_not_decide_for_requests_of_another_shape() -> None:
    rig = make_rig()
    answer(rig, LARGE, asked=LARGE)
    for _ in range(MANY):
        ask(rig, 16)
    assert reserved(rig) == MANY * PAGE


def test_a_large_answer_does_not_decide_for_longer_strings_and_shorter_ones() -> None:
    rig = make_rig(Datatype.BYTES)
    plan = plan_for(rig, 1)
    long, short = ((size.to_bytes(4, "little") + bytes(size)) for size in (LARGE, 16))
    submit(rig, plan, long)
    rig.turns()
    rig.work((1,), len(long))
    for _ in range(MANY):
        submit(rig, plan, short)
    assert reserved(rig) == MANY * PAGE


def test_without_room_for_what_one_answer_took_requests_reserve_less_and_are_not_refused() -> None:
    rig = make_rig()
    answer(rig, LARGE)
    for number in range(MANY):
        assert rig.engine.has_memory(plan_for(rig, 16), [bytes(16)]), number
        ask(rig, 16)
    large = ARENA.classes[-1][1]
    assert reserved(rig) == large * (LARGE + PAGE) + (MANY - large) * PAGE


def test_what_one_answer_took_is_forgotten_as_smaller_ones_follow() -> None:
    rig = make_rig()
    answer(rig, LARGE)
    answer(rig, 40, times=60)
    ask(rig, 16)
    assert reserved(rig) == PAGE


def test_what_all_answers_took_is_not_doubted_so_that_refusals_come_before_the_run() -> None:
    rig = make_rig()
    answer(rig, LARGE, times=12)
    for _ in range(ARENA.classes[-1][1]):
        ask(rig, 16)
    assert not rig.engine.has_memory(plan_for(rig, 16), [bytes(16)])
    with pytest.raises(QueueFull, match="no memory left for tensors"):
        ask(rig, 16)
    assert rig.arena.statistics().exhausted == 1


def test_a_new_shape_is_expected_to_take_as_much_of_its_inputs_as_the_one_before_it() -> None:
    rig = make_rig()
    answer(rig, 8 * 1024, asked=1024)
    ask(rig, 10 * 1024)
    assert reserved(rig) == 90 * 1024 + 2048
    rig.turns()
    rig.work((16,), 16)
    ask(rig, 10 * 1024 + 1)
    assert reserved(rig) == 3 * PAGE, (
        "the last answer was small: the next new shape is not expected to be large"
    )


def test_no_more_shapes_are_remembered_than_the_limit() -> None:
    rig = make_rig()
    expectations = Expectations(rig.engine.resolve("m", ""))
    first = expectations.of(plan_for(rig, 1), 1)
    first.learn((0,), 1, (LARGE,))
    assert expectations.of(plan_for(rig, 1), 1) is first
    for elements in range(2, KEPT + 2):
        expectations.of(plan_for(rig, elements), elements).learn((0,), 1, (1,))
    again = expectations.of(plan_for(rig, 1), 1)
    assert again is not first
    assert again.most_span((0,), 1) == FIRST_GUESS_BYTES


def test_shapes_that_are_asked_for_stay_remembered() -> None:
    rig = make_rig()
    expectations = Expectations(rig.engine.resolve("m", ""))
    known = expectations.of(plan_for(rig, 1), 1)
    for elements in range(2, 2 * KEPT):
        expectations.of(plan_for(rig, elements), elements)
        assert expectations.of(plan_for(rig, 1), 1) is known


def test_no_more_layouts_are_remembered_than_the_limit() -> None:
    rig = make_rig()
    served = make_served(id=1, model=rig.engine.resolve("m", ""))
    plans = [plan_for(rig, elements) for elements in range(1, 2 * LAYOUTS_KEPT)]
    for plan in plans * 2:
        assert served.layout(plan).sizes == (plan.inputs[0].nbytes,)
        assert len(served.layouts) <= LAYOUTS_KEPT
