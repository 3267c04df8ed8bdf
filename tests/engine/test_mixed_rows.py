"""A version whose rows change one another's answers: each of its requests runs alone, whatever the graph looks like."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.core.rollout.policy import RolloutPolicy
from appliance.domain.exit_cause import ExitCause
from appliance.domain.inference import NO_DEADLINE, RequestHead, TensorHead
from appliance.domain.load_wish import PLAIN_LOAD, LoadWish
from appliance.domain.model import ModelVersion
from appliance.domain.validation import plan_request
from appliance.engine.control.recorder import SwapTerms
from appliance.engine.port import Submission
from appliance.engine.versions.records import MemoryRecords
from appliance.telemetry.meter import Result
from appliance.workers import port
from tests.domain.sample import make_version
from tests.engine.rig import Rig, outcomes_of


class MixingRig(Rig):
    """Its workers see rows that change one another's answers."""

    mixes = True


def ask(rig: Rig, rows: int = 1) -> None:
    head = RequestHead(model_name="m", model_version="", inputs=(TensorHead("x", "FP32", (rows, 4)),))
    plan = plan_request(rig.engine.resolve("m", ""), head)
    _, done = outcomes_of(rig)
    submission = Submission(plan, "", rig.engine.now_ns(), NO_DEADLINE, on_done=done)
    rig.engine.submit(submission, [bytes(rows * 16)])


def sizes_of_runs(rig: Rig) -> list[int]:
    """How many requests each run has, of some that come at once."""
    sizes: list[int] = []
    for rows in (1, 1, 2, 1):
        ask(rig, rows)
    while rig.engine.live_requests:
        rig.turns()
        sizes += [len(run.items) for run in rig.runs]
        rig.work((1, 2), 8)
    return sizes


@pytest.mark.parametrize(
    ("kind", "assumed", "merged"), [(MixingRig, True, False), (MixingRig, False, True), (Rig, True, True)]
)
def test_requests_are_merged_unless_rows_were_seen_to_mix(
    kind: type[Rig], assumed: bool, merged: bool
) -> None:
    rig = kind(replace(make_version(), rows_assumed=assumed))
    assert (max(sizes_of_runs(rig)) > 1) is merged


class LateRig(Rig):
    """Its worker looks at rows when it already serves, as after an early session."""

    mixes = None

    def looked(self, mixes: bool) -> None:
        """What the session tells that takes the place of the early one."""
        self.engine.pool_event(port.ModelLoaded(self._worker, self.model, (), 1, 1, mixes=mixes))
        self.turns()

    def load(self, worker: int, model: int, version: ModelVersion, wish: LoadWish = PLAIN_LOAD) -> None:
        self.model = model
        super().load(worker, model, version, wish)


@pytest.mark.parametrize("mixes", [False, True])
def test_requests_are_not_merged_before_anybody_looked(mixes: bool) -> None:
    rig = LateRig(replace(make_version(), rows_assumed=True))
    assert max(sizes_of_runs(rig)) == 1
    rig.looked(mixes)
    assert (max(sizes_of_runs(rig)) > 1) is not mixes


@pytest.mark.parametrize("mixes", [False, True])
def test_what_is_queued_when_somebody_has_looked_is_answered(mixes: bool) -> None:
    rig = LateRig(replace(make_version(), rows_assumed=True))
    for _ in range(6):
        ask(rig)
    rig.turns()
    rig.looked(mixes)
    sizes = []
    while rig.engine.live_requests:
        sizes += [len(run.items) for run in rig.runs]
        rig.work((1, 2), 8)
    assert sum(sizes) == 6
    (status,) = rig.engine.status().versions
    assert status.statistics.results == dict.fromkeys(Result, 0) | {Result.SUCCESS: 6}
    assert (max(sizes) > 1) is not mixes


def test_workers_of_a_version_whose_rows_mix_fill_no_batch_up() -> None:
    """They learn of it with the next load, when no rows are tried any more."""
    rig = MixingRig(replace(make_version(), rows_assumed=True))
    rig.engine.pool_event(port.WorkerExited(rig._worker, ExitCause.KILLED, (), -1, ""))
    while len(rig.load_calls) < 2:
        rig.turns()
    assert [version.batching is None for _, version, _ in rig.load_calls] == [False, True]


@pytest.mark.parametrize(
    ("kind", "box", "files", "tried"),
    [
        (Rig, "here", "a", False),
        (MixingRig, "here", "a", False),
        (Rig, "there", "a", True),
        (Rig, "here", "b", True),
    ],
)
def test_rows_are_not_tried_again_after_a_restart_or_a_rollback(
    kind: type[Rig], box: str, files: str, tried: bool
) -> None:
    """Either would take longer. Of other files, or on another box, nothing is known."""
    model, records = replace(make_version(), rows_assumed=True), MemoryRecords()

    def made(box: str, files: str) -> Rig:
        terms = SwapTerms(RolloutPolicy(), records, lambda model: box)
        return kind(replace(model, digest=files), swap=terms)

    first, again = made("here", "a"), made(box, files)
    assert [wish.probe for rig in (first, again) for _, _, wish in rig.load_calls] == [True, tried]
    assert (max(sizes_of_runs(again)) > 1) is (kind is Rig)


def test_rows_that_were_once_seen_to_mix_are_held_to_it() -> None:
    """A session on another worker rounds otherwise, and sees nothing."""
    records = MemoryRecords()
    terms = SwapTerms(RolloutPolicy(), records, lambda model: "")
    rig = MixingRig(replace(make_version(), rows_assumed=True), swap=terms)
    ((model, _, _),) = rig.load_calls
    rig.engine.pool_event(port.ModelLoaded(rig._worker, model, (), 1, 1, mixes=False))
    rig.turns()
    assert list(records.rows.values()) == [True]


def test_the_status_says_why_they_are_not() -> None:
    noted = {
        kind: any("its requests are not merged: rows" in note for note in notes_of(kind))
        for kind in (Rig, MixingRig)
    }
    assert noted == {Rig: False, MixingRig: True}


def notes_of(kind: type[Rig]) -> tuple[str, ...]:
    rig = kind(replace(make_version(), rows_assumed=True))
    (status,) = rig.engine.status().versions
    return tuple(status.notes)
