"""What was verified of weights as they came into memory, by what workers say of it. Pure.

Weights lie in a file of their own and come with the digests of their pieces where their package was installed; nothing
else can be verified. A load verifies always, a page-in where it was asked to.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from appliance.domain.model import ModelVersion
from appliance.workers.port import ModelLoaded, ModelRefused, WeightsPagedIn

NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


def by_load(version: ModelVersion, event: ModelLoaded) -> Mapping[str, int]:
    """What to count of a load that read its weights to the end: all of the file, or what a session of a packed form
    has of its own."""
    if version.weights is None or not _can_be(version):
        return NOTHING
    size = event.evictable_bytes if event.packed else version.weights.size
    return {"verified": 1, "verified_bytes": size}


def by_page_in(version: ModelVersion, event: WeightsPagedIn) -> Mapping[str, int]:
    """What to count of weights that were read for a session that is there."""
    if not _can_be(version):
        return NOTHING
    return {"not_as_stored": 1} if event.failure else {"verified": 1, "verified_bytes": event.nbytes}


def by_refusal(event: ModelRefused) -> Mapping[str, int]:
    """What to count of a load that was refused."""
    return {"not_as_stored": 1} if event.not_as_stored else NOTHING


def _can_be(version: ModelVersion) -> bool:
    return version.on_cpu and version.weights is not None and bool(version.weights.pieces)
