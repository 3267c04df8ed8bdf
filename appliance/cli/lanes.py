"""Lanes beside the lines of a drawing: where each value runs from who makes it down to who takes it last.

Pure. A value has a lane from the line that gives it to the last line that takes it; lanes do not move, and one that is
free is used again, the leftmost first. There are at most so many; what finds none is told by its name (``Row.unseen``).
The marks: ``├ ┼ ┤`` a value is taken and goes on, ``╰ ┴ ╯`` taken for the last time, ``┬ ╮`` made, ``│`` it passes by.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

MARK: Final = "●"
END: Final = "○"


class Line(NamedTuple):
    """What has a line of the drawing: names of values that it takes, and of those that it gives."""

    takes: Sequence[str]
    gives: Sequence[str]
    mark: str = MARK


class Row(NamedTuple):
    """A line's lanes, the lanes below it, and the values that it takes or gives and that have no lane."""

    text: str
    below: str
    unseen: tuple[str, ...] = ()


class Lanes:
    """Owner: who draws one graph, from its first line to its last."""

    def __init__(self, last_uses: Mapping[str, int], most: int) -> None:
        """``last_uses``: the number of the line that takes a value last, for all that are taken; ``most`` lanes."""
        self._last_uses = last_uses
        self._most = most
        self._values: list[str | None] = []

    def rows(self, lines: Iterable[Line]) -> Iterator[Row]:
        """Each line in turn."""
        for number, line in enumerate(lines):
            yield self._row(number, line)

    def _row(self, number: int, line: Line) -> Row:
        before = list(self._values)
        taken = [before.index(name) for name in dict.fromkeys(line.takes) if name in before]
        unseen = [name for name in line.takes if name not in before]
        ending = [lane for lane in taken if self._last_uses.get(before[lane] or "", -1) <= number]
        for lane in ending:
            self._values[lane] = None
        wanted = [name for name in dict.fromkeys(line.gives) if self._last_uses.get(name, -1) > number]
        mark = min(ending) if ending else self._free()
        given: list[int] = []
        for name in wanted:
            lane = mark if name is wanted[0] else self._free(ending)
            if lane >= self._most:
                unseen.append(name)
                continue
            self._set(lane, name)
            given.append(lane)
        self._trim()
        text = _drawn(line.mark, min(mark, self._most), before, taken, set(ending), set(given))
        return Row(text, _passing(self._values), tuple(unseen))

    def _free(self, but: Collection[int] = ()) -> int:
        """A lane that is free, or the one after all of them, ``but`` none of these."""
        free = (lane for lane, name in enumerate(self._values) if name is None and lane not in but)
        return next(free, len(self._values))

    def _set(self, lane: int, name: str) -> None:
        self._values += [None] * (lane + 1 - len(self._values))
        self._values[lane] = name

    def _trim(self) -> None:
        while self._values and self._values[-1] is None:
            self._values.pop()


def _passing(values: Sequence[str | None]) -> str:
    return "".join("  " if value is None else "│ " for value in values).rstrip()


def _drawn(
    mark: str, at: int, before: Sequence[str | None], taken: Sequence[int], ending: set[int], given: set[int]
) -> str:
    """One line: the mark, what comes to it and what leaves it on both sides, and what passes by."""
    touched = [at, *taken, *given]
    low, high = min(touched), max(touched)
    cells: list[str] = []
    for lane in range(max(len(before), high + 1)):
        alive = lane < len(before) and before[lane] is not None
        within = low <= lane <= high
        if lane == at:
            cell = mark
        elif lane in taken or lane in given:
            comes, goes = lane in taken, lane in given or (lane in taken and lane not in ending)
            cell = _joint(comes, goes, leftmost=lane == low, rightmost=lane == high)
        elif alive:
            cell = "│"
        else:
            cell = "─" if within else " "
        cells.append(cell + ("─" if low <= lane < high else " "))
    return "".join(cells).rstrip()


def _joint(comes: bool, goes: bool, *, leftmost: bool, rightmost: bool) -> str:
    """Where a lane meets the line: it ``comes`` from above and ``goes`` on below."""
    column = 0 if leftmost else 2 if rightmost else 1
    if comes and goes:
        return "├┼┤"[column]
    return "╰┴╯"[column] if comes else "╭┬╮"[column]
