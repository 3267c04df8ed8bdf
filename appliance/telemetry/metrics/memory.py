"""Models in and out of memory as Prometheus families. Pure. docs/METRICS.md describes each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from appliance.core.memory.footprint import Residency
from appliance.telemetry.metrics.exposition import Family, sample
from appliance.telemetry.snapshot import EngineStatus, VersionStatus


def residency_families(status: EngineStatus, labels: Sequence[str]) -> Iterator[Family]:
    """All families; ``labels`` are those of the status' versions, in order."""
    figures = status.residency
    meaning = "1 for how much of the version is in memory, 0 for the others."
    yield Family("appliance_version_residency", "gauge", meaning, _forms(status.versions, labels))
    for name, kind, meaning, value in (
        (
            "appliance_residency_budget_bytes",
            "gauge",
            "Memory there is for models and workers.",
            figures.budget_bytes,
        ),
        (
            "appliance_residency_used_bytes",
            "gauge",
            "Memory that models and workers take.",
            figures.used_bytes,
        ),
        (
            "appliance_residency_weights_evicted_bytes",
            "gauge",
            "Weights that models in memory are without.",
            figures.weights_evicted_bytes,
        ),
        ("appliance_residency_waiting_requests", "gauge", "Requests that wait for models.", figures.waiting),
        ("appliance_residency_waiting_bytes", "gauge", "Bytes of those requests.", figures.waiting_bytes),
        ("appliance_residency_misses_total", "counter", "Requests for models not in memory.", figures.misses),
        ("appliance_residency_refused_total", "counter", "Those that did not wait.", figures.refused),
        ("appliance_residency_loads_total", "counter", "Models loaded to serve again.", figures.loads),
        (
            "appliance_residency_page_ins_total",
            "counter",
            "Models whose weights came back.",
            figures.page_ins,
        ),
        (
            "appliance_residency_paged_in_bytes_total",
            "counter",
            "Bytes read for that.",
            figures.paged_in_bytes,
        ),
        (
            "appliance_weights_verified_total",
            "counter",
            "Files of weights read into memory and found to be as they were stored.",
            figures.verified,
        ),
        (
            "appliance_weights_verified_bytes_total",
            "counter",
            "Bytes of those.",
            figures.verified_bytes,
        ),
        (
            "appliance_weights_not_as_stored_total",
            "counter",
            "Files of weights that were not, or could not be read.",
            figures.not_as_stored,
        ),
    ):
        yield Family(name, kind, meaning, [sample(name, "", value)])
    name = "appliance_residency_evictions_total"
    evictions = ((Residency.WEIGHTS_EVICTED, figures.evictions), (Residency.COLD, figures.unloads))
    lines = [sample(name, f'to="{form.value}"', count) for form, count in evictions]
    yield Family(name, "counter", "Models that left memory, and how far.", lines)


def _forms(versions: Sequence[VersionStatus], labels: Sequence[str]) -> Iterator[str]:
    for label, version in zip(labels, versions, strict=True):
        for form in Residency:
            labelled = f'{label},residency="{form.value}"'
            yield sample("appliance_version_residency", labelled, int(version.residency == form.value))
