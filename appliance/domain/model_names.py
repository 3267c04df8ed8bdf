"""What is said of a name that no model has."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Final

SHOWN: Final = 10


def no_such_model(name: str, known: Collection[str]) -> str:
    """Say that there is no model ``name``, and which of the ``known`` ones may be meant."""
    return f"no such model: '{name}'; {which_may_be_meant(name, known)}"


def which_may_be_meant(name: str, known: Collection[str]) -> str:
    """Say which of the ``known`` models may be meant by ``name``, nearest first."""
    near = get_close_matches(name, known, n=3, cutoff=0.6)
    if near:
        return f"did you mean {_quoted(near)}?"
    if known:
        more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
        return f"there are {_quoted(sorted(known)[:SHOWN])}{more}"
    return "there are none"


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
