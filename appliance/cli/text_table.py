"""A table of short cells beside names and texts that may be long, for screens of any width: nothing is ever cut off.

Where a row does not fit, the columns that matter least leave first. A name that is longer than its column stands on a
line of its own above its row, and so does the text at a row's end below it, with its title, or that of one row where a
word of it would be broken beside the row. Only where lines are counted rows are left out, and notes below the table
shortened; both is said.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

GAP: Final = 1
PIPE_CELLS: Final = 1000
NAME_CELLS: Final = 24
"""What the first column gets, if its cells are so long, as long as another column may leave for it."""
NOTE_LINES: Final = 2
"""Of what is said of a row below the table, where lines are counted."""
DOTS: Final = " ..."
TAIL_CELLS: Final = 32
"""What the text at the end gets at least to stand on its row."""


def output() -> Console:
    """Standard output: as wide as the terminal, or, for a pipe or a file, as wide as rows are, for ``grep`` and kin."""
    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=PIPE_CELLS if wide else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """``leaves``: columns with a higher one leave sooner when there is no room; with 0 they stay."""

    title: str
    left: bool = False
    leaves: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """To be printed by rich. The first column is for names; a row may have a text at its end (``tail`` is its title),
    and ``notes``, which stand below the table. ``lines``: at most so many, those of notes counted, with a word about
    rows that are left out; a note has NOTE_LINES at most then."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Text]]
    notes: Sequence[Sequence[Text]] = ()
    tail: str = ""
    lines: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """See rich's console protocol."""
        yield from self.texts(options.max_width)

    def texts(self, width: int) -> Iterator[Text]:
        """Each is one line of a screen of ``width`` cells."""
        shown, widths = self._fitted(width)
        head = [Text(self.columns[index].title, "bold") for index in shown]
        left = width - sum(widths) - GAP * len(widths)
        beside = bool(self.tail) and left >= min(self._tail_cells(), TAIL_CELLS)
        titles = _joined([*head, Text(self.tail, "bold")] if beside else head, widths, self._left(shown))
        left_lines = sys.maxsize if self.lines is None else self.lines
        above = wrapped(titles, width)
        if self.tail and not beside and any(self._tail_of(row) for row in self.rows):
            above += _below(Text(self.tail, "bold"), width)
        yield from (above := above[:left_lines])
        left_lines -= len(above)
        below: list[Text] = []
        for number, row in enumerate(self.rows):
            lines = list(self._lines(row, shown, widths, width, beside))
            rest = len(self.rows) - number
            room = left_lines - len(lines) - (rest > 1)
            notes = self._notes(number, width)
            if number == 0:
                notes = notes[: max(room, 0)]
            if room < len(notes):
                if left_lines:
                    yield Text(f"... {rest} more", style="dim")
                break
            left_lines -= len(lines) + len(notes)
            yield from lines
            below += notes
        yield from below

    def _notes(self, number: int, width: int) -> list[Text]:
        """Lines of what is said of a row below the table; what is cut off of them ends with dots."""
        lines: list[Text] = []
        for note in self.notes[number] if self.notes else ():
            whole = wrapped(note, width)
            if self.lines is not None and len(whole) > NOTE_LINES:
                whole = whole[:NOTE_LINES]
                whole[-1].truncate(width - len(DOTS))
                whole[-1].append(DOTS)
            lines += whole
        return lines

    def _fitted(self, width: int) -> tuple[list[int], list[int]]:
        """Columns that there is room for, and the cells of each."""
        widest = [
            max([cell_len(column.title), *(row[index].cell_len for row in self.rows)])
            for index, column in enumerate(self.columns)
        ]
        name = min(widest[0], NAME_CELLS)
        shown = list(range(len(self.columns)))
        while sum(widest[index] + GAP for index in shown[1:]) + name > width:
            least = max(shown, key=lambda index: self.columns[index].leaves)
            if not self.columns[least].leaves:
                break
            shown.remove(least)
        others = sum(widest[index] + GAP for index in shown[1:])
        first = max(min(widest[0], width - others), cell_len(self.columns[0].title))
        if others + first > width:
            first = (
                name  # such rows go on in the next line as it is: names then stand at the beginning of theirs
            )
        return shown, [first, *(widest[index] for index in shown[1:])]

    def _tail_cells(self) -> int:
        return max([cell_len(self.tail), *(self._tail_of(row).cell_len for row in self.rows)])

    def _tail_of(self, row: Sequence[Text]) -> Text:
        return row[len(self.columns)] if len(row) > len(self.columns) else Text()

    def _left(self, shown: Sequence[int]) -> list[bool]:
        return [self.columns[index].left for index in shown]

    def _lines(
        self, row: Sequence[Text], shown: Sequence[int], widths: Sequence[int], width: int, beside: bool
    ) -> Iterator[Text]:
        cells = [row[index] for index in shown]
        if cells[0].cell_len > widths[0]:
            yield from wrapped(cells[0], width)
            cells[0] = Text()
        tail = self._tail_of(row)
        used = sum(widths) + GAP * len(widths)
        if not beside or _longest_word(tail) > width - used:
            yield from wrapped(_joined(cells, widths, self._left(shown)), width)
            if tail:
                yield from _below(tail, width)
            return
        first, *more = wrapped(tail, width - used) or [Text()]
        yield from wrapped(_joined([*cells, first], widths, self._left(shown)), width)
        yield from (Text(" " * used) + line for line in more)


def _joined(cells: Sequence[Text], widths: Sequence[int], left: Sequence[bool]) -> Text:
    """One line: padded cells, and what follows them as it is."""
    line = Text(no_wrap=False, overflow="fold")
    for cell, width, at_left in zip(cells, widths, left, strict=False):
        padding = " " * max(width - cell.cell_len, 0)
        line += (cell + Text(padding) if at_left else Text(padding) + cell) + Text(" " * GAP)
    for cell in cells[len(widths) :]:
        line += cell
    line.rstrip()
    return line


def _below(tail: Text, width: int) -> list[Text]:
    """Lines below a row, set in."""
    return [Text("  ") + line for line in wrapped(tail, max(width - 2, 1))]


def _longest_word(text: Text) -> int:
    return max(map(cell_len, text.plain.split()), default=0)


def wrapped(text: Text, width: int) -> list[Text]:
    """Lines of at most ``width`` cells; words that are longer go on in the next line."""
    return list(text.wrap(Console(width=width), width, overflow="fold"))
