"""What became of traces, as a Prometheus family. Pure. docs/METRICS.md describes it."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.telemetry.exposition import Family, label_text, sample


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFigures:
    """Traces since the start: ``written`` to the file, ``left_out`` because there were too many in a second, and
    ``lost`` because the file was slower or could not be written."""

    written: int
    left_out: int
    lost: int


def trace_family(figures: TraceFigures) -> Family:
    """The family."""
    name = "appliance_traces_total"
    counts = (("written", figures.written), ("left_out", figures.left_out), ("lost", figures.lost))
    samples = [sample(name, label_text({"outcome": outcome}), count) for outcome, count in counts]
    return Family(name, "counter", "Traces of requests, by what became of them.", samples)
