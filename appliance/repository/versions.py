"""Which of the versions that are there should be served. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """The ``count`` highest numbers."""

    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """All of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Specific:
    """Those listed, whether they are there or not."""

    numbers: tuple[int, ...]


VersionPolicy = Latest | Every | Specific

LATEST: Final = Latest()


def wanted_versions(policy: VersionPolicy, present: Iterable[int]) -> tuple[int, ...]:
    """The version numbers that ``policy`` asks for, ascending."""
    ordered = sorted(set(present))
    if isinstance(policy, Specific):
        return tuple(sorted(set(policy.numbers)))
    if isinstance(policy, Every):
        return tuple(ordered)
    return tuple(ordered[-policy.count :])
