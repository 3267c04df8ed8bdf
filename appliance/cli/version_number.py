"""A version's number as the command line takes it."""

from __future__ import annotations

import argparse

from appliance.domain.manifest import INT64_MAX


def version_number(text: str) -> int:
    """``text`` as the number of a version. Raises ArgumentTypeError for what cannot be one."""
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and 1 <= int(text) <= INT64_MAX):
        raise argparse.ArgumentTypeError(f"'{text}' is no version; give 1 to {INT64_MAX}")
    return int(text)
