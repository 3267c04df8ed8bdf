"""What one worker holds of memory, as the kernel tells us, and what of that each of its models took.

A worker's own word is exact, for it knows what else it did meanwhile, and counts between what we saw it grow by and
what it holds that no other model of it took. On other devices nobody else knows.
"""

from __future__ import annotations

from appliance.domain.model import ModelVersion
from appliance.process.memory import private_bytes


class HeldMemory:
    """Of one process. Owner: the pool."""

    def __init__(self) -> None:
        self._pid = 0
        self._before_bytes = 0
        self._taken: dict[int, int] = {}

    def begin(self, pid: int, zygote: int) -> None:
        """The process is there, with what it has from its zygote."""
        self._pid, self._before_bytes = pid, private_bytes(zygote)

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

    def left(self, model: int) -> None:
        """A model is no longer there."""
        self._taken.pop(model, None)
