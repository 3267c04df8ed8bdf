"""Where a value stands in a file, and what was found wrong there: collected, so that all of it is told at
once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from appliance.errors import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A key in a file. ``file`` is relative to the repository and may end in ``:line:column``."""

    file: str
    key: str = ""

    def problem(self, text: str) -> Problem:
        """A problem at this place."""
        return Problem(file=self.file, key=self.key, text=text)


class Findings:
    """Problems, and notes on what is accepted but has no effect. Owned by whoever reads one model."""

    def __init__(self, problems: Iterable[Problem] = ()) -> None:
        self._problems = list(problems)
        self._notes: list[Problem] = []

    def problem(self, place: Place, text: str) -> None:
        """Something that must be changed before the model can be served."""
        self._problems.append(place.problem(text))

    def note(self, place: Place, text: str) -> None:
        """Something the operator should know that stops nothing."""
        self._notes.append(place.problem(text))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All problems, each once, in the order they were found."""
        return tuple(dict.fromkeys(self._problems))

    @property
    def notes(self) -> tuple[Problem, ...]:
        """All notes, each once, in the order they were found."""
        return tuple(dict.fromkeys(self._notes))
