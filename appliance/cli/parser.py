"""The parser of a command line: whatever is wrong with a word of it is told on one line, in the words of people.

What a path leads to is not looked at here: the command that opens it tells what is wrong there.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, Final, NoReturn

from appliance.cli.failure import printable
from appliance.cli.help_text import HelpFormatter
from appliance.cli.numbers import number, shown, whole

NAME_BYTES_MAX: Final = 255
PATH_BYTES_MAX: Final = 4095
"""Linux has no longer ones."""


class Parser(argparse.ArgumentParser):
    """As argparse has it, but for what it says of words that are no number or no path, and of those that would break
    its line. No option is shortened: '--timeout' of one command is in seconds, '--timeout-ms' of another is not."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": HelpFormatter, "allow_abbrev": False, **settings})
        self.register("type", int, whole)
        self.register("type", float, number)
        self.register("type", Path, path)

    def error(self, message: str) -> NoReturn:
        """Tell it and end."""
        super().error(printable(message))


def path(text: str) -> Path:
    """The path that ``text`` is. Raises ArgumentTypeError."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; give a path")
    data = os.fsencode(text)
    if len(data) > PATH_BYTES_MAX or max(map(len, data.split(b"/"))) > NAME_BYTES_MAX:
        raise argparse.ArgumentTypeError(f"{shown(text)} is longer than a path may be")
    return Path(text)
