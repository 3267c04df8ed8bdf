"""What came into memory and left it, counted; and what was verified of weights, by what workers say of it.

Weights lie in a file of their own and come with the digests of their pieces where their package was installed; nothing
else can be verified. A load verifies always, a page-in where it was asked to.
"""

from __future__ import annotations

from appliance.domain.model import ModelVersion
from appliance.telemetry.snapshot import ResidencyFigures
from appliance.workers.port import ModelLoaded, ModelRefused, WeightsPagedIn


class CacheTally:
    """Owned by the model cache. ``figures`` are the sums so far."""

    def __init__(self) -> None:
        self.figures = ResidencyFigures()

    def count(self, **more: int) -> None:
        """Add to the figures of these names."""
        figures = self.figures
        self.figures = figures._replace(**{key: getattr(figures, key) + more[key] for key in more})

    def loaded(self, version: ModelVersion, event: ModelLoaded) -> None:
        """Count a load that read its weights to the end: all of the file, or what a session of a packed form has of its
        own."""
        if version.weights is not None and _verifiable(version):
            size = event.evictable_bytes if event.packed else version.weights.size
            self.count(verified=1, verified_bytes=size)

    def paged_in(self, version: ModelVersion, event: WeightsPagedIn) -> None:
        """Count weights that were read and verified for a session that is there."""
        if not _verifiable(version):
            return
        if event.failure:
            self.count(not_as_stored=1)
        else:
            self.count(verified=1, verified_bytes=event.nbytes)

    def refused(self, event: ModelRefused) -> None:
        """Count a load that was refused."""
        self.count(not_as_stored=event.not_as_stored)


def _verifiable(version: ModelVersion) -> bool:
    return version.on_cpu and version.weights is not None and bool(version.weights.pieces)
