"""The page of one model, at ``/models/NAME``: each version, what it did in the last hour, what became of it, and what
happened to all of them on this box. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from appliance.core.rollout.records import Change
from appliance.core.rollout.version import Artifact
from appliance.domain.energy import cost_text, joules_text
from appliance.domain.moment import moment
from appliance.domain.quantity import bytes_text
from appliance.engine.versions.wording import with_next_try
from appliance.frontend.http.plot import Series, plot
from appliance.frontend.http.spoken import spoken_count, spoken_rate, spoken_us
from appliance.frontend.http.status_page import REFUSALS, badge, span_of, spoken_workers, trial_text
from appliance.frontend.http.table import Column, row, table
from appliance.telemetry.meter import Result
from appliance.telemetry.recent import PERIOD_S, RecentFigures, Sample
from appliance.telemetry.snapshot import Snapshot, VersionStatus

Fact = tuple[str, str]
"""What is told of a version, under its name."""
CHANGES_SHOWN: Final = 20
INTERFACE: Final = (Column("Changed"), Column("Was"), Column("Is"))
HISTORY: Final = (
    *(Column(title) for title in ("When", "Version", "Ended", "Serving")),
    Column("Took", "number"),
    Column("Why", "told"),
)


def model_main(snapshot: Snapshot, name: str, recent: RecentFigures, history: Sequence[Change]) -> str:
    """The main part of the page of model ``name``; the newest version first. ``history`` is the model's, oldest
    first."""
    versions = [each for each in snapshot.engine.versions if each.name == name]
    newest_first = sorted(versions, key=lambda each: -each.version)
    return (
        '<p><a href="../">All models</a></p>'
        + "".join(_section(each, snapshot, recent.of(name, each.version)) for each in newest_first)
        + _history(history)
    )


def _section(version: VersionStatus, snapshot: Snapshot, samples: Sequence[Sample]) -> str:
    title = f"Version {version.version}" if version.version else "As a whole"
    facts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in (*_facts(version, snapshot), *_artifacts(version, snapshot))
    )
    plots = "".join(_plots(samples)) or f'<p class="quiet">{_no_plots(version)}</p>'
    return (
        f"<section><h2>{title} {badge(version)}</h2>{''.join(_told(version))}"
        f'<div class="plots">{plots}</div><dl class="facts">{facts}</dl></section>'
    )


def _no_plots(version: VersionStatus) -> str:
    """Why nothing is drawn: nothing was asked, or no two samples hold what was."""
    if any(version.statistics.results.values()):
        return f"Its first figures are drawn within {2 * PERIOD_S:.0f} s."
    return "Nothing was asked of it."


def _told(version: VersionStatus) -> Iterator[str]:
    if version.trial is not None and version.trial.stage != "loading":
        yield f'<p class="told busy">{trial_text(version.trial)}</p>'
    if version.reason:
        yield f'<p class="told bad">{escape(with_next_try(version.reason, version.next_try_ms))}</p>'
    if version.interface:
        heading = f"interface-{version.version}"
        rows = "".join(row(INTERFACE, map(escape, each)) for each in version.interface)
        yield f'<h3 id="{heading}">What clients would have to change</h3>{table(INTERFACE, rows, heading)}'
    if version.untried:
        yield f'<p class="told busy">{escape(f"Went live without the configured trial: {version.untried}")}</p>'
    if version.notes:
        notes = "".join(f"<br>{escape(note)}" for note in version.notes)
        yield f'<p class="told quiet">Noted:{notes}</p>'


def _plots(samples: Sequence[Sample]) -> Iterator[str]:
    if not samples:
        return
    span = span_of(samples)
    yield plot("Answered", [Series("rate", "line", [each.answered for each in samples])], span, spoken_rate)
    latencies = [
        Series("p50", "line", [each.p50_us for each in samples]),
        Series("p99", "line upper", [each.p99_us for each in samples]),
    ]
    yield plot("Latency", latencies, span, spoken_us)
    turned_away = [
        Series("refused", "line", [each.refused for each in samples]),
        Series("failed", "line wrong", [each.failed for each in samples]),
    ]
    yield plot("Not answered", turned_away, span, spoken_rate)
    yield plot("Queued", [Series("requests", "line", [each.queued for each in samples])], span, spoken_count)
    yield plot("Batch", [Series("rows", "line", [each.batch for each in samples])], span, spoken_count)


def _history(history: Sequence[Change]) -> str:
    """What happened last, the latest first."""
    rows = "".join(row(HISTORY, map(escape, _words(each))) for each in history[: -CHANGES_SHOWN - 1 : -1])
    return f'<h2 id="history">History</h2>{table(HISTORY, rows, "history")}' if rows else ""


def _words(change: Change) -> tuple[str, ...]:
    form = " (packed form)" if change.artifact is Artifact.PACKED else ""
    return (
        moment(change.at_ms),
        f"{change.version}{form}",
        change.ending.value,
        f"{change.before or '–'} → {change.after or '–'}",
        spoken_us(change.took_ms * 1_000),
        change.reason or "–",
    )


def _artifacts(version: VersionStatus, snapshot: Snapshot) -> Iterator[Fact]:
    """What there is of a version, and since when."""
    if version.golden is not None:
        cases = f"{version.golden.cases} case{'s' * (version.golden.cases != 1)}"
        yield "Golden set", f"{cases}: {version.golden.failure or 'all as promised'}"
    yield "Package", version.trust or "a directory"
    yield "Runs from", "its packed form" if version.packed else "its own files"
    for made in snapshot.store.artifacts if snapshot.store is not None else ():
        if (made.name, made.version) == (version.name, version.version):
            yield f"{made.kind.capitalize()} since", moment(round(made.made_s * 1_000))


def _facts(version: VersionStatus, snapshot: Snapshot) -> Iterator[Fact]:
    workers = {worker.worker: worker for worker in snapshot.engine.workers}
    results = version.statistics.results
    refused = sum(results.get(each, 0) for each in REFUSALS)
    yield "Answered", str(results.get(Result.SUCCESS, 0))
    yield "Refused or late", str(refused)
    yield "Failed", str(results.get(Result.FAILED, 0))
    yield "Invalid requests", str(results.get(Result.INVALID, 0))
    yield "Phase", version.phase.value
    yield "Device", version.placed
    used = snapshot.inference_energy(version)
    if used is not None:
        yield "Energy of a row", joules_text(used.joules)
        if used.cost_per_million is not None:
            yield "Energy of a million rows costs", cost_text(used.cost_per_million)
    yield "In memory", version.residency.replace("_", " ")
    yield "Workers", spoken_workers(version.workers, workers)
    weights = f", of that weights {bytes_text(version.weights_bytes)}" if version.weights_bytes else ""
    yield "Memory", f"{bytes_text(version.memory_bytes)}{weights}" if version.memory_bytes else "–"
    causes = ", ".join(f"{cause} {count}" for cause, count in version.restarts.items() if count)
    yield "Workers started again", causes or "0"
    yield "Last load", spoken_us(version.load_ns / 1_000)
    yield (
        "Runs as assessed (p50, p99)",
        ", ".join(spoken_us(each / 1_000) for each in (version.run_p50_ns, version.run_p99_ns) if each)
        or "–",
    )
