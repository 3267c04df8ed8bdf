"""Names of models as people type them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Final

from appliance.cli.failure import CommandFailed, Exit

SHOWN: Final = 10


def check_known(asked: Sequence[str], known: Collection[str]) -> None:
    """Raise CommandFailed for the first of the names ``asked`` for that is none of the ``known`` ones."""
    for name in asked:
        if name not in known:
            raise unknown_model(name, known)


def unknown_model(name: str, known: Collection[str]) -> CommandFailed:
    """Say that there is no model ``name``, and which of the ``known`` ones may be meant."""
    near = get_close_matches(name, known, n=3, cutoff=0.6)
    if near:
        advice = f"did you mean {_quoted(near)}?"
    elif known:
        more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
        advice = f"there are {_quoted(sorted(known)[:SHOWN])}{more}"
    else:
        advice = "there are none"
    return CommandFailed(f"no such model: '{name}'; {advice}", Exit.REFUSED)


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
