"""What a person types for an option, as a value: seconds within bounds, the number of a version."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from appliance.domain.manifest import INT64_MAX


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


def version_number(text: str) -> int:
    """``text`` as the number of a version. Raises ArgumentTypeError for what cannot be one."""
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and 1 <= int(text) <= INT64_MAX):
        raise argparse.ArgumentTypeError(f"'{text}' is no version; give 1 to {INT64_MAX}")
    return int(text)
