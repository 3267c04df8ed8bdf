"""How texts are set, help first of all: as wide as the screen is, and no word is broken.

In help, paragraphs are filled. A line that is set in stands by itself, as in a list, and goes on below its text.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from textwrap import fill
from typing import Final

WIDTH_MAX: Final = 118
"""Longer lines are hard to read."""
_ITEM: Final = re.compile(r" +(?:\S+(?: \S+)*  +)?")
"""Before the text of a line that is set in: a name and a gap, where it has them."""
_BLANKS: Final = re.compile(" +")


class HelpFormatter(argparse.HelpFormatter):
    """Descriptions and epilogs as above; the rest as argparse has it."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return filled(text.replace("``", "'"), min(width, WIDTH_MAX))


def folded(text: str, width: int, below: str = "") -> str:
    """Each line of ``text`` by itself; where it goes on, that begins with ``below``, or below its text where it is set
    in."""
    return "\n".join(_set(line, width, below) for line in text.splitlines())


def filled(text: str, width: int) -> str:
    """``text`` in lines of at most ``width`` characters, but for words that are longer."""
    return "\n".join(_set(part, width) for part in _parts(text.strip("\n")))


def _parts(text: str) -> Iterator[str]:
    """Paragraphs as one line each, lines that are set in, and empty ones between."""
    paragraph: list[str] = []
    for line in text.splitlines():
        if line.strip() and not line.startswith(" "):
            paragraph.append(line.strip())
            continue
        if paragraph:
            yield " ".join(paragraph)
            paragraph = []
        yield line.rstrip()
    if paragraph:
        yield " ".join(paragraph)


def _set(part: str, width: int, below: str = "") -> str:
    item = _ITEM.match(part)
    if item and item.end() > 2 * width // 3:  # two spaces within a text, or a screen too narrow for names
        item = _BLANKS.match(part)
    below = " " * item.end() if item else below
    first = item[0] if item else ""
    return fill(
        part[len(first) :],
        width,
        initial_indent=first,
        subsequent_indent=below,
        break_long_words=False,
        break_on_hyphens=False,
    )
