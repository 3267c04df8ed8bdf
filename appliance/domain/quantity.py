"""How many of something there are, in words for people."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """``number`` and its noun, which gets an s unless it is one."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def bytes_text(count: int) -> str:
    """``count`` bytes in the unit that a person would say."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
