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
    holds = [told.request_died(1, "a", at * SECOND_NS, untried=False).hold_ns for at in range(14)]
    assert holds == [0, *(SECOND_NS << power for power in range(10)), *[WINDOW_NS] * 3]
    assert told.held_ns(1, "a", 13 * SECOND_NS) == WINDOW_NS
    assert told.held_ns(1, "a", 13 * SECOND_NS + WINDOW_NS - 1) == 1
    assert told.held_ns(1, "a", 13 * SECOND_NS + WINDOW_NS) == 0
    assert (told.held_ns(1, "b", 14 * SECOND_NS), told.held_ns(2, "a", 14 * SECOND_NS)) == (0, 0)


@pytest.mark.parametrize(("later_ns", "hold_ns"), [(WINDOW_NS, SECOND_NS), (WINDOW_NS + 1, 0)])
def test_what_is_longer_ago_than_the_window_is_forgotten(later_ns: int, hold_ns: int) -> None:
    told = blame()
    told.request_died(1, "a", 0, untried=False)
    assert told.request_died(1, "a", later_ns, untried=False).hold_ns == hold_ns


def test_no_number_of_clients_makes_a_version_to_blame_that_has_run() -> None:
    told = blame(1)
    assert not any(told.request_died(1, client, 0, untried=False).version for client in "abcd" * 3)


def test_one_that_nothing_is_known_of_and_can_be_replaced_is_to_blame_for_as_many_workers_as_are_allowed() -> (
    None
):
    told = blame()
    assert not told.request_died(1, "a", 0, untried=True).version
    assert not told.request_died(2, "a", 0, untried=True).version, "that is another version"
    assert told.request_died(1, "b", 1, untried=True).version
    told.forgive(1)
    assert not told.request_died(1, "a", 2, untried=True).version
    assert told.request_died(1, "a", 3, untried=True).version, "one client is enough"


@pytest.mark.parametrize(("later_ns", "version"), [(WINDOW_NS, True), (WINDOW_NS + 1, False)])
def test_deaths_count_within_the_window(later_ns: int, version: bool) -> None:
    told = blame()
    told.request_died(1, "a", 0, untried=True)
    assert told.request_died(1, "b", later_ns, untried=True).version is version


def test_who_was_only_there_is_cleared_when_it_is_known_whose_it_was() -> None:
    told = blame()
    told.suspect(1, "there", 0)
    told.suspect(2, "elsewhere", 0)
    told.request_died(1, "a", 0, untried=False)
    assert told.clear(1) == ["there"]
    assert [told.is_suspect(1, each, 1) for each in ("there", "a")] == [False, True]
    assert told.is_suspect(2, "elsewhere", 1)


def test_those_that_are_held_now_are_counted_by_version() -> None:
    told = blame()
    for client, deaths in (("a", 3), ("b", 2), ("c", 1)):
        for _ in range(deaths):
            told.request_died(1, client, 0, untried=False)
    told.suspect(2, "d", 0)
    assert [told.held_clients(at)[1] for at in (0, SECOND_NS, 2 * SECOND_NS)] == [2, 1, 0]
    assert told.held_clients(0)[2] == 0


def test_a_suspect_is_one_for_a_while_and_no_more_than_that() -> None:
    told = blame()
    told.suspect(1, "a", 0)
    assert told.is_suspect(1, "a", SUSPECT_NS - 1)
    assert not told.is_suspect(1, "a", SUSPECT_NS)
    assert not told.is_suspect(1, "b", 0)
    assert told.held_ns(1, "a", 0) == 0
    told.suspect(1, "b", 0)
    assert not told.request_died(1, "c", 1, untried=True).version, "suspects count for nothing"
    assert told.is_suspect(1, "c", SUSPECT_NS), "who was blamed is suspect, too"


def test_no_more_are_remembered_than_there_is_room_for() -> None:
    told = blame()
    for client in range(2 * ACCUSED_MAX):
        told.suspect(1, str(client), 0)
    remembered = [client for client in range(2 * ACCUSED_MAX) if told.is_suspect(1, str(client), 0)]
    assert remembered == list(range(ACCUSED_MAX, 2 * ACCUSED_MAX))
