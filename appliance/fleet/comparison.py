"""How a version does on the boxes of a fleet, against another one where that served: site by site first, then over
sites. Pure.

A percentile is read from a sum of histograms of one version, never made of percentiles. What sites are compared by is
each site's own ratio: a sum over all sites would compare their loads. A ratio counts where both versions answered
enough requests there. Percentiles are estimated within their bucket; means are exact. What no box told is None,
never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import isfinite
from statistics import median
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from appliance.domain.histogram import BOUNDS_NS
from appliance.fleet.deeds import Deeds, Sum, quantiles
from appliance.fleet.records import OUTCOMES, Latency, Loaded, ModelHistory

LEAST: Final = 100
"""Requests of both versions, or one slower than 99 of 100 need not be among them."""
SLOW: Final = 1.5
"""Beyond so many times what most sites have, a site stands out."""
SITES_LEAST: Final = 3
"""Fewer have no middle to stand out of."""
FAILING_PERCENT: Final = 1.0
NOT_OURS: Final = ("cancelled", "invalid")
"""How requests end that clients called off or asked wrongly."""
UNFIT: Final = frozenset({"refused", "failed", "rolled back", "given up"})
"""Endings of a try after which the version does not serve, and what a device says then."""
PART: Final = 0.5
"""Of the 99th percentile that in the queue is, where requests wait."""
LAST_MS: Final = BOUNDS_NS[-1] / 1e6
"""Where the last bucket begins."""
MET: Final = "met"
MISSED: Final = "missed"
UNKNOWN: Final = "unknown"
MADE_OF: Final = ("appliance", "image", "kernel", "processor", "driver", "cuda:0", "package onnxruntime")
"""Facts that may have a version run otherwise."""


class Measured(Struct, frozen=True):
    """What one version did on one site, or on several. ``requests`` are all, of which ``answered`` were; ``outcomes``
    are the others by how they ended. ``counted`` are those that clients neither called off nor asked wrongly, of which
    ``failed_percent`` of 100 were not answered. ``p99_low_ms`` and ``p99_high_ms`` are the bounds of the bucket that
    holds the 99th percentile, ``p99_ms`` what is told of it. ``per_s`` are requests in a second of the minutes that had
    some; ``joules_per_1000`` are for a thousand rows."""

    requests: int
    answered: int
    counted: int
    failed_percent: float
    outcomes: dict[str, int]
    retries: int
    p50_ms: float | None
    p99_ms: float | None
    p99_low_ms: float | None
    p99_high_ms: float | None
    mean_ms: float | None
    queue_p99_ms: float | None
    run_p99_ms: float | None
    run_p99_low_ms: float | None
    per_s: float | None
    joules_per_1000: float | None


class Load(Struct, frozen=True):
    """How a version was loaded on a site, as it told last; ``cases`` of its golden set (0: it was held to none), the
    promise that it broke (""), and how far off its answers were at most (None: beyond all numbers)."""

    device: str
    load_ms: int
    memory_bytes: int
    cases: int
    failure: str
    absolute: float | None
    relative: float | None


class Site(Struct, frozen=True):
    """A device: the version that it says it is ``serving``, how the last try of the version that is looked at came out
    (``ending``, "": not known) and why, what it did and how it was loaded, the same of the other one, and the ratios of
    the first to the other, where both answered enough. ``why`` says what is special where it stands out."""

    device: str
    group: str
    serving: int
    seen_ms: int
    ending: str
    reason: str
    new: Measured | None
    old: Measured | None
    load: Load | None
    old_load: Load | None
    p50_ratio: float | None
    p99_ratio: float | None
    mean_ratio: float | None
    run_p99_ratio: float | None
    run_mean_ratio: float | None
    why: tuple[str, ...] = ()


class Comparison(Struct, frozen=True):
    """How ``model``/``version`` did since ``from_ms`` up to ``until_ms``, against ``against_model``/
    ``against`` (0: there is none). ``versions`` are requests by version of the model. ``new`` and ``old`` are over all
    sites; each ratio is the middle one of those of the ``compared`` sites, of all requests, or of runs alone, and
    ``worst_ratio`` the highest one of the 99th percentile. Sites are those where
    the version is wished or serves, did something or was tried; ``unheard`` of them told nothing of it."""

    model: str
    version: int
    against_model: str
    against: int
    from_ms: int
    until_ms: int
    group: str
    least: int
    versions: dict[str, int]
    serving: int
    compared: int
    unfit: int
    unheard: int
    new: Measured | None
    old: Measured | None
    p50_ratio: float | None
    p99_ratio: float | None
    mean_ratio: float | None
    run_p99_ratio: float | None
    worst_ratio: float | None
    sites: tuple[Site, ...]


class Demand(Struct, frozen=True):
    """What a site has to keep: a 99th percentile of at most ``p99_ratio`` times that of the other version, of runs
    alone of at most ``run_p99_ratio`` times, at most ``failed_percent`` of its requests not answered (None: it does not
    matter), on ``percent`` of the sites."""

    p99_ratio: float | None
    run_p99_ratio: float | None
    failed_percent: float | None
    percent: float


class Judgement(Struct, frozen=True):
    """On how many sites a demand is ``met`` and ``missed``, and on how many too little is known (``unknown``);
    ``missed_on`` and ``unknown_of`` name them. The ``verdict`` is "met" or "missed" where it is that whatever the
    unknown sites would show, else "unknown"."""

    verdict: str
    met: int
    missed: int
    unknown: int
    missed_on: tuple[str, ...]
    unknown_of: tuple[str, ...]


class Heard(Struct, frozen=True):
    """What is known of a device: what it is made of, and what it did and told of the version that is looked at and of
    the other one. ``refusal`` is what it says now of the version that is wished, and why, where it does not take it;
    ``lost`` are records of what it did that will not come."""

    device: str
    group: str
    serving: int
    seen_ms: int
    facts: Mapping[str, str]
    new: Deeds | None = None
    old: Deeds | None = None
    load: Loaded | None = None
    old_load: Loaded | None = None
    ending: ModelHistory | None = None
    refusal: tuple[str, str] | None = None
    lost: int = 0


def measured(deeds: Deeds | None) -> Measured | None:
    """What was measured of them; None: there was nothing."""
    if deeds is None or not any(deeds.outcomes):
        return None
    outcomes = {name: count for name, count in zip(OUTCOMES, deeds.outcomes, strict=False) if count}
    requests, answered = sum(deeds.outcomes), outcomes.pop("success", 0)
    if other := sum(deeds.outcomes[len(OUTCOMES) :]):
        outcomes["other"] = other
    counted = requests - sum(outcomes.get(each, 0) for each in NOT_OURS)
    p50, p99 = quantiles(deeds.total, 0.5), quantiles(deeds.total, 0.99)
    queue, run = quantiles(deeds.queue, 0.99), quantiles(deeds.run, 0.99)
    timed = sum(deeds.total.counts)
    return Measured(
        requests=requests,
        answered=answered,
        counted=counted,
        failed_percent=100 * (counted - answered) / counted if counted > 0 else 0.0,
        outcomes=outcomes,
        retries=deeds.retries,
        p50_ms=p50[0] if p50 else None,
        p99_ms=p99[0] if p99 else None,
        p99_low_ms=p99[1] if p99 else None,
        p99_high_ms=p99[2] if p99 else None,
        mean_ms=deeds.total.sum_ns / timed / 1e6 if timed else None,
        queue_p99_ms=queue[0] if queue else None,
        run_p99_ms=run[0] if run else None,
        run_p99_low_ms=run[1] if run else None,
        per_s=requests * 1000 / deeds.active_ms if deeds.active_ms else None,
        joules_per_1000=1000 * deeds.joules / deeds.joules_rows if deeds.joules_rows else None,
    )


def ratio(new: Latency | None, old: Latency | None, fraction: float, least: int) -> float | None:
    """How much slower the one is than the other by that percentile; None: there is too little of one of them."""
    mine, theirs = (quantiles(each, fraction) if each is not None else None for each in (new, old))
    if mine is None or theirs is None or not theirs[0] or not _enough(new, old, least):
        return None
    return mine[0] / theirs[0]


def mean_ratio(new: Latency | None, old: Latency | None, least: int) -> float | None:
    """The same by the means, which are exact."""
    if new is None or old is None or not old.sum_ns or not _enough(new, old, least):
        return None
    return (new.sum_ns / sum(new.counts)) / (old.sum_ns / sum(old.counts))


def _enough(new: Latency | None, old: Latency | None, least: int) -> bool:
    return all(each is not None and sum(each.counts) >= max(least, 1) for each in (new, old))


def sites_of(heard: Sequence[Heard], least: int = LEAST) -> tuple[Site, ...]:
    """The sites, in the order in which they are given, with what is special of those that stand out."""
    plain = [_site(each, least) for each in heard]
    middle = _Middle(plain, heard)
    return tuple(
        structs.replace(site, why=tuple(middle.why(site, each)))
        for site, each in zip(plain, heard, strict=True)
    )


def over_sites(heard: Sequence[Heard]) -> tuple[Measured | None, Measured | None]:
    """What both versions did on all of them."""
    sums = Sum(), Sum()
    for each in heard:
        for into, deeds in zip(sums, (each.new, each.old), strict=True):
            if deeds is not None:
                into.add(deeds)
    return measured(sums[0].deeds()), measured(sums[1].deeds())


def middle_of(values: Sequence[float | None]) -> float | None:
    """The middle one of those that there are; None: there is none."""
    there = [each for each in values if each is not None]
    return median(there) if there else None


def judged(sites: Sequence[Site], demand: Demand, least: int = LEAST) -> Judgement:
    """Whether the demand is met. A site on which the version is unfit misses it."""
    found = {site.device: _meets(site, demand, least) for site in sites}
    named = {
        each: tuple(device for device, is_so in found.items() if is_so is each) for each in (False, None)
    }
    missed, unknown = len(named[False]), len(named[None])
    met = len(found) - missed - unknown
    needed = Fraction(str(demand.percent)) * len(sites) / 100
    verdict = MET if met >= needed and met else MISSED if met + unknown < needed else UNKNOWN
    return Judgement(verdict, met, missed, unknown, named[False], named[None])


def is_comparison(told: Any) -> bool:
    """Whether that, of JSON, is one."""
    try:
        msgspec.convert(told, Comparison)
    except msgspec.ValidationError:
        return False
    return True


def judged_as_told(sites: Sequence[Any], demand: Demand, least: int) -> dict[str, Any]:
    """The same of ``sites`` as JSON has them, and as JSON."""
    found = judged(msgspec.convert(sites, tuple[Site, ...]), demand, least)
    return {**msgspec.to_builtins(found), "demand": msgspec.to_builtins(demand)}


def _meets(site: Site, demand: Demand, least: int) -> bool | None:
    """None: too little is known."""
    if site.ending in UNFIT or (site.load is not None and site.load.failure):
        return False
    told, new, old = list[bool | None](), site.new, site.old
    if demand.p99_ratio is not None:
        lows = new.p99_low_ms if new else None, old.p99_low_ms if old else None
        told.append(_is_fast(site.p99_ratio, site.mean_ratio, lows, demand.p99_ratio))
    if demand.run_p99_ratio is not None:
        lows = new.run_p99_low_ms if new else None, old.run_p99_low_ms if old else None
        told.append(_is_fast(site.run_p99_ratio, site.run_mean_ratio, lows, demand.run_p99_ratio))
    if demand.failed_percent is not None:
        enough = new is not None and new.counted >= least
        told.append(new.failed_percent <= demand.failed_percent if new is not None and enough else None)
    return False if False in told else None if None in told else True


def _is_fast(
    p99: float | None, mean: float | None, lows: tuple[float | None, float | None], most: float
) -> bool | None:
    """None: too little is known, also where both percentiles lie in one bucket, which cannot tell them apart, and the
    version is slower on the mean by more than it may; or where its own lies in the last one, which has no end. ``lows``
    is where their buckets begin."""
    if p99 is None:
        return None
    if p99 > most:
        return False
    new, old = lows
    if new == LAST_MS:
        return None
    return None if new == old and (mean is None or mean > most) else True


def _site(heard: Heard, least: int) -> Site:
    ending, new, old = heard.ending, heard.new, heard.old
    how, reason = heard.refusal or ((ending.ending, ending.reason) if ending is not None else ("", ""))
    total, old_total = (each.total if each is not None else None for each in (new, old))
    run, old_run = (each.run if each is not None else None for each in (new, old))
    return Site(
        device=heard.device,
        group=heard.group,
        serving=heard.serving,
        seen_ms=heard.seen_ms,
        ending=how,
        reason=reason,
        new=measured(heard.new),
        old=measured(heard.old),
        load=_load(heard.load),
        old_load=_load(heard.old_load),
        p50_ratio=ratio(total, old_total, 0.5, least),
        p99_ratio=ratio(total, old_total, 0.99, least),
        mean_ratio=mean_ratio(total, old_total, least),
        run_p99_ratio=ratio(run, old_run, 0.99, least),
        run_mean_ratio=mean_ratio(run, old_run, least),
    )


def _load(said: Loaded | None) -> Load | None:
    if said is None:
        return None
    return Load(
        device=said.device,
        load_ms=said.load_ms,
        memory_bytes=said.memory_bytes,
        cases=said.cases,
        failure=said.failure,
        absolute=said.absolute if isfinite(said.absolute) else None,
        relative=said.relative if isfinite(said.relative) else None,
    )


class _Middle:
    """What most sites have, and what of a site is otherwise."""

    def __init__(self, sites: Sequence[Site], heard: Sequence[Heard]) -> None:
        self._enough = (
            sum(each.new is not None and each.new.p99_ms is not None for each in sites) >= SITES_LEAST
        )
        self._p99 = middle_of([each.new.p99_ms if each.new else None for each in sites])
        self._old_p99 = middle_of([each.old.p99_ms if each.old else None for each in sites])
        self._per_s = middle_of([each.new.per_s if each.new else None for each in sites])
        self._ratio = middle_of([each.p99_ratio for each in sites])
        self._facts = {
            name: _most([each.facts[name] for each in heard if name in each.facts]) for name in MADE_OF
        }

    def why(self, site: Site, heard: Heard) -> Iterator[str]:
        """In words; nothing where it does as the others do."""
        if site.ending in UNFIT:
            yield f"{site.ending}: {site.reason}" if site.reason else site.ending
        if site.load is not None and site.load.failure:
            yield f"golden set: {site.load.failure}"
        if heard.lost:
            yield f"{heard.lost:,} records of what it did were lost, so it did more than is told"
        new = site.new
        if new is None:
            return
        if new.failed_percent >= FAILING_PERCENT:
            told = ", ".join(f"{count:,} {name}" for name, count in new.outcomes.items())
            yield f"{new.failed_percent:.1f} % not answered ({told})"
        if new.retries:
            yield f"{new.retries:,} run again after a worker died or another version failed"
        if self._is_slow(site, new):
            yield from self._slow(site, new, heard)

    def _is_slow(self, site: Site, new: Measured) -> bool:
        if not self._enough or new.p99_ms is None or not self._p99:
            return False
        gained = site.p99_ratio is not None and self._ratio and site.p99_ratio > SLOW * self._ratio
        return new.p99_ms > SLOW * self._p99 or bool(gained)

    def _slow(self, site: Site, new: Measured, heard: Heard) -> Iterator[str]:
        assert new.p99_ms is not None
        yield f"p99 {new.p99_ms:.3g} ms where half of the sites have {self._p99:.3g} ms or less"
        old = site.old
        if old is not None and old.p99_ms is not None and self._old_p99 and old.p99_ms > SLOW * self._old_p99:
            yield "the other version was as slow there"
        if new.queue_p99_ms is not None and new.queue_p99_ms > PART * new.p99_ms:
            yield "requests wait in its queue"
        if new.per_s is not None and self._per_s and new.per_s > SLOW * self._per_s:
            yield f"{new.per_s:.3g} requests a second, where half of the sites have {self._per_s:.3g} or less"
        for name, usual in self._facts.items():
            mine = heard.facts.get(name, "")
            if usual and mine != usual:
                yield f"{name} {mine or 'none'}, most have {usual}"


def _most(values: Sequence[str]) -> str:
    """What more than half of all have; "": there is no such thing."""
    [(found, count)] = Counter(values).most_common(1) or [("", 0)]
    return found if count * 2 > len(values) else ""
