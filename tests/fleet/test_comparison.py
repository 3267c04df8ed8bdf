"""Two versions are compared on each site by itself, and over sites by what each of them showed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec import structs

from appliance.fleet.comparison import (
    Demand,
    Heard,
    Site,
    judged,
    measured,
    middle_of,
    over_sites,
    ratio,
    sites_of,
)
from appliance.fleet.deeds import Deeds
from appliance.fleet.records import Loaded, ModelHistory
from tests.fleet.test_deeds import of

MS = 1_000_000


def did(times_ms: Sequence[float], refused: int = 0, **more: object) -> Deeds:
    total = of([round(each * MS) for each in times_ms])
    deeds = Deeds(outcomes=(len(times_ms), 0, refused), rows=len(times_ms), total=total, active_ms=60_000)
    return structs.replace(deeds, **more)


def spread(middle_ms: float, count: int = 1000) -> list[float]:
    generator = random.Random(count)
    return [middle_ms * generator.uniform(0.5, 1.5) for _ in range(count)]


def heard(device: str, new: Deeds | None = None, old: Deeds | None = None, **more: object) -> Heard:
    plain = Heard(
        device=device, group="g", serving=2, seen_ms=1, facts={"processor": "Xeon"}, new=new, old=old
    )
    return structs.replace(plain, **more)


def ending(how: str, reason: str = "") -> ModelHistory:
    return ModelHistory(sequence=1, name="m", version=2, identity="i", ending=how, reason=reason)


def test_a_busy_site_does_not_hide_that_the_version_is_slower_on_each() -> None:
    """Of both together it is faster: most requests of the new version are on the fast site."""
    fast = heard("fast", did(spread(1.5, 9000)), did(spread(1.0, 1000)))
    slow = heard("slow", did(spread(15, 1000)), did(spread(10, 9000)))
    new, old = over_sites([fast, slow])
    assert ((new and new.p50_ms) or 99) < ((old and old.p50_ms) or 0)
    sites = sites_of([fast, slow])
    assert all(1.2 < (each.p99_ratio or 0) < 2.1 for each in sites), "as near as buckets tell"
    assert [each.mean_ratio for each in sites] == [pytest.approx(1.5, rel=0.05)] * 2


def test_few_answers_are_told_and_not_compared() -> None:
    (site,) = sites_of([heard("a", did(spread(1, 99)), did(spread(1, 1000)))])
    assert site.new is not None
    assert site.new.answered == 99
    assert site.new.p99_ms is not None
    assert (site.p50_ratio, site.p99_ratio, site.mean_ratio, site.run_p99_ratio) == (None,) * 4
    assert ratio(of([1]), of([1]), 0.99, 1) == 1.0


def test_what_was_not_told_is_absent_and_no_nought() -> None:
    assert measured(None) is measured(Deeds()) is None
    found = measured(Deeds(outcomes=(0, 0, 4)))
    assert found is not None
    assert (found.requests, found.answered, found.outcomes, found.failed_percent) == (
        4,
        0,
        {"refused": 4},
        100,
    )
    assert found.p50_ms is found.p99_ms is found.mean_ms is found.joules_per_1000 is found.per_s is None
    (site,) = sites_of([heard("a")])
    assert (site.new, site.old, site.load, site.p99_ratio) == (None,) * 4
    assert middle_of([None]) is None


def test_what_clients_called_off_or_asked_wrongly_is_no_failure_of_the_version() -> None:
    found = measured(Deeds(outcomes=(90, 7, 1, 0, 3)))
    assert found is not None
    assert found.failed_percent == pytest.approx(100 / 91)


def facts_of(**facts: str) -> dict[str, Any]:
    return {"facts": {"processor": "Xeon", "appliance": "2.0", **facts}}


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        (heard("odd", did(spread(9)), did(spread(1)), **facts_of(processor="Atom")), ["processor Atom, most have X"]),
        (heard("odd", did(spread(9)), did(spread(9)), **facts_of()), ["the other version was as slow there"]),
        (heard("odd", did(spread(9), queue=of([8 * MS])), did(spread(1)), **facts_of()), ["requests wait"]),
        (heard("odd", did(spread(9), active_ms=1000), did(spread(1)), **facts_of()), ["requests a second, where half"]),
        (heard("odd", did(spread(1), refused=100), **facts_of()), ["9.1 % not answered (100 refused)"]),
        (heard("odd", did(spread(1), retries=2), **facts_of()), ["2 run again after a worker died"]),
        (heard("odd", did(spread(1)), lost=3), ["3 records of what it did were lost"]),
        (heard("odd", ending=ending("refused", "golden: off")), ["refused: golden: off"]),
        (heard("odd", load=Loaded(name="m", version=2, failure="too far")), ["golden set: too far"]),
    ],
    ids=["processor", "both slow", "queue", "load", "failing", "crashes", "lost", "refused", "golden"],
)  # fmt: skip
def test_a_site_that_stands_out_says_why(odd: Heard, says: list[str]) -> None:
    usual = [heard(name, did(spread(1)), did(spread(1)), **facts_of()) for name in "abcd"]
    *others, found = sites_of([*usual, odd])
    assert not any(each.why for each in others)
    for each in says:
        assert any(each in why for why in found.why), found.why


def test_of_two_sites_none_stands_out() -> None:
    sites = sites_of([heard("a", did(spread(1))), heard("b", did(spread(9)))])
    assert not any(each.why for each in sites)


def sites(met: int, missed: int, unknown: int) -> list[Site]:
    told = (
        [heard(f"a{n}", did(spread(1)), did(spread(1))) for n in range(met)]
        + [heard(f"b{n}", did(spread(9)), did(spread(1))) for n in range(missed)]
        + [heard(f"c{n}") for n in range(unknown)]
    )
    return list(sites_of(told))


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        ((20, 0, 0), "met"),
        ((19, 1, 0), "met"),
        ((18, 2, 0), "missed"),
        ((19, 0, 1), "met"),
        ((18, 0, 2), "unknown"),
        ((1, 2, 17), "missed"),
        ((0, 0, 3), "unknown"),
        ((0, 0, 0), "unknown"),
    ],
)
def test_a_demand_is_met_or_missed_only_where_sites_that_are_not_known_cannot_change_that(
    counts: tuple[int, int, int], verdict: str
) -> None:
    found = judged(sites(*counts), Demand(1.1, None, None, 95))
    assert (found.met, found.missed, found.unknown) == counts
    assert found.verdict == verdict
    assert found.missed_on == tuple(f"b{n}" for n in range(counts[1]))
    assert found.unknown_of == tuple(f"c{n}" for n in range(counts[2]))


def runs(run_ms: float, total_ms: float) -> Deeds:
    return did([total_ms] * 500, run=of([round(run_ms * 1_000_000)] * 500))


def refused() -> Heard:
    return heard("a", did(spread(1)), did(spread(1)), ending=ending("rolled back"))


@pytest.mark.parametrize(
    ("told", "demand", "verdict"),
    [
        (refused, Demand(1.1, None, None, 100), "missed"),
        (lambda: heard("a", did(spread(1), refused=50)), Demand(None, None, 1, 100), "missed"),
        (lambda: heard("a", did(spread(1), refused=50)), Demand(None, None, 10, 100), "met"),
        (lambda: heard("a", did(spread(1), refused=50)), Demand(1.1, None, 10, 100), "unknown"),
        (lambda: heard("a", did(spread(1, 50))), Demand(None, None, 10, 100), "unknown"),
        (lambda: heard("a", did([1.45] * 500), did([1.05] * 500)), Demand(1.1, None, None, 100), "unknown"),
        (lambda: heard("a", did([1.07] * 500), did([1.05] * 500)), Demand(1.1, None, None, 100), "met"),
    ],
    ids=[
        "gone back",
        "fails",
        "fails as it may",
        "one of two",
        "too few",
        "one bucket, slower",
        "one bucket",
    ],
)
def test_a_site_meets_a_demand(told: Callable[[], Heard], demand: Demand, verdict: str) -> None:
    assert judged(sites_of([told()]), demand).verdict == verdict


def test_histograms_are_added_and_percentiles_never() -> None:
    """The middle of two 99th percentiles would be 5 ms; of all requests it is 9."""
    new, _ = over_sites([heard("a", did([1.0] * 1000)), heard("b", did([9.0] * 1000))])
    assert new is not None
    assert new.p99_low_ms == 7.5
