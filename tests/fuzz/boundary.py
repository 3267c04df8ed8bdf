"""A boundary that somebody else's bytes cross: what is said there, and what judges how it was taken."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

KEPT = Path(__file__).with_name("kept")
TEXT_MAX = 400_000
"""No error needs more words, however many things are wrong at once."""

Judge = Callable[[bytes], None]


class RuleBroken(AssertionError):
    """The boundary did what it must not; the text says which rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """``opened`` gives a judge, which raises for a case that breaks a rule. ``kept`` names the folder of inputs that
    every run begins with, ``examples`` is how many more a short one makes."""

    kept: str
    cases: st.SearchStrategy[bytes]
    opened: Callable[[], AbstractContextManager[Judge]]
    examples: int

    def inputs(self) -> Iterator[bytes]:
        """What was worth keeping."""
        yield from (path.read_bytes() for path in sorted((KEPT / self.kept).glob("*")))

    def keep(self, case: bytes) -> Path:
        """Keep ``case`` for all runs to come."""
        path = KEPT / self.kept / hashlib.sha256(case).hexdigest()[:16]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(case)
        return path


def check_shown(text: str) -> None:
    """Nothing in it moves a terminal's cursor, or turns the direction of what follows."""
    for each in text.split("\n"):
        if not each.isprintable():
            raise RuleBroken(f"shows {each[:300]!r}")


def check_text(error: BaseException | str) -> None:
    """An error's text is short enough to be shown, and can be."""
    text = str(error)
    if len(text) > TEXT_MAX:
        raise RuleBroken(f"an error of {len(text)} characters")
