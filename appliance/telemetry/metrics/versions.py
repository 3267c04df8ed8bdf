"""The figures of model versions as Prometheus families. Pure. docs/METRICS.md describes each of them.

A version that has not been asked yet has its counters but no histograms: on a box with a thousand models most
are idle, and their empty buckets would be nearly all of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from appliance.telemetry.exemplars import NONE, Buckets
from appliance.telemetry.meter import Result, Stage, VersionStatistics
from appliance.telemetry.metrics.exposition import Family, family, histogram_sample, label_text

Values = Iterable[tuple[str, float]]

STAGES: Final = (Stage.QUEUE, Stage.GATHER, Stage.RUN, Stage.SCATTER)
_COUNTS: Final[tuple[tuple[str, str, Callable[[VersionStatistics], int]], ...]] = (
    ("appliance_inferences_total", "Batch rows answered.", lambda figures: figures.inferences),
    (
        "appliance_retries_total",
        "Requests run again after a worker died or another version failed.",
        lambda figures: figures.retries,
    ),
    (
        "appliance_leased_requests_total",
        "Answered requests that the front end served under a lease, without asking the engine.",
        lambda figures: figures.leased,
    ),
)
TRITON_REASONS: Final[Mapping[str, tuple[Result, ...]]] = MappingProxyType(
    {
        "REJECTED": (Result.REFUSED, Result.EXPIRED),
        "CANCELED": (Result.CANCELLED,),
        "BACKEND": (Result.FAILED,),
        "OTHER": (Result.INVALID, Result.UNAVAILABLE),
    }
)
"""What Triton calls the ways in which requests fail: the queue, the client, the model or its worker, the rest."""
_TRITON_COUNTS: Final[tuple[tuple[str, str, Callable[[VersionStatistics], int]], ...]] = (
    (
        "nv_inference_request_success",
        "Successful requests.",
        lambda figures: figures.results.get(Result.SUCCESS, 0),
    ),
    ("nv_inference_count", "Batch rows answered.", lambda figures: figures.inferences),
    ("nv_inference_exec_count", "Batches run.", lambda figures: figures.executions),
)
_TRITON_DURATIONS: Final = (
    ("nv_inference_request_duration_us", Stage.TOTAL),
    ("nv_inference_queue_duration_us", Stage.QUEUE),
    ("nv_inference_compute_input_duration_us", Stage.GATHER),
    ("nv_inference_compute_infer_duration_us", Stage.RUN),
    ("nv_inference_compute_output_duration_us", Stage.SCATTER),
)


class Labelled(NamedTuple):
    """A version's figures with its labels as text, made once per scrape."""

    labels: str
    statistics: VersionStatistics


def labelled(statistics: VersionStatistics) -> Labelled:
    """``statistics`` with the labels that all families of a version share."""
    return Labelled(label_text({"model": statistics.name, "version": str(statistics.version)}), statistics)


def version_families(
    versions: Sequence[Labelled], exemplars: Mapping[tuple[str, int], Buckets], *, stages: bool
) -> Iterator[Family]:
    """The families of all ``versions``; ``stages`` adds a latency histogram per stage. ``exemplars`` are those of
    versions by name and number."""
    yield family("appliance_requests_total", "Requests that ended, by how.", _by_result(versions))
    for name, meaning, value in _COUNTS:
        yield family(name, meaning, _values(versions, value))
    yield family("appliance_batches_total", "Batches run, by their size in rows.", _by_rows(versions))
    name = "appliance_request_duration_seconds"
    meaning = "Arrival to answer, answered requests only."
    yield Family(name, "histogram", meaning, _totals(name, versions, exemplars))
    if stages:
        name = "appliance_stage_duration_seconds"
        yield Family(name, "histogram", "Where answered requests spent their time.", _stages(name, versions))


def triton_families(versions: Sequence[Labelled], pending: Sequence[int]) -> Iterator[Family]:
    """The same under the names that Triton users have on their dashboards; ``pending`` holds the queued requests of
    each version, in the same order. Durations are totals in microseconds, as there."""
    for name, meaning, value in _TRITON_COUNTS:
        yield _counter(name, meaning, _values(versions, value))
    yield _counter("nv_inference_request_failure", "Failed requests, by reason.", _failures(versions))
    for name, stage in _TRITON_DURATIONS:
        meaning = f"Total microseconds of stage '{stage.value}' over answered requests."
        totals = ((labels, figures.stages[stage].sum_ns // 1_000) for labels, figures in versions)
        yield _counter(name, meaning, totals)
    waiting = zip((version.labels for version in versions), pending, strict=True)
    yield family("nv_inference_pending_request_count", "Requests waiting now.", waiting)


def _counter(name: str, meaning: str, values: Values) -> Family:
    """One whose name does not say that it is one."""
    return family(name, meaning, values)._replace(kind="counter")


def _values(versions: Sequence[Labelled], value: Callable[[VersionStatistics], int]) -> Values:
    return ((labels, value(figures)) for labels, figures in versions)


def _by_result(versions: Sequence[Labelled]) -> Values:
    return (
        (f'{labels},outcome="{result.value}"', figures.results.get(result, 0))
        for labels, figures in versions
        for result in Result
    )


def _by_rows(versions: Sequence[Labelled]) -> Values:
    return (
        (f'{labels},rows="{batch.rows}"', batch.count)
        for labels, figures in versions
        for batch in figures.batches
    )


def _failures(versions: Sequence[Labelled]) -> Values:
    return (
        (f'{labels},reason="{reason}"', sum(figures.results.get(result, 0) for result in results))
        for labels, figures in versions
        for reason, results in TRITON_REASONS.items()
    )


def _totals(
    name: str, versions: Sequence[Labelled], exemplars: Mapping[tuple[str, int], Buckets]
) -> Iterator[str]:
    for labels, statistics in versions:
        if statistics.results.get(Result.SUCCESS):
            known = exemplars.get((statistics.name, statistics.version), NONE)
            yield histogram_sample(name, labels, statistics.stages[Stage.TOTAL], known)


def _stages(name: str, versions: Sequence[Labelled]) -> Iterator[str]:
    for labels, statistics in versions:
        if statistics.results.get(Result.SUCCESS):
            for stage in STAGES:
                yield histogram_sample(name, f'{labels},stage="{stage.value}"', statistics.stages[stage])
