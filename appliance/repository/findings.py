"""Where a value stands in a file, and what was found wrong there: collected, so that all of it is told at once.

Files are hostile: of each model so much is kept and told as a person reads, and how much more there was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from appliance.domain.errors import Problem

PROBLEMS_MAX: Final = 200
"""Of one model, and as many notes."""
TEXT_CHARACTERS_MAX: Final = 1_000
PLACE_CHARACTERS_MAX: Final = 300
NAMES_MAX: Final = 20
NAME_CHARACTERS_MAX: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A key in a file. ``file`` is relative to the repository and may end in ``:line:column``."""

    file: str
    key: str = ""

    def problem(self, text: str) -> Problem:
        """A problem at this place."""
        return Problem(
            file=_cut(self.file, PLACE_CHARACTERS_MAX),
            key=_cut(self.key, PLACE_CHARACTERS_MAX),
            text=_cut(text, TEXT_CHARACTERS_MAX),
        )


class Findings:
    """Problems, and notes on what is accepted but has no effect. One owner: the reader of one model. ``inherited`` are
    problems that were told of before; ``room`` is how many more are kept, at least one."""

    def __init__(self, inherited: Iterable[Problem] = (), room: int = PROBLEMS_MAX) -> None:
        self._inherited = tuple(inherited)
        self._problems = _Kept(max(room, 1), "problem")
        self._notes = _Kept(PROBLEMS_MAX, "note")

    def problem(self, place: Place, text: str) -> None:
        """Something that must be changed before the model can be served."""
        self._problems.add(place.problem(text))

    def note(self, place: Place, text: str) -> None:
        """Something the operator should know that stops nothing."""
        self._notes.add(place.problem(text))

    @property
    def full(self) -> bool:
        """Whether further problems are only counted."""
        return self._problems.full

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All problems that are kept, each once, in the order they were found; the last one says how many are not."""
        return tuple(dict.fromkeys((*self._inherited, *self._problems.told())))

    @property
    def notes(self) -> tuple[Problem, ...]:
        """All notes that are kept, as the problems."""
        return tuple(self._notes.told())


class _Kept:
    """The first so many of a kind, each once."""

    def __init__(self, room: int, kind: str) -> None:
        self._room = room
        self._kind = kind
        self._first: dict[Problem, None] = {}
        self._more = 0

    @property
    def full(self) -> bool:
        return len(self._first) >= self._room

    def add(self, found: Problem) -> None:
        if not self.full:
            self._first[found] = None
        elif found not in self._first:
            self._more += 1

    def told(self) -> Iterable[Problem]:
        yield from self._first
        if self._more:
            file = next(iter(self._first)).file.partition(":")[0]
            plural = "s" if self._more > 1 else ""
            yield Problem(
                file=file, key="", text=f"and {self._more} more {self._kind}{plural}; only the first are told"
            )


def shown_names(names: Iterable[str], count: int) -> str:
    """The first of ``count`` names, the beginning of each, in quotes; "none" when there are none."""
    shown = [f"'{_cut(name, NAME_CHARACTERS_MAX)}'" for name in islice(names, NAMES_MAX)]
    if count > len(shown):
        shown.append(f"{count - len(shown)} more")
    return ", ".join(shown) or "none"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
