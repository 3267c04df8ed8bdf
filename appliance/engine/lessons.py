"""Which heads a door was taught, or cannot be, in the engine's present generation: each is considered once. Pure."""

from __future__ import annotations

from typing import Final

HEADS_MAX: Final = 4096


class Lessons:
    """Owner: whoever teaches."""

    def __init__(self) -> None:
        self._heads: set[bytes] = set()
        self._generation = -1

    def is_due(self, head: bytes, planned: int, generation: int) -> bool:
        """Whether ``head`` is to be considered now; then it is not again. ``planned`` is the generation in which it was
        planned: what was planned before the present ``generation`` may be another version's by now."""
        if generation != self._generation:
            self._generation = generation
            self._heads.clear()
        if planned != generation or head in self._heads or len(self._heads) >= HEADS_MAX:
            return False
        self._heads.add(head)
        return True
