"""A table of short cells beside names and texts that may be long, for screens of any width: nothing is ever cut off.

Where a row does not fit, the columns that matter least leave first. A name that is longer than its column stands on a
line of its own above its row, and so does the text at a row's end below it, with its title, or that of one row where a
word of it would be broken beside the row. Only where lines are counted rows are left out, and notes below the table
bounded; both is said.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from appliance.cli.notes import fitted, is_plain, wrapped

GAP: Final = 1
PIPE_CELLS: Final = 10_000
"""More than any text has that is told: programs get each on one line."""
NAME_CELLS: Final = 24
"""What the first column gets, if its cells are so long, as long as another column may leave for it."""
NOTES_PART: Final = 4
"""Notes may take rows one line in so many, where lines are counted."""
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
    """To be printed by rich. The first column is for names; a row may have a text at its end (``tail`` is its title).
    ``notes`` stand below the table, the most urgent first. ``lines``: at most so many, with a word about rows and about
    notes that are left out, those being told in ``notes_in``. Rows come first: notes have what they leave, or one line
    in NOTES_PART."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Text]]
    notes: Sequence[Text] = ()
    notes_in: str = ""
    tail: str = ""
    lines: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """See rich's console protocol."""
        for line in self.texts(options.max_width):
            if is_plain(line):  # a large fleet has thousands of them, and rich looks at each word of a text
                yield Segment(line.plain)
                yield Segment.line()
            else:
                yield line

    def texts(self, width: int) -> Iterator[Text]:
        """Each is one line of a screen of ``width`` cells."""
        shown, widths = self._fitted(width)
        head = [Text(self.columns[index].title, "bold") for index in shown]
        left = width - sum(widths) - GAP * len(widths)
        beside = bool(self.tail) and left >= min(self._tail_cells(), TAIL_CELLS)
        titles = _joined([*head, Text(self.tail, "bold")] if beside else head, widths, self._left(shown))
        above = wrapped(titles, width)
        if self.tail and not beside and any(self._tail_of(row) for row in self.rows):
            above += _below(Text(self.tail, "bold"), width)
        seen_most = len(self.rows) if self.lines is None else self.lines
        rows = [list(self._lines(row, shown, widths, width, beside)) for row in self.rows[:seen_most]]
        rows += [[Text()]] * (len(self.rows) - len(rows))  # no screen has room for them: they are counted
        if self.lines is None:
            yield from (*above, *(line for row in rows for line in row))
            yield from fitted(self.notes, width, None)
            return
        yield from (above := above[: self.lines])
        room = self.lines - len(above)
        yield from (seen := _first_of(rows, room - self._kept_for_notes(rows, width, room)))
        yield from fitted(self.notes, width, room - len(seen), self.notes_in)

    def _kept_for_notes(self, rows: Sequence[Sequence[Text]], width: int, room: int) -> int:
        """Of the lines below the titles."""
        left = room - sum(map(len, rows))
        kept = max(left, room // NOTES_PART, min(room // 2, 1))
        return len(fitted(self.notes, width, kept, self.notes_in))

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
        if not beside or (tail.cell_len > width - used and _longest_word(tail) > width - used):
            yield from wrapped(_joined(cells, widths, self._left(shown)), width)
            if tail:
                yield from _below(tail, width)
            return
        first, *more = wrapped(tail, width - used) or [Text()]
        yield from wrapped(_joined([*cells, first], widths, self._left(shown)), width)
        yield from (_set_in(line, used) for line in more)


def _joined(cells: Sequence[Text], widths: Sequence[int], left: Sequence[bool]) -> Text:
    """One line: padded cells, and what follows them as it is."""
    if all(map(is_plain, cells)):
        padded = []
        for cell, width, at_left in zip(cells, widths, left, strict=False):
            padding = " " * (width - cell.cell_len)
            padded.append(cell.plain + padding if at_left else padding + cell.plain)
        return Text((" " * GAP).join([*padded, *(cell.plain for cell in cells[len(widths) :])]).rstrip())
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
    return [_set_in(line, 2) for line in wrapped(tail, max(width - 2, 1))]


def _set_in(line: Text, cells: int) -> Text:
    return Text(" " * cells + line.plain) if is_plain(line) else Text(" " * cells) + line


def _longest_word(text: Text) -> int:
    return max(map(cell_len, text.plain.split()), default=0)


def _first_of(rows: Sequence[Sequence[Text]], lines: int) -> list[Text]:
    """Lines of as many rows as there is room for, and how many more there are."""
    seen: list[Text] = []
    for number, row in enumerate(rows):
        rest = len(rows) - number
        if len(seen) + len(row) + (rest > 1) > lines:
            more = Text(f"... {rest} more", style="dim")
            return [*seen, more] if lines > 0 else []
        seen += row
    return seen
