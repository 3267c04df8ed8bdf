"""The figures of the store that is served from, as Prometheus families. Pure. docs/METRICS.md describes each."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.telemetry.metrics.exposition import Family, sample
from appliance.telemetry.snapshot import StoreFigures


def store_families(figures: StoreFigures) -> Iterator[Family]:
    """All families."""
    rows = (
        ("appliance_store_versions", "gauge", "Versions that are installed.", figures.versions),
        (
            "appliance_store_wanted_versions",
            "gauge",
            "Installed versions that shall be served.",
            figures.wanted,
        ),
        (
            "appliance_store_unsigned_versions",
            "gauge",
            "Installed versions without a trusted signature.",
            figures.unsigned,
        ),
        ("appliance_store_bytes", "gauge", "Bytes of the blobs of installed versions.", figures.bytes),
        (
            "appliance_store_damaged_blobs",
            "gauge",
            "Blobs that are not what their name says.",
            figures.damaged,
        ),
        ("appliance_store_scrubs_total", "counter", "Passes of the scrub that ended.", figures.passes),
        (
            "appliance_store_scrub_failures_total",
            "counter",
            "Passes of the scrub that failed.",
            figures.failures,
        ),
        (
            "appliance_store_scrubbed_timestamp_seconds",
            "gauge",
            "When the last pass of the scrub ended; 0: never.",
            figures.scrubbed_at_s,
        ),
        (
            "appliance_store_generation",
            "gauge",
            "Number of the catalog that is served; each change counts one up.",
            figures.generation,
        ),
        (
            "appliance_store_unreadable",
            "gauge",
            "Whether the catalog cannot be read at present.",
            int(bool(figures.trouble)),
        ),
    )
    for name, kind, meaning, value in rows:
        yield Family(name, kind, meaning, [sample(name, "", value)])
