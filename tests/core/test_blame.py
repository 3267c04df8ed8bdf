"""Who pays for a worker that died of a request: one client alone never costs the others a version."""

from __future__ import annotations

import pytest

from appliance.core.processes.blame import ACCUSED_MAX, SUSPECT_NS, Blame
from appliance.core.processes.restart import SECOND_NS, RestartPolicy

WINDOW_NS = 600 * SECOND_NS


def blame(quarantine_after: int = 2) -> Blame:
    return Blame(RestartPolicy(quarantine_after=quarantine_after, hold_ms=1_000, crash_window_s=600))


def test_the_first_is_forgiven_and_each_more_holds_its_client_for_twice_as_long() -> None:
    told = blame()
    holds = [
        told.request_died(1, "a", at * SECOND_NS, untried=False, proven=False).hold_ns for at in range(14)
    ]
    assert holds == [0, *(SECOND_NS << power for power in range(10)), *[WINDOW_NS] * 3]
    assert told.held_ns(1, "a", 13 * SECOND_NS) == WINDOW_NS
    assert told.held_ns(1, "a", 13 * SECOND_NS + WINDOW_NS - 1) == 1
    assert told.held_ns(1, "a", 13 * SECOND_NS + WINDOW_NS) == 0
    assert (told.held_ns(1, "b", 14 * SECOND_NS), told.held_ns(2, "a", 14 * SECOND_NS)) == (0, 0)


@pytest.mark.parametrize(("later_ns", "hold_ns"), [(WINDOW_NS, SECOND_NS), (WINDOW_NS + 1, 0)])
def test_what_is_longer_ago_than_the_window_is_forgotten(later_ns: int, hold_ns: int) -> None:
    told = blame()
    told.request_died(1, "a", 0, untried=False, proven=False)
    assert told.request_died(1, "a", later_ns, untried=False, proven=False).hold_ns == hold_ns


def test_a_version_is_to_blame_only_for_different_clients() -> None:
    told = blame()
    assert not any(told.request_died(1, "a", at, untried=False, proven=False).version for at in range(20))
    assert not told.request_died(2, "b", 20, untried=False, proven=False).version, "that is another version"
    assert told.request_died(1, "b", 21, untried=False, proven=False).version
    told.forgive(1)
    assert not told.request_died(1, "c", 22, untried=False, proven=False).version


@pytest.mark.parametrize(("later_ns", "version"), [(WINDOW_NS, True), (WINDOW_NS + 1, False)])
def test_different_clients_count_within_the_window(later_ns: int, version: bool) -> None:
    told = blame()
    told.request_died(1, "a", 0, untried=False, proven=False)
    assert told.request_died(1, "b", later_ns, untried=False, proven=False).version is version


def test_as_many_clients_as_crashes_are_allowed_and_never_one_alone() -> None:
    strict, lenient = blame(1), blame(3)
    assert not strict.request_died(1, "a", 0, untried=False, proven=False).version
    assert strict.request_died(1, "b", 0, untried=False, proven=False).version
    verdicts = [lenient.request_died(1, client, 0, untried=False, proven=False).version for client in "abc"]
    assert verdicts == [False, False, True]


def test_one_that_has_answered_nothing_and_can_be_replaced_is_to_blame_for_one_client_too() -> None:
    told = blame()
    verdicts = [told.request_died(1, "a", at, untried=True, proven=False).version for at in range(2)]
    assert verdicts == [False, True]


def test_one_that_has_proven_itself_is_never_to_blame() -> None:
    told = blame()
    verdicts = [told.request_died(1, client, 0, untried=False, proven=True).version for client in "abcd"]
    assert not any(verdicts)


def test_who_was_only_there_is_cleared_when_it_is_known_whose_it_was() -> None:
    told = blame()
    told.suspect(1, "there", 0)
    told.suspect(2, "elsewhere", 0)
    told.request_died(1, "a", 0, untried=False, proven=False)
    assert told.clear(1) == ["there"]
    assert [told.is_suspect(1, each, 1) for each in ("there", "a")] == [False, True]
    assert told.is_suspect(2, "elsewhere", 1)


def test_a_suspect_is_one_for_a_while_and_no_more_than_that() -> None:
    told = blame()
    told.suspect(1, "a", 0)
    assert told.is_suspect(1, "a", SUSPECT_NS - 1)
    assert not told.is_suspect(1, "a", SUSPECT_NS)
    assert not told.is_suspect(1, "b", 0)
    assert told.held_ns(1, "a", 0) == 0
    told.suspect(1, "b", 0)
    assert not told.request_died(1, "c", 1, untried=False, proven=False).version, "suspects count for nothing"
    assert told.is_suspect(1, "c", SUSPECT_NS), "who was blamed is suspect, too"


def test_no_more_are_remembered_than_there_is_room_for() -> None:
    told = blame()
    for client in range(2 * ACCUSED_MAX):
        told.suspect(1, str(client), 0)
    remembered = [client for client in range(2 * ACCUSED_MAX) if told.is_suspect(1, str(client), 0)]
    assert remembered == list(range(ACCUSED_MAX, 2 * ACCUSED_MAX))
