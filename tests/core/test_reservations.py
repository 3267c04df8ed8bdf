"""Memory for versions on their way to serving, and for those that leave."""

from __future__ import annotations

import pytest

from appliance.core.memory import actions, events
from appliance.core.memory.accountant import Accountant
from appliance.core.memory.actions import Action, GrantReservation, HoldReservation, RefuseReservation
from appliance.core.memory.budget import (
    Budget,
    Limit,
    NeverFits,
    ResidencyPolicy,
    WaitsBesidePins,
    WaitsForIdle,
    WaitsForMachine,
    WaitsForOvercommit,
)
from appliance.core.memory.footprint import Footprint, Residency
from appliance.core.memory.reservations import PATIENCE_NS, SPARE_BYTES
from appliance.domain.device import CPU, cuda

GPU = cuda(0)

MB = 1_000_000
OLD, NEW, OTHER = 1, 2, 3


class Rig:
    """An accountant with a budget of 100 MB, in a machine with ``free_bytes`` left; what it asks for is not done."""

    def __init__(self, free_bytes: int = 0) -> None:
        self.accountant = Accountant(ResidencyPolicy(), [Budget(CPU, 100 * MB)])
        self.free_bytes = free_bytes
        self.busy: set[int] = set()

    def tell(self, event: events.Event, now_ns: int = 0) -> list[Action]:
        found: list[Action] = []
        for action in self.accountant.step(event, now_ns):
            match action:
                case actions.CheckUse(device, models):
                    idle = frozenset(set(models) - self.busy)
                    found += self.accountant.step(events.UseChecked(device, idle), now_ns)
                case actions.MeasureFree(device):
                    found += self.accountant.step(events.FreeMeasured(device, self.free_bytes), now_ns)
                case _:
                    found.append(action)
        self.accountant.check_integrity()
        return found

    def serve(self, model: int, size_bytes: int, residency: Residency = Residency.RESIDENT) -> None:
        self.tell(events.Added(model, CPU, residency, Footprint(size_bytes, 0)))

    def want(
        self, model: int, size_bytes: int, replaces: int | None = None, now_ns: int = 0
    ) -> actions.Reply:
        wanted = events.ReservationWanted(model, CPU, size_bytes, replaces)
        (reply,) = [each for each in self.tell(wanted, now_ns) if isinstance(each, actions.Reply)]
        return reply

    def flip(self, new: int, new_bytes: int, old: int, old_bytes: int) -> None:
        """``new`` serves in the place of ``old``, which leaves."""
        left = events.Left(old, old_bytes, new, new_bytes)
        added = events.Added(new, CPU, Residency.RESIDENT, Footprint(new_bytes, 0))
        self.tell(events.Changed((left, added)))

    @property
    def left_bytes(self) -> int:
        return self.accountant.statistics(CPU).left_bytes

    @property
    def other_bytes(self) -> int:
        return self.accountant.statistics(CPU).other_bytes


def limit(kept_bytes: int = 0) -> Limit:
    return Limit(bytes=100 * MB, configured=False, kept_bytes=kept_bytes)


def test_memory_is_kept_for_a_candidate_until_it_serves_and_then_for_what_it_replaced() -> None:
    rig = Rig()
    rig.serve(OLD, 40 * MB)
    rig.serve(OTHER, 50 * MB)
    wanted = events.ReservationWanted(NEW, CPU, 30 * MB, OLD)
    assert rig.tell(wanted)[0] == HoldReservation(NEW)
    assert rig.left_bytes == 70 * MB
    assert rig.accountant.model(OTHER).move.value == "unloading", "and not the one to be replaced"  # type: ignore[union-attr]
    rig.tell(events.Done(OTHER))
    assert rig.want(NEW, 30 * MB, OLD, 1) == GrantReservation(NEW)
    rig.flip(NEW, 30 * MB, OLD, 40 * MB)
    assert (rig.left_bytes, rig.other_bytes) == (60 * MB, 40 * MB)
    rig.tell(events.Gone(OLD))
    assert rig.left_bytes == 100 * MB


def test_what_was_kept_is_there_again_when_it_serves_again() -> None:
    rig = Rig()
    rig.serve(OLD, 40 * MB)
    assert rig.want(NEW, 30 * MB, OLD) == GrantReservation(NEW)
    rig.flip(NEW, 30 * MB, OLD, 40 * MB)
    assert rig.left_bytes == 60 * MB
    rig.flip(OLD, 40 * MB, NEW, 30 * MB)
    assert (rig.left_bytes, rig.other_bytes) == (70 * MB, 30 * MB)
    rig.tell(events.Gone(NEW))
    assert rig.left_bytes == 100 * MB


def test_what_leaves_counts_until_it_has_left() -> None:
    rig = Rig()
    rig.serve(OLD, 40 * MB)
    rig.serve(OTHER, 30 * MB, Residency.COLD)
    rig.tell(events.Changed((events.Left(OLD, 40 * MB), events.Left(OTHER, 0))))
    assert (rig.left_bytes, rig.other_bytes) == (60 * MB, 40 * MB)
    rig.tell(events.Gone(OLD))
    assert rig.left_bytes == 100 * MB


def test_what_was_tried_and_is_abandoned_counts_until_it_has_left() -> None:
    rig = Rig()
    rig.serve(OLD, 30 * MB)
    for model, size_bytes in ((NEW, 20 * MB), (OTHER, 10 * MB)):
        assert rig.want(model, size_bytes, OLD) == GrantReservation(model)
    assert rig.left_bytes == 70 * MB
    rig.tell(events.Changed((events.Left(NEW, 25 * MB, OLD, 30 * MB), events.Left(OTHER, 0, OLD, 30 * MB))))
    assert rig.left_bytes == 80 * MB, "what was kept for it, and nothing for what was not loaded"


@pytest.mark.parametrize("free_bytes", [0, 1 << 40])
def test_what_is_gone_back_from_is_no_reason_to_put_out_what_it_is_gone_back_to(free_bytes: int) -> None:
    """Whether it turned out larger than was guessed, or was tried above the budget."""
    rig = Rig(free_bytes)
    rig.serve(OLD, 60 * MB)
    assert rig.want(NEW, 60 * MB if free_bytes else 10 * MB, OLD) == GrantReservation(NEW)
    rig.flip(NEW, 70 * MB, OLD, 60 * MB)
    rig.flip(OLD, 60 * MB, NEW, 70 * MB)
    assert rig.left_bytes == (100 * MB if free_bytes else 60 * MB)
    assert rig.other_bytes == (70 * MB if free_bytes else 40 * MB)
    rig.tell(events.Gone(NEW))
    assert (rig.left_bytes, rig.other_bytes) == (100 * MB, 0)


def test_a_version_that_is_larger_than_was_guessed_is_not_put_out_for_what_it_replaced() -> None:
    rig = Rig()
    rig.serve(OLD, 60 * MB)
    assert rig.want(NEW, 10 * MB, OLD) == GrantReservation(NEW)
    rig.flip(NEW, 70 * MB, OLD, 60 * MB)
    assert rig.left_bytes == 70 * MB


def test_a_version_that_room_is_made_for_does_not_start_cold_meanwhile() -> None:
    rig = Rig()
    rig.serve(OLD, 90 * MB)
    rig.busy.add(OLD)
    size = Footprint(30 * MB, 0)
    resting, coming = (events.ColdStartOffered(model, CPU, size) for model in (OTHER, NEW))
    assert rig.tell(resting) == [actions.StartCold(OTHER)]
    assert rig.want(NEW, 30 * MB) == HoldReservation(NEW)
    assert not rig.tell(coming), "what is kept for it is its own"
    late = rig.want(NEW, 30 * MB, now_ns=PATIENCE_NS)
    assert isinstance(late, RefuseReservation)
    assert late.reason == WaitsForIdle(need_bytes=30 * MB)
    assert rig.tell(coming) == [actions.StartCold(NEW)], "nobody made room"


def test_evicted_weights_are_room_enough_to_start() -> None:
    rig = Rig()
    rig.serve(OLD, 50 * MB)
    assert not rig.tell(events.ColdStartOffered(NEW, CPU, Footprint(80 * MB, 60 * MB)))
    rig.serve(OTHER, 40 * MB)
    assert rig.tell(events.ColdStartOffered(NEW, CPU, Footprint(80 * MB, 60 * MB)))
    assert not rig.tell(events.ColdStartOffered(NEW, CPU, Footprint(120 * MB, 0))), "it never fits"


def test_what_never_fits_says_why_and_takes_nothing() -> None:
    rig = Rig()
    never = rig.want(NEW, 120 * MB)
    assert isinstance(never, RefuseReservation)
    assert never.reason == NeverFits(need_bytes=120 * MB, limit=limit())
    assert rig.accountant.unfit() == {NEW: never.reason}
    rig.serve(OLD, 60 * MB)
    rig.tell(events.Retained(OLD, True, 0))
    beside = rig.want(OTHER, 50 * MB)
    assert isinstance(beside, RefuseReservation)
    assert beside.reason == WaitsBesidePins(need_bytes=50 * MB, limit=limit(60 * MB))
    assert beside.again_ns > 0
    assert OTHER not in rig.accountant.unfit(), "a trial ends"
    assert rig.left_bytes == 100 * MB
    rig.tell(events.Gone(NEW))
    assert not rig.accountant.unfit()


def test_one_version_at_a_time_is_tried_above_the_budget_if_the_machine_has_the_memory() -> None:
    rig = Rig(60 * MB)
    rig.serve(OLD, 60 * MB)
    small = rig.want(NEW, 60 * MB, OLD)
    assert isinstance(small, RefuseReservation)
    expected = WaitsForMachine(need_bytes=60 * MB, beside_bytes=60 * MB, left_bytes=60 * MB, limit=limit())
    assert small.reason == expected
    rig.free_bytes += SPARE_BYTES
    assert rig.want(NEW, 60 * MB, OLD, 1) == GrantReservation(NEW)
    assert rig.want(NEW, 60 * MB, OLD, 2) == GrantReservation(NEW)
    assert (rig.left_bytes, rig.other_bytes) == (100 * MB, 60 * MB)
    taken = rig.want(OTHER, 60 * MB, OLD, 3)
    assert isinstance(taken, RefuseReservation)
    assert taken.reason == WaitsForOvercommit()
    rig.flip(NEW, 60 * MB, OLD, 60 * MB)
    assert rig.want(OTHER, 60 * MB, NEW, 4) != GrantReservation(OTHER), "what it replaced is still there"
    rig.tell(events.Gone(OLD))
    assert rig.want(OTHER, 60 * MB, NEW, 5) == GrantReservation(OTHER)


def test_memory_that_nobody_gives_is_not_kept_for_ever() -> None:
    rig = Rig()
    rig.serve(OLD, 80 * MB)
    rig.busy.add(OLD)
    assert rig.want(NEW, 50 * MB) == HoldReservation(NEW)
    assert rig.left_bytes == 50 * MB
    given_up = rig.want(NEW, 50 * MB, now_ns=PATIENCE_NS)
    assert isinstance(given_up, RefuseReservation)
    assert given_up.reason == WaitsForIdle(need_bytes=50 * MB)
    assert given_up.again_ns > PATIENCE_NS
    assert rig.left_bytes == 100 * MB


def test_what_is_wanted_of_a_second_device_is_none_of_the_first_ones_business() -> None:
    accountant = Accountant(ResidencyPolicy(), [Budget(CPU, 10 * MB), Budget(GPU, 100 * MB)])
    assert accountant.step(events.ReservationWanted(NEW, GPU, 60 * MB), 0) == [GrantReservation(NEW)]
    assert accountant.statistics(CPU).left_bytes == 10 * MB
    assert accountant.statistics(GPU).left_bytes == 40 * MB
    assert accountant.step(events.Gone(NEW), 0) == []
    assert accountant.statistics(GPU).left_bytes == 100 * MB
