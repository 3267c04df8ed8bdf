"""The figures of model versions as Prometheus families. Pure. docs/METRICS.md describes each of them.

A version that has not been asked yet has its counters but no histograms: on a box with a thousand models most
are idle, and their empty buckets would be nearly all of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from appliance.telemetry.meter import Result, Stage, VersionStatistics
from appliance.telemetry.metrics.exposition import Family, histogram_sample, label_text, sample

STAGES = (Stage.QUEUE, Stage.GATHER, Stage.RUN, Stage.SCATTER)


class Labelled(NamedTuple):
    """A version's figures with its labels as text, made once per scrape."""

    labels: str
    statistics: VersionStatistics


def labelled(statistics: VersionStatistics) -> Labelled:
    """``statistics`` with the labels that all families of a version share."""
    return Labelled(label_text({"model": statistics.name, "version": str(statistics.version)}), statistics)


def version_families(versions: Sequence[Labelled], *, stages: bool) -> Iterator[Family]:
    """The families of all ``versions``; ``stages`` adds a latency histogram per stage."""
    yield Family(
        "appliance_requests_total",
        "counter",
        "Requests that ended, by how.",
        _by_result("appliance_requests_total", versions),
    )
    yield _counter(
        versions, "appliance_inferences_total", "Batch rows answered.", lambda figures: figures.inferences
    )
    yield Family(
        "appliance_batches_total",
        "counter",
        "Batches run, by their size in rows.",
        _by_rows("appliance_batches_total", versions),
    )
    yield _counter(
        versions,
        "appliance_retries_total",
        "Requests run again after a worker died.",
        lambda figures: figures.retries,
    )
    yield _counter(
        versions,
        "appliance_leased_requests_total",
        "Answered requests that the front end served under a lease, without asking the engine.",
        lambda figures: figures.leased,
    )
    name = "appliance_request_duration_seconds"
    yield Family(
        name,
        "histogram",
        "Arrival to answer, answered requests only.",
        _histograms(name, versions, Stage.TOTAL),
    )
    if stages:
        name = "appliance_stage_duration_seconds"
        yield Family(name, "histogram", "Where answered requests spent their time.", _stages(name, versions))


def _counter(
    versions: Sequence[Labelled], name: str, meaning: str, value: Callable[[VersionStatistics], int]
) -> Family:
    lines = (sample(name, version.labels, value(version.statistics)) for version in versions)
    return Family(name, "counter", meaning, lines)


def _by_result(name: str, versions: Sequence[Labelled]) -> Iterator[str]:
    for labels, statistics in versions:
        yield "".join(
            [
                sample(name, f'{labels},outcome="{result.value}"', statistics.results.get(result, 0))
                for result in Result
            ]
        )


def _by_rows(name: str, versions: Sequence[Labelled]) -> Iterator[str]:
    for labels, statistics in versions:
        for batch in statistics.batches:
            yield sample(name, f'{labels},rows="{batch.rows}"', batch.count)


def _histograms(name: str, versions: Sequence[Labelled], stage: Stage) -> Iterator[str]:
    for labels, statistics in versions:
        if statistics.results.get(Result.SUCCESS):
            yield histogram_sample(name, labels, statistics.stages[stage])


def _stages(name: str, versions: Sequence[Labelled]) -> Iterator[str]:
    for labels, statistics in versions:
        if statistics.results.get(Result.SUCCESS):
            for stage in STAGES:
                yield histogram_sample(name, f'{labels},stage="{stage.value}"', statistics.stages[stage])
