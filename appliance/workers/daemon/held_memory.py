"""What one worker holds of memory, as the kernel tells us, and what of that each of its models took.

A worker's own word is exact, for it knows what else it did meanwhile, and counts between what we saw it grow by and
what it holds that no other model of it took. On other devices nobody else knows. What it takes by and by, as its
runtime keeps the memory of the largest batch that ran, no word tells: that is seen alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from appliance.domain.model import ModelVersion
from appliance.process.memory import private_bytes

GROWN_BYTES: Final = 4 << 20
"""Less than that is no model's: a process that answers has a few more pages than one that has loaded."""


class HeldMemory:
    """Of one process. Owner: the pool."""

    def __init__(self) -> None:
        self._pid = 0
        self._own_bytes = 0
        self._before_bytes = 0
        self._taken: dict[int, int] = {}

    def begin(self, pid: int, zygote: int) -> None:
        """The process is there, with what it has from its zygote."""
        self._pid = pid
        self._own_bytes = self._before_bytes = private_bytes(zygote)

    def weigh(self) -> None:
        """A load is about to be asked of a process that is at none: what it holds now is not that one's."""
        if self._pid:
            self._before_bytes = private_bytes(self._pid)

    def took(self, model: int, version: ModelVersion, said_bytes: int) -> int:
        """A load has ended, and took ``said_bytes`` as its worker says; gives what counts."""
        held_bytes = private_bytes(self._pid)
        grown_bytes = max(held_bytes - self._before_bytes, 0)
        self._before_bytes = held_bytes
        if not version.on_cpu:
            return max(said_bytes, grown_bytes)
        others_bytes = sum(taken for other, taken in self._taken.items() if other != model)
        self._taken[model] = max(min(said_bytes, held_bytes - others_bytes), grown_bytes)
        return self._taken[model]

    def grown(self) -> Mapping[int, int]:
        """What each of its models takes, by their ids, where they have taken more since that was told; else nothing. Of
        several each counts with as much of it: which of them it was is not to be seen."""
        beyond_bytes = private_bytes(self._pid) - self._own_bytes - sum(self._taken.values())
        if not self._taken or beyond_bytes < GROWN_BYTES:
            return {}
        for model in self._taken:
            self._taken[model] += beyond_bytes // len(self._taken)
        return dict(self._taken)

    def left(self, model: int) -> None:
        """A model is no longer there."""
        self._taken.pop(model, None)
