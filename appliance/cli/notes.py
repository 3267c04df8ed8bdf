"""What is said below a table, the most urgent first: whole, or in as many lines as a screen has for it.

There, what is long is shortened, which dots at its end say, and the last line says how many have no room at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final

from rich.console import Console
from rich.text import Text

LINES_MAX: Final = 2
"""Of each, where there is no room for all of them whole."""
DOTS: Final = " ..."


def wrapped(text: Text, width: int) -> list[Text]:
    """Lines of at most ``width`` cells; words that are longer go on in the next line."""
    if is_plain(text) and text.plain.isascii() and text.plain.isprintable():
        return [Text(line) for line in _lines(text.plain, width)]
    return list(text.wrap(_console(width), width, overflow="fold"))


def is_plain(text: Text) -> bool:
    """Whether it has no style: what rich does of such a text, Python's own texts do many times as fast."""
    return not text.spans and not text.style


def _lines(text: str, width: int) -> Iterator[str]:
    """The same of characters that are one cell each."""
    while len(text) > width:
        end = text.rfind(" ", 0, width + 1)
        if not text[: max(end, 0)].strip():
            end = width
        yield text[:end].rstrip()
        text = text[end:].lstrip()
    yield text.rstrip()


@cache
def _console(width: int) -> Console:
    return Console(width=width)


def fitted(notes: Sequence[Text], width: int, lines: int | None, rest_in: str = "") -> list[Text]:
    """Lines of ``notes``, at most ``lines`` of them when that is given; ``rest_in`` says where the others are told."""
    whole = [wrapped(note, width) for note in notes]
    if lines is None or sum(map(len, whole)) <= lines:
        return [line for note in whole for line in note]
    each_max = min(LINES_MAX, max(lines - 1, 1))
    short = [_shortened(note, width, each_max) for note in whole]
    if sum(map(len, short)) <= lines:
        return [line for note in short for line in note]
    shown: list[Text] = []
    for number, note in enumerate(short):
        rest = _rest(len(notes) - number, width, rest_in)
        after = _rest(len(notes) - number - 1, width, rest_in)
        if len(shown) + len(note) + len(after) > lines:
            return (shown + rest)[:lines]
        shown += note
    return shown


def _shortened(note: list[Text], width: int, lines: int) -> list[Text]:
    if len(note) <= lines:
        return note
    *firsts, last = note[:lines]
    last = last.copy()
    last.truncate(max(width - len(DOTS), 0))
    last.rstrip()
    return [*firsts, last.append(DOTS[-width:])]


def _rest(count: int, width: int, told_in: str) -> list[Text]:
    if not count:
        return []
    where = f" in {told_in}" if told_in else ""
    return wrapped(Text(f"... {count} more note{'s' * (count != 1)}{where}", style="dim"), width)
