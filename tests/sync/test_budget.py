"""What may go over the link, by seed and by hand; and what 100,000 boxes do to a controller that comes back."""

from __future__ import annotations

import os
import random
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.config.fleet import FleetConfig
from appliance.sync.backoff import LONGEST_S, Backoff
from appliance.sync.budget import (
    CONTROL,
    METERED,
    MODELS,
    OFF,
    TELEMETRY,
    YIELD_S,
    Bound,
    Budget,
    LinkTerms,
    billing_month,
    month_ends_in_s,
)
from appliance.sync.contact import Conversation, Heard
from appliance.sync.contact_plan import PlanInvalid, passes_of, plan_problems

CHUNK = 16 << 10
FREE_LINK = LinkTerms()


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


NOON = ms("2026-11-24T12:00:00")


def asked(
    budget: Budget,
    what: str,
    config: FleetConfig,
    link: LinkTerms = FREE_LINK,
    at: int = NOON,
    s: float = 0.0,
) -> Bound:
    return budget.ask(what, CHUNK, config, link, at, s).bound


def test_without_bounds_everything_goes() -> None:
    budget = Budget()
    assert {asked(budget, what, FleetConfig()) for what in (CONTROL, TELEMETRY, MODELS)} == {Bound.NONE}
    assert budget.left_bytes(FleetConfig(), NOON) == -1


def test_the_rate_is_kept_over_any_second() -> None:
    config, budget, chosen = FleetConfig(rate_bytes_per_s=100_000), Budget(), random.Random(1)
    now, sent = 0.0, list[tuple[float, int]]()
    while now < 60:
        size = chosen.randrange(1, CHUNK)
        verdict = budget.ask(MODELS, size, config, FREE_LINK, NOON, now)
        if verdict.bound is Bound.NONE:
            sent.append((now, size))
        else:
            assert verdict.bound is Bound.RATE
        now += max(verdict.wait_s, 0.001)
    assert 0.9 * 60 * 100_000 < sum(size for _, size in sent) <= 61 * 100_000
    for begin in range(59):
        assert sum(size for at, size in sent if begin <= at < begin + 1) <= 100_000 + 2 * 25_000 + CHUNK


def test_the_more_urgent_class_goes_within_a_second() -> None:
    config, budget = FleetConfig(rate_bytes_per_s=64_000), Budget()
    now, waited_since, gone = 0.0, 5.0, 0.0
    due = {MODELS: 0.0, CONTROL: waited_since}
    while not gone and now < 20:
        for what in (MODELS, CONTROL):  # the greedy one asks first
            if now >= due[what]:
                verdict = budget.ask(what, CHUNK, config, FREE_LINK, NOON, now)
                due[what] = now + max(verdict.wait_s, 0.001)
                if what == CONTROL and verdict.bound is Bound.NONE:
                    gone = now
        now += 0.001
    assert waited_since <= gone <= waited_since + 1


def test_priorities_may_be_others() -> None:
    config, budget = (
        FleetConfig(rate_bytes_per_s=1000, priorities=("models", "control", "telemetry")),
        Budget(),
    )
    assert asked(budget, MODELS, config) is Bound.NONE
    assert asked(budget, MODELS, config) is Bound.RATE
    verdict = budget.ask(CONTROL, CHUNK, config, FREE_LINK, NOON, 0.0)
    assert (verdict.bound, verdict.wait_s) == (Bound.URGENT, YIELD_S)


def test_a_month_ends_but_for_control() -> None:
    config, budget = FleetConfig(month_bytes=2 * CHUNK, month_day=10), Budget()
    assert [asked(budget, MODELS, config) for _ in range(3)] == [Bound.NONE, Bound.NONE, Bound.MONTH]
    assert asked(budget, TELEMETRY, config) is Bound.MONTH
    assert asked(budget, CONTROL, config) is Bound.NONE
    assert budget.left_bytes(config, NOON) == 0
    assert asked(budget, MODELS, config, at=ms("2026-12-09T23:59:59")) is Bound.MONTH
    assert asked(budget, MODELS, config, at=ms("2026-12-10T00:00:00")) is Bound.NONE


def test_what_was_spent_survives_reboots_and_clocks_that_step() -> None:
    config = FleetConfig(month_bytes=4 * CHUNK)
    budget = Budget()
    for _ in range(4):
        assert asked(budget, MODELS, config) is Bound.NONE
    for wrong in ("1970-01-01T00:00:00", "2027-12-29T12:00:00", "2026-10-24T12:00:00"):
        budget = Budget(budget.spent)
        asked(budget, MODELS, config, at=ms(wrong))
    assert asked(Budget(budget.spent), MODELS, config) is Bound.MONTH


def test_months_that_are_kept_are_few() -> None:
    config, budget = FleetConfig(), Budget()
    for month in range(600):
        asked(budget, MODELS, config, at=NOON + month * 31 * 86_400_000)
    assert len(budget.spent) <= 15


@pytest.mark.parametrize(
    ("at", "day", "month", "ends"),
    [
        ("2026-11-24T12:00:00", 1, "2026-11", "2026-12-01T00:00:00"),
        ("2026-11-24T12:00:00", 28, "2026-10", "2026-11-28T00:00:00"),
        ("2027-01-05T00:00:00", 6, "2026-12", "2027-01-06T00:00:00"),
        ("2028-02-29T23:59:59", 1, "2028-02", "2028-03-01T00:00:00"),
        ("2026-03-01T00:00:00", 28, "2026-02", "2026-03-28T00:00:00"),
        ("1970-01-01T00:00:00", 15, "1969-12", "1970-01-15T00:00:00"),
    ],
)
def test_billing_months(at: str, day: int, month: str, ends: str) -> None:
    assert billing_month(ms(at), day) == month
    assert month_ends_in_s(ms(at), day) == (ms(ends) - ms(at)) / 1000


def test_models_wait_for_their_window_and_others_do_not() -> None:
    config, budget = FleetConfig(windows=("Mon-Fri 22:00-06:00 Europe/Berlin",)), Budget()
    verdict = budget.ask(MODELS, CHUNK, config, FREE_LINK, NOON, 0.0)
    assert (verdict.bound, verdict.wait_s) == (Bound.WINDOW, 9 * 3600)
    assert asked(budget, TELEMETRY, config) is Bound.NONE
    assert asked(budget, MODELS, config, at=ms("2026-11-24T21:00:00")) is Bound.NONE


def test_what_the_operator_says_of_the_link() -> None:
    budget, config = Budget(), FleetConfig()
    assert asked(budget, CONTROL, config, LinkTerms(state=OFF)) is Bound.OFF
    assert asked(budget, MODELS, config, LinkTerms(state=METERED)) is Bound.METERED
    assert asked(budget, TELEMETRY, config, LinkTerms(state=METERED)) is Bound.NONE


def test_a_contact_plan_bounds_times_and_rate() -> None:
    passes = passes_of(
        "# a satellite\n2026-11-24T12:10:00Z 2026-11-24T12:18:00Z 20000 600\n\n"
        "2026-11-24T14:00:00+01:00 2026-11-24T14:05:00+01:00 0 40 # another\n"
    )
    budget, config, link = Budget(), FleetConfig(), LinkTerms(passes=passes)
    verdict = budget.ask(CONTROL, CHUNK, config, link, NOON, 0.0)
    assert (verdict.bound, verdict.wait_s) == (Bound.CONTACT, 600)
    during = ms("2026-11-24T12:12:00")
    assert asked(budget, MODELS, config, link, during, 1.0) is Bound.NONE
    assert asked(budget, MODELS, config, link, during, 1.0) is Bound.RATE
    assert asked(budget, MODELS, config, link, ms("2026-11-24T13:02:00"), 9.0) is Bound.NONE
    assert asked(budget, MODELS, config, link, ms("2026-11-25T13:02:00"), 9.0) is Bound.CONTACT


def test_all_that_is_wrong_with_a_plan_is_told() -> None:
    with pytest.raises(PlanInvalid) as wrong:
        passes_of(
            "yes\n2026-11-24T12:10:00Z 2026-11-24T12:08:00Z 1 1\n2026-11-24T12:10:00 2026-11-25T00:00:00 1 1\n"
        )
    assert [each.split(" is ")[0].split(" ends")[0] for each in wrong.value.problems] == [
        "line 1",
        "line 2",
        "line 3",
    ]


def test_100_000_boxes_do_not_come_at_once() -> None:
    """An hour without a controller; then the most that come within one second."""
    chosen, back_s = random.Random(1), 3600.0
    arrivals: Counter[int] = Counter()
    for _ in range(20_000):  # a fifth of them: the share is what counts
        backoff, now = Backoff(chosen.uniform), chosen.uniform(0, 60)
        while now < back_s:
            now += backoff.failed()
        arrivals[int(now - back_s)] += 1
    assert max(arrivals.values()) / 20_000 < 0.003, "300 of 100,000 in a second"
    assert max(arrivals) <= LONGEST_S


def test_what_the_controller_asks_for_is_heeded() -> None:
    assert Backoff(lambda least, most: least).failed(120.0) == 120.0
    assert Backoff(lambda least, most: least).failed(2.0**62) == 86_400
    backoff = Backoff(lambda least, most: most)
    spans = [backoff.failed() for _ in range(12)]
    assert spans == sorted(spans)
    assert spans[-1] == LONGEST_S
    backoff.succeeded()
    assert backoff.failed() < LONGEST_S


def test_a_plan_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    assert not list(plan_problems(""))
    (problem,) = plan_problems(str(plan))
    assert "cannot be read" in problem
    plan.write_bytes(b"\xff\xfe")
    assert len(list(plan_problems(str(plan)))) == 1
    plan.write_text("never\nnow\n")
    assert [each.split(": ")[1].split(" is")[0] for each in plan_problems(str(plan))] == ["line 1", "line 2"]


def test_a_plan_that_is_no_file_of_a_sensible_size_is_not_waited_for(tmp_path: Path) -> None:
    """Root checks a configuration that a stick brought, and that may name any path."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").touch()
    os.truncate(tmp_path / "endless", 1 << 40)
    for place in (tmp_path / "pipe", tmp_path / "endless", Path("/dev/zero")):
        (problem,) = plan_problems(str(place))
        assert str(place) in problem


@pytest.mark.parametrize(
    ("said", "afar", "told", "pause"),
    [
        ((), {}, 60, 60),
        ((), {"fleet.poll_s": 20}, 60, 20),
        (("poll_s",), {}, 60, 20),
        ((), {}, 0, 20),
        ((), {}, 1, 5),
    ],
)
def test_how_often_the_controller_is_asked(
    said: tuple[str, ...], afar: dict[str, int], told: int, pause: int
) -> None:
    """By the box's own file, else from afar, else as the controller says."""
    box: Any = SimpleNamespace(
        clock=SimpleNamespace(monotonic_s=lambda: 0.0),
        fleet=FleetConfig(poll_s=20),
        settings=SimpleNamespace(said=said),
        progress=SimpleNamespace(settings=afar),
    )
    nothing: Any = None
    assert Conversation(box, nothing, nothing, nothing, nothing)._poll_s(Heard(poll_s=told)) == pause
