"""What metrics and status tell of the store: what its catalog, the scrub and the disk say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from appliance.config.store import StoreConfig
from appliance.maintenance.scrubbing import Scrubbing
from appliance.maintenance.space import Space
from appliance.store.catalog import Catalog
from appliance.telemetry.snapshot import StoredArtifact, StoreFigures

UNSIGNED: Final = "unsigned"
MS_PER_S: Final = 1000


def store_figures(
    catalog: Catalog, scrubbing: Scrubbing, config: StoreConfig, generation: int, trouble: str
) -> StoreFigures:
    """What metrics and status tell. Blobs that versions share count once. ``generation`` is that of the catalog that is
    served; ``trouble``: see StoreFigures."""
    installed = [version for _, version in catalog.installed()]
    blobs = {file.digest: file.size for version in installed for file in version.files}
    record, space = scrubbing.record, scrubbing.disk.space
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
        taken_bytes=space.taken_bytes,
        quota_bytes=config.quota_bytes,
        free_bytes=space.free_bytes,
        free_floor_bytes=config.free_floor_bytes,
        artifacts=tuple(_artifacts(catalog, space)),
    )


def _artifacts(catalog: Catalog, space: Space) -> Iterator[StoredArtifact]:
    for model, version in catalog.wanted():
        made = {
            "package": version.installed_at_ms / MS_PER_S,
            "packed form": space.forms.get(version.digest, 0.0),
        }
        for kind, made_s in made.items():
            if made_s:
                yield StoredArtifact(name=model.name, version=version.version, kind=kind, made_s=made_s)
