"""A comparison of versions as tables. What nobody told is a dash; it is no nought."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, Final

from appliance.cli.fleet.session import table
from appliance.cli.fleet.view import Row
from appliance.domain.moment import moment
from appliance.domain.quantity import bytes_text, counted
from appliance.fleet.comparison import UNFIT
from appliance.fleet.places import QUIET_S

SITES_SHOWN: Final = 20
NAMES_SHOWN: Final = 10
NONE: Final = "-"
SHARE: Final = 0.9
"""Of the requests, where sums say nothing of other sites."""
TITLES: Final = (
    "site", "serves", "requests", "p99 ms", "was", "times", "runs", "golden", "unanswered", "p50 ms", "load", "memory",
    "per s",
)  # fmt: skip
STAY: Final = TITLES[:8]
"""Columns that a narrow screen has, too."""


def summary_table(found: Any) -> None:
    """What both versions did on all sites."""
    titles, *rows = summary_rows(found)
    table((*map(str, titles), ""), rows, notes_of(found))


def summary_rows(found: Any) -> list[Row]:
    """The same as rows, the first one of titles."""
    sites, new, old = found["sites"], found["new"], found["old"]
    loads = [[site[which] for site in sites if site[which]] for which in ("load", "old_load")]
    return [
        ("", f"{found['model']}/{found['version']}", _against(found)),
        ("answered on sites", *(_sites_text(sites, which) for which in ("new", "old"))),
        *((title, *(_told(each, key, form) for each in (new, old))) for title, key, form in MEASURES),
        ("load, median", *(_middle(each, "load_ms", ms_text) for each in loads)),
        ("memory, median", *(_middle(each, "memory_bytes", bytes_text) for each in loads)),
        ("golden set", *map(_golden_text, loads)),
    ]


def notes_of(found: Any) -> list[str]:
    """What the figures are of, and how the versions compare site by site."""
    sites = found["sites"]
    where = f" in the group '{found['group']}'" if found["group"] else ""
    counts = f"{found['serving']:,} serve it, {found['unfit']:,} could not keep it, {found['unheard']:,} told nothing"
    when = f"from {moment(found['from_ms'])} to {moment(found['until_ms'])}"
    silent = sum(found["until_ms"] - site["seen_ms"] > QUIET_S * 1000 for site in sites)
    said = [f"{counted(len(sites), 'site')}{where}: {counts}; {when}"]
    if silent:
        said.append(f"{counted(silent, 'site')} not heard from for a day: what is told of them ends before")
    said += _of_one_site(found)
    if found["new"] and found["new"]["p99_ms"] is not None:
        low, high = found["new"]["p99_low_ms"], found["new"]["p99_high_ms"]
        said.append(f"its p99 is between {low:g} and {high:g} ms; where in between is estimated")
    if found["new"] and found["new"]["outcomes"]:
        outcomes = ", ".join(f"{count:,} {name}" for name, count in found["new"]["outcomes"].items())
        said.append(f"of its requests that were not answered: {outcomes}")
    if found["compared"]:
        said.append(
            f"site by site, on {found['compared']:,} with {found['least']:,} answers of both: p99 is "
            f"{found['p99_ratio']:.2f} times that of {_against(found)} (median of sites), {found['worst_ratio']:.2f} "
            f"at worst; {', '.join(_ratios(found))}"
        )
    else:
        said.append(_uncompared(found))
    return said


def _uncompared(found: Any) -> str:
    """Why no site is compared: what to wait for is another thing each time."""
    if not found["against"]:
        model = found["against_model"]
        which = "another version" if model == found["model"] else "a version"
        return f"not compared: no site has told of requests for {which} of '{model}' in that time"
    if not found["old"]:
        return f"not compared: none of these sites has told of {_against(found)} in that time"
    return f"not compared: no site has {found['least']:,} answers of both versions"


def _of_one_site(found: Any) -> Iterator[str]:
    """That a sum is nearly all of one site: a busy one, or one that tells what is not so."""
    for which, name in (("new", f"{found['model']}/{found['version']}"), ("old", _against(found))):
        counts = {site["device"]: site[which]["requests"] for site in found["sites"] if site[which]}
        most = max(counts, key=lambda device: counts[device], default="")
        if len(counts) > 1 and counts[most] > SHARE * (total := sum(counts.values())):
            share = 100 * counts[most] / total
            yield f"{share:.0f} % of the requests of {name} are of '{most}', so its sums are of that site"


def _ratios(found: Any) -> Iterator[str]:
    for title, key in (("p50", "p50_ratio"), ("mean", "mean_ratio"), ("p99 of runs alone", "run_p99_ratio")):
        if found[key] is not None:
            yield f"{title} {found[key]:.2f} times"


def _against(found: Any) -> str:
    return f"{found['against_model']}/{found['against']}" if found["against"] else NONE


def site_table(found: Any, *, everything: bool) -> None:
    """The sites, those that do worst first, and what is special of them."""
    order = in_order(found["sites"])
    shown = order if everything else order[:SITES_SHOWN]
    notes = [f"{site['device']}: {'; '.join(site['why'])}" for site in shown if site["why"]]
    if left := len(order) - len(shown):
        notes.append(f"{counted(left, 'further site')}, which did no worse: --all shows them")
    titles, *rows = site_cells(shown)
    table((*(title if title in STAY else f"({title})" for title in map(str, titles)), ""), rows, notes)


def site_cells(sites: Sequence[Any]) -> list[Row]:
    """The sites as rows, the first one of titles."""
    return [TITLES, *map(_site_row, sites)]


def in_order(sites: Sequence[Any]) -> list[Any]:
    """Those that do worst first."""
    return sorted(sites, key=_badness)


def judgement_text(judgement: Any) -> str:
    """What was demanded, and what came of it."""
    demand, parts = judgement["demand"], []
    if demand["p99_ratio"] is not None:
        parts.append(f"p99 at most {demand['p99_ratio']:g} times")
    if demand["run_p99_ratio"] is not None:
        parts.append(f"p99 of runs at most {demand['run_p99_ratio']:g} times")
    if demand["failed_percent"] is not None:
        parts.append(f"at most {demand['failed_percent']:g} % not answered")
    what = f"{' and '.join(parts)} on {demand['percent']:g} % of sites"
    missed, unknown = (_names(judgement[each]) for each in ("missed_on", "unknown_of"))
    how = f"met on {judgement['met']:,}, missed on {missed}, not known of {unknown}"
    return f"{what}: {judgement['verdict']} ({how})"


def _names(devices: Sequence[str]) -> str:
    """How many, and the first few of them."""
    more = ", …" if len(devices) > NAMES_SHOWN else ""
    return f"{len(devices):,}" + (f": {', '.join(devices[:NAMES_SHOWN])}{more}" if devices else "")


def ms_text(value: float) -> str:
    """Milliseconds as people read them."""
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def golden_text(load: Any) -> str:
    """How one site stood the golden set."""
    if load is None:
        return NONE
    if load["failure"]:
        return "broken"
    return f"off by {_off(load['absolute'])}" if load["cases"] else "none"


def _off(value: float | None) -> str:
    return "no number" if value is None else f"{value:.2g}"


def _golden_text(loads: Sequence[Any]) -> str:
    held = [each for each in loads if each["cases"] or each["failure"]]
    if not held:
        return NONE
    passed = [each for each in held if not each["failure"]]
    worst = max((each["absolute"] for each in passed if each["absolute"] is not None), default=None)
    off = f", off by {_off(worst)}" if passed else ""
    return f"{len(passed):,} of {len(held):,} pass{off}"


def _sites_text(sites: Sequence[Any], which: str) -> str:
    return f"{sum(1 for site in sites if site[which]):,} of {len(sites):,}"


def _told(measured: Any, key: str, form: Any) -> str:
    value = measured[key] if measured else None
    return NONE if value is None else form(value)


def _middle(loads: Sequence[Any], key: str, form: Any) -> str:
    there = [each[key] for each in loads if each[key]]
    return form(int(median(there))) if there else NONE


def _badness(site: Any) -> tuple[bool, bool, float, float, str]:
    new = site["new"]
    ratio, p99 = site["p99_ratio"], new["p99_ms"] if new else None
    return site["ending"] not in UNFIT, not site["why"], -(ratio or 0.0), -(p99 or 0.0), site["device"]


def _site_row(site: Any) -> Row:
    new, old, load = site["new"], site["old"], site["load"]
    return (
        site["device"],
        site["serving"] or NONE,
        f"{new['requests']:,}" if new else NONE,
        _told(new, "p99_ms", _plain),
        _told(old, "p99_ms", _plain),
        NONE if site["p99_ratio"] is None else f"{site['p99_ratio']:.2f}",
        NONE if site["run_p99_ratio"] is None else f"{site['run_p99_ratio']:.2f}",
        golden_text(load),
        _told(new, "failed_percent", _percent),
        _told(new, "p50_ms", _plain),
        ms_text(load["load_ms"]) if load else NONE,
        bytes_text(load["memory_bytes"]) if load and load["memory_bytes"] else NONE,
        _told(new, "per_s", _plain),
    )


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{value:.2g} %"


def _count(value: float) -> str:
    return f"{value:,.0f}"


MEASURES: Final = (
    ("requests", "requests", _count),
    ("p50", "p50_ms", ms_text),
    ("p99", "p99_ms", ms_text),
    ("mean", "mean_ms", ms_text),
    ("p99 in the queue", "queue_p99_ms", ms_text),
    ("p99 of runs", "run_p99_ms", ms_text),
    ("requests a second, a site", "per_s", _plain),
    ("joules per 1,000 rows", "joules_per_1000", _plain),
    ("not answered", "failed_percent", _percent),
)
