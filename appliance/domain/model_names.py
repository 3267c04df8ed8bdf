"""What is said of a name that no model has."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Final

SHOWN: Final = 10


def no_such_model(name: str, known: Collection[str]) -> str:
    """Say that there is no model ``name``, and which of the ``known`` ones may be meant, nearest first."""
    near = get_close_matches(name, known, n=3, cutoff=0.6)
    if near:
        advice = f"did you mean {_quoted(near)}?"
    elif known:
        more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
        advice = f"there are {_quoted(sorted(known)[:SHOWN])}{more}"
    else:
        advice = "there are none"
    return f"no such model: '{name}'; {advice}"


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
