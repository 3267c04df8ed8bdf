"""docs/TROUBLESHOOTING.md has each text that a person can meet, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from tests.architecture.sources import ROOT
from tests.architecture.spoken import HOLE, spoken

LETTERS = 5
"""The least of its own that an entry has: one of less would fit anything."""


@cache
def rows() -> tuple[tuple[str, str, str], ...]:
    text = (ROOT / "docs" / "TROUBLESHOOTING.md").read_text("utf-8")
    cells = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return tuple((each[0], each[1].strip(), each[2].strip()) for each in cells)


def entries() -> Iterator[str]:
    """The beginnings of texts that are told of."""
    for row in rows():
        yield from re.findall(r"`([^`]+)`", row[0])


def pattern_of(entry: str) -> re.Pattern[str]:
    """What texts with this beginning look like; what is put in may be anything. One that ends with what is put in is
    whole."""
    if entry.endswith(HOLE):
        return re.compile(re.escape(entry) + "$")
    return re.compile(".*?".join(map(re.escape, entry.split(HOLE))), re.DOTALL)


def test_each_text_is_told_of() -> None:
    told = list(map(pattern_of, entries()))
    texts = spoken()
    assert len(texts) > 500
    silent = [
        f"{place[0]}: {text}" for text, place in texts.items() if not any(each.match(text) for each in told)
    ]
    assert not silent, "\n".join(silent)


def test_no_text_is_told_of_that_nobody_says() -> None:
    texts = spoken()
    assert not [entry for entry in entries() if not any(map(pattern_of(entry).match, texts))]


def test_each_entry_has_something_of_its_own_and_says_what_to_do() -> None:
    assert len(rows()) > 80
    assert not [entry for entry in entries() if len(re.findall(r"[a-zA-Z]", entry)) < LETTERS]
    assert not [row for row in rows() if len(row[1]) < 10 or len(row[2]) < 8]
