"""Numbers on the command line, within bounds: what is none is told in the words of people, not as Python calls it."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def say_numbers(parser: argparse.ArgumentParser) -> None:
    """Have ``parser`` tell so of each argument whose type is ``int`` or ``float``."""
    parser.register("type", int, whole)
    parser.register("type", float, number)


def whole(text: str) -> int:
    """The whole number that ``text`` is. Raises ArgumentTypeError."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number") from None


def number(text: str, kind: str = "number") -> float:
    """The number that ``text`` is. Raises ArgumentTypeError, which says what ``kind`` it should be."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no {kind}") from None


def natural(smallest: int, largest: int | None = None) -> Callable[[str], int]:
    """The type of an option that takes a whole number of at least ``smallest``, and at most ``largest`` where there is
    such a bound."""

    def read(text: str) -> int:
        value = whole(text)
        if largest is not None and not smallest <= value <= largest:
            raise argparse.ArgumentTypeError(f"must be from {smallest} to {largest}")
        if value < smallest:
            raise argparse.ArgumentTypeError(f"must be at least {smallest}")
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
        raise argparse.ArgumentTypeError(f"'{text}' is no version; give 1 to {INT64_MAX}")
    return int(text)
