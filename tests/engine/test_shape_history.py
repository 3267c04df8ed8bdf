"""What is remembered of the shapes of requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.domain.inference import NO_DEADLINE, RequestHead, TensorHead
from appliance.domain.model import ModelVersion
from appliance.domain.session_options import FREE_MAX
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.domain.validation import plan_request
from appliance.engine.port import Submission
from appliance.engine.versions import shape_history
from appliance.engine.versions.shape_history import LONGEST_NS, SETTLED_NS, ShapeHistory
from appliance.workers import port
from tests.domain.sample import make_version
from tests.engine.rig import Rig, outcomes_of


def text(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name=name, datatype=Datatype.FP32, shape=shape)


TEXT = replace(make_version("m", inputs=(text("x", -1),)), runtime="tensorrt")


class Clock:
    ns = 5

    def __call__(self) -> int:
        return self.ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def history(clock: Clock) -> ShapeHistory:
    return ShapeHistory(clock)


def test_the_largest_of_a_model_counts_from_when_it_last_grew(history: ShapeHistory, clock: Clock) -> None:
    assert (history.sizes(TEXT), history.settled_ns(TEXT)) == ({}, 0)
    for ns, size in ((5, 3), (6, 9), (7, 4), (8, 9)):
        clock.ns = ns
        history.note(TEXT, ((size,),))
    assert (history.sizes(TEXT), history.settled_ns(TEXT)) == ({"x": (9,)}, 6 + SETTLED_NS)


def test_what_grows_a_little_again_and_again_settles_in_the_end(history: ShapeHistory, clock: Clock) -> None:
    first = clock.ns
    for size in range(1, 30):
        history.note(TEXT, ((size,),))
        clock.ns += SETTLED_NS - 1
    assert history.settled_ns(TEXT) == first + LONGEST_NS < clock.ns
    assert history.sizes(TEXT) == {"x": (29,)}


def test_one_version_tells_for_the_next(history: ShapeHistory) -> None:
    history.note(TEXT, ((9,),))
    history.note(replace(TEXT, version=2), ((12,),))
    history.note(replace(TEXT, name="other"), ((99,),))
    assert history.sizes(replace(TEXT, version=3)) == {"x": (12,)}


@pytest.mark.parametrize(
    "changed", [(text("tokens", -1),), (text("x", -1, -1),), (text("x", -1), text("mask", -1))]
)
def test_not_for_one_with_other_free_dimensions_whose_own_requests_tell(
    history: ShapeHistory, clock: Clock, changed: tuple[TensorSpec, ...]
) -> None:
    other = replace(TEXT, version=2, inputs=changed)
    history.note(TEXT, ((9,),))
    assert (history.sizes(other), history.settled_ns(other)) == ({}, 0)
    clock.ns = 100
    history.note(other, tuple((3,) * len(spec.shape) for spec in changed))
    history.note(TEXT, ((9,),))
    assert history.settled_ns(TEXT) == 5 + SETTLED_NS, "nor does it grow with those, where both serve"
    assert history.settled_ns(other) == 100 + SETTLED_NS


def test_it_is_waited_for_what_tells_of_each_input(history: ShapeHistory) -> None:
    two = replace(TEXT, inputs=(text("x", -1), text("y", -1)))
    history.note(two, ((3,), (FREE_MAX + 1,)))
    assert history.settled_ns(two) == 0
    history.note(two, ((3,), (4,)))
    assert history.settled_ns(two) == 5 + SETTLED_NS


@pytest.mark.parametrize(
    "model", [replace(TEXT, runtime="onnx"), replace(TEXT, parameters={"tensorrt_free_max": "8"})]
)
def test_nothing_is_kept_of_models_whose_engines_it_does_not_bound(
    history: ShapeHistory, model: ModelVersion
) -> None:
    history.note(model, ((9,),))
    assert history.sizes(model) == {}


def test_so_many_models_are_remembered(history: ShapeHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape_history, "MODELS_MAX", 2)
    models = {name: replace(TEXT, name=name) for name in "abc"}
    for name in ("a", "b", "a", "c"):
        size = 9 if history.sizes(models[name]) else 3
        history.note(models[name], ((size,),))
    assert [name for name in "abc" if history.sizes(models[name])] == ["a", "c"]


def ask(rig: Rig, length: int, status: port.ItemStatus) -> None:
    """Have the worker say so of a request of that length."""
    model = rig.engine.resolve("m", "")
    head = RequestHead(
        model_name="m", model_version="", inputs=(TensorHead(name="x", datatype="FP32", shape=(1, length)),)
    )
    outcomes, done = outcomes_of(rig)
    now_ns = rig.engine.now_ns()
    submission = Submission(
        plan_request(model, head), request_id="", arrived_ns=now_ns, deadline_ns=NO_DEADLINE, on_done=done
    )
    rig.engine.submit(submission, [bytes(4 * length)])
    rig.turns()
    runs, rig.runs = rig.runs, []
    ok = status is port.ItemStatus.OK
    for run in runs:
        results = tuple(
            port.RunResult(
                item.ticket, status, ((1, 2),) if ok else (), (8,) if ok else (), 0, "" if ok else "too long"
            )
            for item in run.items
        )
        rig.engine.pool_event(port.RunFinished(rig._worker, run.batch, results, 1, 1, 1))
    rig.turns()
    assert len(outcomes) == 1


def test_what_a_model_did_not_answer_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[tuple[tuple[int, ...] | None, ...]] = []
    monkeypatch.setattr(ShapeHistory, "note", lambda history, model, shapes: noted.append(shapes))
    rig = Rig(TEXT)
    for length, status in (
        (600, port.ItemStatus.INVALID),
        (500, port.ItemStatus.FAILED),
        (9, port.ItemStatus.OK),
        (9, port.ItemStatus.OK),
        (500, port.ItemStatus.OK),
        (500, port.ItemStatus.INVALID),
    ):
        ask(rig, length, status)
    assert noted == [((9,),), ((500,),)], "once for each shape that is new"
