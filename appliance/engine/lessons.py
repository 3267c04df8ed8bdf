"""Which heads a door was taught, or cannot be, in the engine's present generation: each is considered once, until
its version is forgotten. Pure."""

from __future__ import annotations

from typing import Final

HEADS_MAX: Final = 4096


class Lessons:
    """Owner: whoever teaches."""

    def __init__(self) -> None:
        self._heads: dict[bytes, int] = {}
        self._generation = -1

    def is_due(self, head: bytes, planned: int, generation: int, epoch: int) -> bool:
        """Whether ``head`` is to be considered now; then it is not again. ``planned`` is the generation in which it was
        planned: what was planned before the present ``generation`` may be another version's by now. ``epoch`` counts
        how often what was taught of its version was forgotten."""
        if generation != self._generation:
            self._generation = generation
            self._heads.clear()
        known = self._heads.get(head)
        if planned != generation or known == epoch or (known is None and len(self._heads) >= HEADS_MAX):
            return False
        self._heads[head] = epoch
        return True
