"""A version whose rows change one another's answers: each of its requests runs alone, whatever the graph looks like."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.domain.inference import NO_DEADLINE, RequestHead, TensorHead
from appliance.domain.validation import plan_request
from appliance.engine.port import Submission
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
