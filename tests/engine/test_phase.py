"""The table of a version's life: all of it can be reached, and nothing else can be built."""

from __future__ import annotations

import itertools

import pytest

from appliance.core.rollout.phase import ANSWERING, ON_ITS_WAY, STATES, TRANSITIONS, Phase, advance
from appliance.domain.model import VersionState


@pytest.mark.parametrize(("phase", "to"), [*itertools.product(Phase, Phase)])
def test_what_the_table_does_not_allow_cannot_be(phase: Phase, to: Phase) -> None:
    if to in TRANSITIONS[phase]:
        assert advance(phase, to) is to
    else:
        with pytest.raises(AssertionError, match=f"{to.name} does not follow {phase.name}"):
            advance(phase, to)


def test_every_phase_can_be_reached_and_left() -> None:
    reached = {Phase.QUEUED}
    while more := {to for phase in reached for to in TRANSITIONS[phase]} - reached:
        reached |= more
    assert reached == set(Phase)
    ends = {phase for phase, following in TRANSITIONS.items() if not following}
    assert ends == {Phase.GONE}


def test_what_is_on_its_way_may_fail_or_be_left_alone_at_any_time() -> None:
    for phase in ON_ITS_WAY:
        assert TRANSITIONS[phase] >= {Phase.FAILED, Phase.DRAINING}


def test_clients_are_told_of_every_phase() -> None:
    assert set(STATES) == set(Phase)
    assert STATES[Phase.WATCHED] is STATES[Phase.LIVE] is VersionState.READY
    assert {phase for phase, state in STATES.items() if state is VersionState.READY} == ANSWERING
    assert STATES[Phase.SHADOW] is VersionState.LOADING, "its answers are compared, and sent to nobody"
