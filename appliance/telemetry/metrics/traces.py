"""What became of traces, as a Prometheus family. Pure. docs/METRICS.md describes it."""

from __future__ import annotations

from appliance.telemetry.metrics.exposition import Family, label_text, sample
from appliance.telemetry.snapshot import TraceFigures


def trace_family(figures: TraceFigures) -> Family:
    """The family."""
    name = "appliance_traces_total"
    counts = (("written", figures.written), ("left_out", figures.left_out), ("lost", figures.lost))
    samples = [sample(name, label_text({"outcome": outcome}), count) for outcome, count in counts]
    return Family(name, "counter", "Traces of requests, by what became of them.", samples)
