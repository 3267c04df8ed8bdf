"""The page of one model, at ``/models/NAME``: each version, what it did in the last hour, what became of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from appliance.engine.versions.wording import with_next_try
from appliance.frontend.http.plot import Series, plot
from appliance.frontend.http.spoken import spoken_bytes, spoken_count, spoken_rate, spoken_us
from appliance.frontend.http.status_page import REFUSALS, badge, span_of, spoken_workers, trial_text
from appliance.telemetry.meter import Result
from appliance.telemetry.recent import RecentFigures, Sample
from appliance.telemetry.snapshot import VersionStatus, WorkerStatus


def model_main(
    versions: Sequence[VersionStatus], workers: Mapping[int, WorkerStatus], recent: RecentFigures
) -> str:
    """The main part of the page of the model with these ``versions``; the newest first."""
    newest_first = sorted(versions, key=lambda each: -each.version)
    return '<p><a href="../">All models</a></p>' + "".join(
        _section(each, workers, recent.of(each.name, each.version)) for each in newest_first
    )


def _section(version: VersionStatus, workers: Mapping[int, WorkerStatus], samples: Sequence[Sample]) -> str:
    title = f"Version {version.version}" if version.version else "As a whole"
    facts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in _facts(version, workers)
    )
    plots = "".join(_plots(samples)) or '<p class="quiet">Nothing was asked of it in the last hour.</p>'
    return (
        f"<section><h2>{title} {badge(version)}</h2>{''.join(_told(version))}"
        f'<div class="plots">{plots}</div><dl class="facts">{facts}</dl></section>'
    )


def _told(version: VersionStatus) -> Iterator[str]:
    if version.trial is not None and version.trial.stage != "loading":
        yield f'<p class="told busy">{trial_text(version.trial)}</p>'
    if version.reason:
        yield f'<p class="told bad">{escape(with_next_try(version.reason, version.next_try_ms))}</p>'
    if version.untried:
        yield f'<p class="told busy">{escape(f"Went live without the configured trial: {version.untried}")}</p>'
    if version.notes:
        notes = "".join(f"<br>{escape(note)}" for note in version.notes)
        yield f'<p class="told quiet">In config.pbtxt:{notes}</p>'


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


def _facts(version: VersionStatus, workers: Mapping[int, WorkerStatus]) -> Iterator[tuple[str, str]]:
    results = version.statistics.results
    refused = sum(results.get(each, 0) for each in REFUSALS)
    yield "Answered", str(results.get(Result.SUCCESS, 0))
    yield "Refused or late", str(refused)
    yield "Failed", str(results.get(Result.FAILED, 0))
    yield "Invalid requests", str(results.get(Result.INVALID, 0))
    yield "Phase", version.phase.value
    yield "In memory", version.residency.replace("_", " ")
    yield "Workers", spoken_workers(version.workers, workers)
    memory = sum(workers[each].memory_bytes for each in version.workers if each in workers)
    yield "Memory", spoken_bytes(memory) if memory else "–"
    yield "Last load", spoken_us(version.load_ns / 1_000)
    yield (
        "Runs as assessed (p50, p99)",
        ", ".join(spoken_us(each / 1_000) for each in (version.run_p50_ns, version.run_p99_ns)),
    )
    yield "Package", version.trust or "a directory"
