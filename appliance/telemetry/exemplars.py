"""Requests that stand for a bucket of a latency histogram: the last traced one that took so long, by its trace.

Only requests that are traced anyway get here, so that the others pay nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from appliance.domain.histogram import BOUNDS_NS

VERSIONS_MAX: Final = 1_000
"""Versions that have any; the one whose first came longest ago makes room."""


class Exemplar(NamedTuple):
    """A request that took ``ns`` and ended ``at_ns``, in Unix time."""

    trace_id: str
    ns: int
    at_ns: int


Buckets = Mapping[int, Exemplar]
"""By the number of the bucket."""
NONE: Final[Buckets] = MappingProxyType({})


class Exemplars:
    """Owned by the tracer."""

    def __init__(self) -> None:
        self._versions: dict[tuple[str, int], dict[int, Exemplar]] = {}

    def add(self, name: str, version: int, exemplar: Exemplar) -> None:
        """Have it stand for its bucket from now on."""
        key = (name, version)
        if key not in self._versions and len(self._versions) >= VERSIONS_MAX:
            del self._versions[next(iter(self._versions))]
        self._versions.setdefault(key, {})[bisect_left(BOUNDS_NS, exemplar.ns)] = exemplar

    def frozen(self) -> Mapping[tuple[str, int], Buckets]:
        """Those of each version."""
        return {key: dict(buckets) for key, buckets in self._versions.items()}
