"""What was given up and is to be tried once more, because nothing else of its model serves and no operator may be there
to ask. One version at a time, until it is proven or given up again: what takes the box down must not do so for several
at once. What was rejected (rolled back, or by an operator) is not among them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from appliance.core.rollout.catalog import CatalogVersion
from appliance.core.rollout.phase import Phase
from appliance.core.rollout.version import Version


class Due(NamedTuple):
    """When a version is to be tried; ``at_ms`` is the same by the wall clock, for people."""

    at_ns: int
    at_ms: int
    entry: CatalogVersion


@dataclass(slots=True)
class Retries:
    """Of the versions that are ``wanted``, those that are ``due``, by their identity, and the one that is tried now."""

    wanted: tuple[CatalogVersion, ...] = ()
    due: dict[str, Due] = field(default_factory=dict)
    trying: CatalogVersion | None = None

    def next_try_ms(self, version: Version) -> int:
        """When a version is tried again at the earliest, by the wall clock; 0: it is not."""
        due = self.due.get(version.identity)
        return due.at_ms if due is not None and version.phase is Phase.FAILED else 0
