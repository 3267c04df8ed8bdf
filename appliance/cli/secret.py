"""What protects a key, from a file or from the person at the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from appliance.cli.failure import CommandFailed


def secret_from(file: Path | None) -> Callable[[str], str]:
    """Gives a secret when it is told what is wanted ("pin", "password"): the first line of ``file``, or what is
    typed."""

    def ask(what: str) -> str:
        if file is not None:
            return _first_line(file)
        if not sys.stdin.isatty():
            raise CommandFailed(f"the key needs a {what}; give --secret-file, or run this at a terminal")
        from getpass import getpass

        return getpass(f"{what} of the key: ")

    return ask


def _first_line(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").partition("\n")[0]
    except (OSError, ValueError) as error:
        raise CommandFailed(f"'{file}' cannot be read: {error}") from error
