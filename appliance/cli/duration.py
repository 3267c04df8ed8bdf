"""How long something may take, as a person types it: a number of seconds within bounds."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def seconds(least: float, most: float) -> Callable[[str], float]:
    """The type of an option that takes ``least`` to ``most`` seconds; what is none is a usage error that says so."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{text}' is no number of seconds") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be from {least:g} to {most:g} seconds")
        return value

    return read
