"""The same figures under the names that Triton users have on their dashboards. Pure; an option.

Durations are totals in microseconds, as there. Failure reasons are Triton's: REJECTED (refused or expired in
the queue), CANCELED, BACKEND (the model or its worker failed), OTHER.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from appliance.telemetry.meter import Result, Stage, VersionStatistics
from appliance.telemetry.metrics.exposition import Family, sample
from appliance.telemetry.metrics.versions import Labelled

REASONS: Final[Mapping[str, tuple[Result, ...]]] = MappingProxyType(
    {
        "REJECTED": (Result.REFUSED, Result.EXPIRED),
        "CANCELED": (Result.CANCELLED,),
        "BACKEND": (Result.FAILED,),
        "OTHER": (Result.INVALID, Result.UNAVAILABLE),
    }
)

_COUNTS: Final[tuple[tuple[str, str, Callable[[VersionStatistics], int]], ...]] = (
    (
        "nv_inference_request_success",
        "Successful requests.",
        lambda figures: figures.results.get(Result.SUCCESS, 0),
    ),
    ("nv_inference_count", "Batch rows answered.", lambda figures: figures.inferences),
    ("nv_inference_exec_count", "Batches run.", lambda figures: figures.executions),
)

_DURATIONS: Final = (
    ("nv_inference_request_duration_us", Stage.TOTAL),
    ("nv_inference_queue_duration_us", Stage.QUEUE),
    ("nv_inference_compute_input_duration_us", Stage.GATHER),
    ("nv_inference_compute_infer_duration_us", Stage.RUN),
    ("nv_inference_compute_output_duration_us", Stage.SCATTER),
)


def triton_families(versions: Sequence[Labelled], pending: Sequence[int]) -> Iterator[Family]:
    """The families of ``versions``; ``pending`` holds the queued requests of each, in the same order."""
    for name, meaning, value in _COUNTS:
        yield Family(name, "counter", meaning, _values(name, versions, value))
    name = "nv_inference_request_failure"
    yield Family(name, "counter", "Failed requests, by reason.", _failures(name, versions))
    for name, stage in _DURATIONS:
        meaning = f"Total microseconds of stage '{stage.value}' over answered requests."
        yield Family(name, "counter", meaning, _durations(name, versions, stage))
    name = "nv_inference_pending_request_count"
    yield Family(name, "gauge", "Requests waiting now.", _pending(name, versions, pending))


def _pending(name: str, versions: Sequence[Labelled], pending: Sequence[int]) -> Iterator[str]:
    for version, count in zip(versions, pending, strict=True):
        yield sample(name, version.labels, count)


def _values(
    name: str, versions: Sequence[Labelled], value: Callable[[VersionStatistics], int]
) -> Iterator[str]:
    for labels, statistics in versions:
        yield sample(name, labels, value(statistics))


def _durations(name: str, versions: Sequence[Labelled], stage: Stage) -> Iterator[str]:
    for labels, statistics in versions:
        yield sample(name, labels, statistics.stages[stage].sum_ns // 1_000)


def _failures(name: str, versions: Sequence[Labelled]) -> Iterator[str]:
    for labels, statistics in versions:
        for reason, results in REASONS.items():
            count = sum(statistics.results.get(result, 0) for result in results)
            yield sample(name, f'{labels},reason="{reason}"', count)
