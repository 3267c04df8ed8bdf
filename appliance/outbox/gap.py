"""What became of records that will not arrive, so that a receiver can account for each number."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Reason(StrEnum):
    """Why records are gone."""

    BOUND = "bound"
    """The outbox was full, and its policy is to drop the oldest."""
    DAMAGED = "damaged"
    """The disk gave back something else than was written."""
    CUT = "cut"
    """A write failed or a crash cut it: none was acknowledged, unless the disk damaged what came last, too."""


class Gap(NamedTuple):
    """The numbers ``first`` to ``last`` of ``epoch`` are gone, because of ``reason``. Those among them that arrived
    before are there all the same."""

    epoch: str
    first: int
    last: int
    reason: Reason
