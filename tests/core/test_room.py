"""What of a device a version may take beside the others, as a table."""

from __future__ import annotations

import pytest

from appliance.core.memory import events
from appliance.core.memory.accountant import Accountant
from appliance.core.memory.budget import Budget, ResidencyPolicy
from appliance.core.memory.events import Event
from appliance.core.memory.footprint import Footprint, Residency
from appliance.core.memory.homes import CONTEXT_BYTES, ROOM_BYTES, is_beyond_room, room_bytes
from appliance.domain.device import cuda

GPU = cuda(0)
THIS, OTHER, THIRD = 1, 2, 3


def serves(model: int, size_bytes: int, residency: Residency = Residency.RESIDENT) -> Event:
    return events.Added(model, GPU, residency, Footprint(size_bytes, 0))


@pytest.mark.parametrize(
    ("history", "free_bytes"),
    [
        ([], 100),
        ([serves(THIS, 30)], 100),
        ([serves(OTHER, 30)], 70),
        ([serves(THIS, 20), serves(OTHER, 30)], 70),
        ([serves(OTHER, 30, Residency.COLD)], 100),
        ([events.ReservationWanted(THIS, GPU, 20)], 100),
        ([events.ReservationWanted(OTHER, GPU, 20)], 80),
        ([serves(OTHER, 30), events.ReservationWanted(THIS, GPU, 20, OTHER)], 70),
        ([serves(OTHER, 30), events.Left(OTHER, 30)], 70),
        ([serves(OTHER, 30), events.Left(OTHER, 30), events.Gone(OTHER)], 100),
        ([serves(THIS, 10), events.BudgetSet(Budget(GPU, 40)), serves(OTHER, 30)], 10),
        ([serves(OTHER, 30), events.BudgetSet(Budget(GPU, 20)), events.Retained(OTHER, True, 0)], -10),
        ([serves(OTHER, 30), serves(THIRD, 30), events.Measured(OTHER, Footprint(50, 0))], 20),
    ],
    ids=[
        "all, where it is alone and not known yet",
        "all, where it is alone",
        "what another one leaves",
        "what another one leaves, whatever it has itself",
        "all, where the other one is out of memory",
        "all, where memory is reserved for it alone",
        "what was reserved for another one",
        "what the version leaves that it is to replace",
        "what one leaves that serves no more and is still there",
        "all, where that is gone",
        "of the budget as it is now",
        "less than nothing, where a pinned one has more than there is",
        "what others really take",
    ],
)
def test_what_no_other_version_has(history: list[Event], free_bytes: int) -> None:
    accountant = Accountant(ResidencyPolicy(), [Budget(GPU, 100)])
    for event in history:
        accountant.step(event, 0)
    assert accountant.free_beside(GPU, THIS) == free_bytes


def test_never_less_than_was_promised_and_a_margin() -> None:
    least = 800 + 200 + ROOM_BYTES
    assert room_bytes(-5, 800) == room_bytes(900, 800) == room_bytes(least, 800) == least
    assert room_bytes(least + 1, 800) == least + 1


def test_what_a_session_says_may_be_above_its_room_by_what_is_kept_for_a_context() -> None:
    assert not is_beyond_room(900 + CONTEXT_BYTES, 900)
    assert is_beyond_room(901 + CONTEXT_BYTES, 900)
    assert not is_beyond_room(1 << 60, 0), "nothing bounds it"
