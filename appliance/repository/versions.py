"""Which of the versions that are there should be served. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from appliance.domain.model import VersionChoice, VersionPolicy

LATEST: Final = VersionPolicy()


def wanted_versions(policy: VersionPolicy, present: Iterable[int]) -> tuple[int, ...]:
    """The version numbers that ``policy`` asks for, ascending."""
    ordered = sorted(set(present))
    if policy.choice is VersionChoice.SPECIFIC:
        return tuple(sorted(set(policy.numbers)))
    if policy.choice is VersionChoice.ALL:
        return tuple(ordered)
    return tuple(ordered[-policy.count :])
