"""How many of something there are, in words for people."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """``number`` and its noun, which gets an s unless it is one."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
