"""A yes or no, as a model's parameters have it: in words, or in the digits that Triton's parameters have."""

from __future__ import annotations

from typing import Final

_TRUE: Final = frozenset(("true", "1"))
_FALSE: Final = frozenset(("false", "0"))
SHOWN_MAX: Final = 40


def is_true(said: str) -> bool:
    """Whether ``said``, which was checked, is a yes; "" is none."""
    return said in _TRUE


def flag_problem(key: str, said: str) -> str:
    """What is wrong with ``said`` as the value of ``key``; "" when nothing is."""
    if said in _TRUE | _FALSE:
        return ""
    return f"{key} must be 'true' or 'false' ('1' or '0'), not '{said[:SHOWN_MAX]}'"
