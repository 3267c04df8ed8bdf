"""Numbers on the command line: what is none is told in the words of people, and not as Python calls it."""

from __future__ import annotations

import argparse


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
