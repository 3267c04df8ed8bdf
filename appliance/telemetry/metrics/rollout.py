"""What became of versions on their way to serving, as Prometheus families. Pure. docs/METRICS.md describes each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from appliance.telemetry.metrics.exposition import Family, family, label_text
from appliance.telemetry.snapshot import EngineStatus, VersionStatus


def swap_families(status: EngineStatus, labels: Sequence[str]) -> Iterator[Family]:
    """All of them; ``labels`` are those of the status's versions, in order."""
    swaps = status.swaps
    endings = [(label_text({"ending": ending}), count) for ending, count in sorted(swaps.endings.items())]
    yield _counter("appliance_swaps_total", "Tries of versions that ended, by how.", endings)
    yield _counter("appliance_loads_total", "Loads of versions that came through.", [("", swaps.loads)])
    yield _counter("appliance_load_seconds_total", "Time they took.", [("", swaps.load_ns / 1e9)])
    kept = swaps.assessments - swaps.assessments_failed
    assessed = [('outcome="held"', kept), ('outcome="failed"', swaps.assessments_failed)]
    yield _counter("appliance_assessments_total", "Versions held to what they promise.", assessed)
    retries = [("", swaps.retries)]
    meaning = "Tries of versions that had been given up, because nothing else of their models served."
    yield _counter("appliance_swap_retries_total", meaning, retries)
    canary = [("", swaps.canary_requests)]
    yield _counter("appliance_canary_requests_total", "Requests led to versions on trial.", canary)
    shadow = [('outcome="run"', swaps.shadow_requests), ('outcome="dropped"', swaps.shadow_dropped)]
    yield _counter("appliance_shadow_requests_total", "Requests run in the shadow, or left out.", shadow)
    alike = swaps.compared - swaps.differing
    answers = [('outcome="alike"', alike), ('outcome="different"', swaps.differing)]
    yield _counter("appliance_shadow_answers_total", "Answers compared in the shadow.", answers)
    yield from _of_versions(list(zip(labels, status.versions, strict=True)))


def _of_versions(pairs: Sequence[tuple[str, VersionStatus]]) -> Iterator[Family]:
    fallen = [(label, version.fallen_back) for label, version in pairs]
    meaning = "Requests that failed on the version and were answered by the one before."
    yield _counter("appliance_version_fallbacks_total", meaning, fallen)
    left = [(label, version.tries_left) for label, version in pairs]
    meaning = "How often the version may still be tried before it is given up."
    yield family("appliance_version_tries_left", "gauge", meaning, left)
    next_tries = [(label, version.next_try_ms / 1_000) for label, version in pairs if version.next_try_ms]
    meaning = "When the version that was given up is tried again, in seconds since 1970."
    yield family("appliance_version_next_try_timestamp_seconds", "gauge", meaning, next_tries)
    trials = [
        (f"{label},{label_text({'stage': version.trial.stage})}", 1)
        for label, version in pairs
        if version.trial
    ]
    meaning = "1 for the stage of its trial that the version is in."
    yield family("appliance_version_trial", "gauge", meaning, trials)


def _counter(name: str, meaning: str, values: Iterable[tuple[str, float]]) -> Family:
    return family(name, "counter", meaning, values)
