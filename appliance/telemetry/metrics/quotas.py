"""The figures of quotas as Prometheus families. Pure. docs/METRICS.md describes each."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.telemetry.metrics.exposition import Family, label_text, sample
from appliance.telemetry.snapshot import QuotaFigures


def quota_families(figures: QuotaFigures) -> Iterator[Family]:
    """All families. Clients that are not named have one label together."""
    name = "appliance_quota_clients"
    yield Family(
        name, "gauge", "Clients whose quotas are told apart now.", [sample(name, "", figures.clients)]
    )
    name = "appliance_quota_refused_total"
    refused = [
        sample(name, label_text({"client": label, "reason": reason}), count)
        for label, rate, in_flight in figures.refusals
        for reason, count in (("rate", rate), ("in_flight", in_flight))
    ]
    yield Family(name, "counter", "Requests refused for their client's quota.", refused)
