"""A version in the shadow goes on being tried, whatever becomes of the requests that its twins were made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from appliance.core.rollout.catalog import Catalog, CatalogVersion, TrialWish
from appliance.core.rollout.policy import RolloutPolicy
from appliance.domain.errors import Cancelled, RunFailed
from appliance.domain.inference import NO_DEADLINE, Answer, RequestHead, TensorHead
from appliance.domain.validation import plan_request
from appliance.engine.port import Submission, Tensor
from appliance.telemetry.meter import Result
from appliance.workers import port
from tests.domain.sample import make_version
from tests.engine.rig import Rig

TWINS = RolloutPolicy().mirrored_in_flight


class ShadowRig(Rig):
    """Version 1 serves, and every request runs on version 2 as well."""

    def __init__(self) -> None:
        self.lanes: list[tuple[int, port.Run]] = []
        super().__init__(make_version("m", 1))
        one, two = (CatalogVersion(model=make_version("m", number), fingerprint="") for number in (1, 2))
        trial = TrialWish(shadow_percent=100.0, hold=True)
        self.engine.apply(Catalog(versions=(one, replace(two, trial=trial))))
        self.turns()
        self.ended: list[Any] = []

    def dispatch(self, worker: int, run: port.Run) -> None:
        self.lanes.append((worker, run))

    def ask(self, tensor: Tensor = bytes(16)) -> int:
        """Of whoever serves; gives the request's handle. Its run and that of its twin are on their way then."""
        head = RequestHead(model_name="m", model_version="", inputs=(TensorHead("x", "FP32", (1, 4)),))
        handle = self.engine.submit(
            Submission(
                plan_request(self.engine.resolve("m", ""), head),
                request_id="",
                arrived_ns=self.engine.now_ns(),
                deadline_ns=NO_DEADLINE,
                on_done=self.ended.append,
            ),
            [tensor],
        )
        self.turns()
        return handle

    def end(self, *, ok: bool = True) -> None:
        """The run that is under way for longest ends."""
        worker, run = self.lanes.pop(0)
        status = port.ItemStatus.OK if ok else port.ItemStatus.FAILED
        shapes, sizes = (((1, 2),), (8,)) if ok else ((), ())
        results = tuple(
            port.RunResult(item.ticket, status, shapes, sizes, 0, "" if ok else "told to")
            for item in run.items
        )
        self.engine.pool_event(port.RunFinished(worker, run.batch, results, 1, 1, 1))
        self.turns()


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_requests_that_fail_before_their_twins_do_not_use_the_trial_up(how: str) -> None:
    rig = ShadowRig()
    for _ in range(TWINS + 1):
        handle = rig.ask()
        assert len(rig.lanes) == 2, "the request has no twin"
        if how == "cancelled":
            rig.engine.cancel(handle)
        rig.end(ok=how == "cancelled")
        rig.end()
        assert isinstance(rig.ended.pop(), Cancelled if how == "cancelled" else RunFailed)
    assert rig.engine.status().swaps.compared == 0, "there was nothing to compare with"
    rig.ask()
    rig.end()
    rig.end()
    (answer,) = rig.ended
    assert isinstance(answer, Answer)
    assert rig.engine.status().swaps.compared == 1
    tried = next(each for each in rig.engine.status().versions if each.version == 2)
    assert tried.statistics.results[Result.SUCCESS] == 0, "a twin was counted as somebody's answer"
    assert tried.trial is not None
    assert tried.trial.answered == TWINS + 2
    answer.release()
    assert rig.arena.statistics().allocated_bytes == 0
