"""How far a build is, from phases that begin and end within one another. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WHOLE: Final = 1_000
DEEPEST: Final = 32
"""Phases within one another that are looked at."""


@dataclass(slots=True)
class _Phase:
    parent: str
    steps: int
    done: int = 0


class BuildProgress:
    """Takes what a builder says of its phases; gives thousandths that never become less. Owner: one build."""

    def __init__(self) -> None:
        self._phases: dict[str, _Phase] = {}
        self._told = 0

    def begin(self, name: str, parent: str | None, steps: int) -> None:
        """A phase of so many steps begins, within ``parent`` or by itself."""
        self._phases[name] = _Phase(parent or "", max(steps, 1))

    def step(self, name: str, number: int) -> int:
        """A step of a phase is done, counted from zero; gives how far the build is, of WHOLE."""
        if (phase := self._phases.get(name)) is not None:
            phase.done = min(number + 1, phase.steps)
            self._told = max(self._told, int(WHOLE * self._of(name)))
        return self._told

    def end(self, name: str) -> None:
        """A phase is over; that of its parent counts when that says so."""
        self._phases.pop(name, None)

    def _of(self, name: str) -> float:
        """The part of the whole that is done when ``name`` is as far as it is, by the phases around it."""
        part = 0.0
        for _ in range(DEEPEST):
            phase = self._phases.get(name)
            if phase is None:
                break
            part = min((phase.done + part) / phase.steps, 1.0)
            name = phase.parent
        return part
