"""The audit log: who changed what, each line with a digest over itself and the line before, so that none can be changed
or left out unnoticed but from the end on; whoever keeps the newest digest elsewhere notices that, too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from appliance.domain.digest import digest_of

FIRST: Final = "0" * 64
"""What stands before the first line."""


class Line(NamedTuple):
    """A line: ``detail`` is JSON."""

    number: int
    at_ms: int
    who: str
    what: str
    detail: str
    digest: str


def next_line(before: Line | None, at_ms: int, who: str, what: str, detail: Mapping[str, object]) -> Line:
    """The line after ``before``."""
    text = json.dumps(detail, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    number = before.number + 1 if before else 1
    line = Line(number, at_ms, who, what, text, "")
    return line._replace(digest=_digest(line, before.digest if before else FIRST))


def first_wrong(lines: Iterable[Line]) -> int:
    """The number of the first line that does not follow from the one before; 0: all do."""
    number, digest = 0, FIRST
    for line in lines:
        if line.number != number + 1 or line.digest != _digest(line, digest):
            return number + 1
        number, digest = line.number, line.digest
    return 0


def _digest(line: Line, before: str) -> str:
    said = json.dumps([before, *line[:-1]], separators=(",", ":"), ensure_ascii=True)
    return digest_of(said.encode())
