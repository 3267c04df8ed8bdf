"""Tries and pauses: counted, doubled up to a limit, kept by a wall clock that may jump."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.records import Standing
from appliance.core.rollout.retries import has_fallen, pause_ms, setback_of, tries_left
from appliance.engine.versions.records import MemoryRecords
from appliance.engine.versions.wording import remark_text
from tests.domain.sample import make_version

CONFIG = RolloutPolicy(tries=3, retry_first_s=600.0, retry_max_s=86_400.0)
MINUTE_MS = 60_000
NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(("again", "minutes"), [(0, 10), (1, 20), (2, 40), (7, 1280), (8, 1440), (500, 1440)])
def test_the_pause_doubles_up_to_a_day(again: int, minutes: int) -> None:
    assert pause_ms(Standing(3, None, NOW_MS, again), CONFIG, NOW_MS) == minutes * MINUTE_MS


@pytest.mark.parametrize(
    ("since_ms", "left"),
    [
        (0, 10),
        (4 * MINUTE_MS, 6),
        (10 * MINUTE_MS, 0),
        (400 * 24 * 60 * MINUTE_MS, 0),
        (-1, 10),
        (-400 * 24 * 60 * MINUTE_MS, 10),
    ],
)
def test_it_goes_on_across_restarts_and_a_clock_that_jumps_makes_it_no_longer(
    since_ms: int, left: int
) -> None:
    assert pause_ms(Standing(3, None, NOW_MS, 0), CONFIG, NOW_MS + since_ms) == left * MINUTE_MS


def test_a_version_whose_last_try_has_no_time_waits_all_of_it() -> None:
    assert pause_ms(Standing(3, None, 0, 0), CONFIG, NOW_MS) == 10 * MINUTE_MS


def test_what_was_rejected_is_not_tried_again_by_itself() -> None:
    assert pause_ms(Standing(1, "rolled back", NOW_MS), CONFIG, NOW_MS) is None
    assert pause_ms(Standing(), CONFIG, NOW_MS) == 10 * MINUTE_MS


@pytest.mark.parametrize(
    ("digest", "command"), [("d" * 64, "appliance model want m/1"), ("", "appliance model load m")]
)
def test_a_refusal_names_the_command_that_asks_again(digest: str, command: str) -> None:
    model = replace(make_version("m", 1), digest=digest)
    for standing in (Standing(1, "rolled back", NOW_MS), Standing(3, None, NOW_MS)):
        setback = setback_of(standing, CONFIG, model)
        assert setback is not None
        assert f"'{command}'" in remark_text(setback)


def test_a_try_that_is_given_back_is_one_less_and_that_it_was_given_up_stands() -> None:
    records = MemoryRecords([("m/1@a", Standing(0, None, NOW_MS))])
    records.count(["m/1@a"], NOW_MS, lambda problem: None, again=True)
    assert records.standing("m/1@a") == Standing(1, None, NOW_MS, 1)
    records.give_back("m/1@a", again=True)
    assert records.standing("m/1@a") == Standing(0, None, NOW_MS, 0)
    assert has_fallen(records.standing("m/1@a"))
    records.give_back("m/1@b", again=False)
    assert set(records.standings) == {"m/1@a"}, "nothing is known of what was never counted"


def test_a_first_pause_of_nothing_means_never() -> None:
    assert pause_ms(Standing(), RolloutPolicy(retry_first_s=0.0), NOW_MS) is None


def test_tries_of_either_kind_are_counted_and_forgiven_together() -> None:
    records, model = MemoryRecords(), make_version("m", 1)
    for again in (False, False, False, True, True):
        records.count(["m/1@a"], NOW_MS, lambda problem: None, again=again)
    standing = records.standing("m/1@a")
    assert standing == Standing(5, None, NOW_MS, 2)
    assert tries_left(standing, CONFIG) == 0
    setback = setback_of(standing, CONFIG, model)
    assert setback is not None
    assert "was tried 5 times" in remark_text(setback)
    records.given_up("m/1@a", NOW_MS)
    assert pause_ms(records.standing("m/1@a"), CONFIG, NOW_MS) == 40 * MINUTE_MS
    records.forgive("m/1@a")
    standing = records.standing("m/1@a")
    assert (tries_left(standing, CONFIG), setback_of(standing, CONFIG, model)) == (3, None)


def test_what_was_rejected_counts_as_fallen() -> None:
    assert has_fallen(Standing(0, "rolled back"))
