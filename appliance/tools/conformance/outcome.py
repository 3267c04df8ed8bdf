"""How a case ended, as a value and as a line between processes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether what case ``name`` demands ``holds``; ``text`` is what is wrong, or a note."""

    name: str
    demands: str
    holds: bool
    text: str = ""

    def to_line(self) -> bytes:
        """Give it as one line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"


def from_line(line: bytes) -> Outcome:
    """Read what ``to_line`` wrote."""
    return Outcome(**json.loads(line))
