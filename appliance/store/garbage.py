"""Garbage: blobs and views that neither the catalog nor a running daemon leads to. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from appliance.store.catalog import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """What may be removed: views by manifest digest, blobs by digest with their sizes."""

    views: tuple[str, ...] = ()
    blobs: tuple[tuple[str, int], ...] = ()

    @property
    def bytes(self) -> int:
        """What the blobs hold."""
        return sum(size for _, size in self.blobs)


def find_garbage(
    catalog: Catalog,
    running: Collection[str],
    views: Mapping[str, Collection[str]],
    blobs: Mapping[str, int],
) -> Garbage:
    """``running``: manifest digests of what a daemon runs; ``views``: each view with the blobs it links to; ``blobs``:
    each blob with its size. What a running version links to stays, installed or not."""
    installed = {version.digest for _, version in catalog.installed()}
    reached = {file.digest for _, version in catalog.installed() for file in version.files}
    for digest in running:
        reached.update(views.get(digest, ()))
    return Garbage(
        views=tuple(sorted(views.keys() - installed - set(running))),
        blobs=tuple(sorted((digest, size) for digest, size in blobs.items() if digest not in reached)),
    )
