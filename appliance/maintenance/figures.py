"""The figures of a store at one moment, from its catalog and its scrub."""

from __future__ import annotations

from appliance.maintenance.scrubbing import Scrubbing
from appliance.store.catalog import Catalog
from appliance.telemetry.snapshot import StoreFigures

UNSIGNED = "unsigned"
MS_PER_S = 1000


def store_figures(catalog: Catalog, scrubbing: Scrubbing, generation: int, trouble: str) -> StoreFigures:
    """What metrics and status tell. Blobs that versions share count once. ``generation`` is that of the catalog that is
    served; ``trouble``: see StoreFigures."""
    installed = [version for _, version in catalog.installed()]
    blobs = {file.digest: file.size for version in installed for file in version.files}
    record = scrubbing.record
    return StoreFigures(
        versions=len(installed),
        wanted=sum(1 for _ in catalog.wanted()),
        unsigned=sum(version.trust == UNSIGNED for version in installed),
        bytes=sum(blobs.values()),
        damaged=len(record.damaged),
        passes=scrubbing.passes,
        failures=scrubbing.failures,
        scrubbed_at_s=record.finished_ms / MS_PER_S,
        generation=generation,
        trouble=trouble,
    )
