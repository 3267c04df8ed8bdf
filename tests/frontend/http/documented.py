"""Reads the tables of our own documentation, so that tests hold the documents to the code."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"


def table_rows(document: str, heading: str) -> list[list[str]]:
    """Cells of the table rows below ``heading`` (up to the next heading), without the head of the table."""
    text = (DOCS / document).read_text("utf-8")
    section = text.split(f"{heading}\n", 1)[1]
    section = re.split(r"^#", section, maxsplit=1, flags=re.MULTILINE)[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def code_words(cell: str) -> set[str]:
    """What stands in backticks in a table cell."""
    return set(re.findall(r"`([^`]+)`", cell))
