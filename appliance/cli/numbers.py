"""Numbers on the command line, within bounds: what is none is told in the words of people, not as Python calls it.

What Python takes for a number besides, such as 1_000 or digits of other scripts, is more often a slip than meant.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from math import isfinite
from typing import Final

WHOLE: Final = re.compile(r"[+-]?[0-9]+")
NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
LARGEST: Final = 2**31 - 1
"""Of whole numbers that have no bound of their own."""
DIGITS_MAX: Final = 300
"""Python reads no whole number of thousands."""
SHOWN: Final = 40
"""Characters of a wrong word that are shown."""
DAY_MS: Final = 86_400_000
TOKEN_HOURS_MAX: Final = 24 * 366
"""How long a token may be good: a controller refuses more."""


def whole(text: str) -> int:
    """The whole number that ``text`` is. Raises ArgumentTypeError."""
    if not WHOLE.fullmatch(text) or len(text) > DIGITS_MAX:
        raise argparse.ArgumentTypeError(f"{shown(text)} is no whole number")
    return int(text)


def number(text: str, kind: str = "number") -> float:
    """The number that ``text`` is. Raises ArgumentTypeError, which says what ``kind`` it should be."""
    if not NUMBER.fullmatch(text) or not isfinite(value := float(text)):
        raise argparse.ArgumentTypeError(f"{shown(text)} is no {kind}")
    return value


def nonnegative(text: str) -> float:
    """The number that ``text`` is, 0 or more. Raises ArgumentTypeError."""
    if (value := number(text)) < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value


def shown(text: str) -> str:
    """``text`` as it is quoted to who typed it."""
    return f"'{text}'" if len(text) <= SHOWN else f"'{text[:SHOWN]}...'"


def natural(smallest: int, largest: int | None = None) -> Callable[[str], int]:
    """The type of an option that takes a whole number of at least ``smallest``, and at most ``largest`` where it has
    such a bound, or LARGEST."""

    def read(text: str) -> int:
        value = whole(text)
        if largest is not None and not smallest <= value <= largest:
            raise argparse.ArgumentTypeError(f"must be from {smallest} to {largest}")
        if value < smallest:
            raise argparse.ArgumentTypeError(f"must be at least {smallest}")
        if largest is None and value > LARGEST:
            raise argparse.ArgumentTypeError(f"must be at most {LARGEST}")
        return value

    return read


def seconds(least: float, most: float) -> Callable[[str], float]:
    """The type of an option that takes ``least`` to ``most`` seconds; what is none is a usage error that says so."""

    def read(text: str) -> float:
        value = number(text, "number of seconds")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be from {least:g} to {most:g} seconds")
        return value

    return read


def version_number(text: str) -> int:
    """``text`` as the number of a version. Raises ArgumentTypeError for what cannot be one."""
    from appliance.domain.manifest import INT64_MAX  # every command is begun without it

    if not (text.isascii() and text.isdecimal() and len(text) < 20 and 1 <= int(text) <= INT64_MAX):
        raise argparse.ArgumentTypeError(f"{shown(text)} is no version; give 1 to {INT64_MAX}")
    return int(text)
