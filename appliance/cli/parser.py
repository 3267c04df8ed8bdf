"""The parser of a command line: whatever is wrong with a word of it is told on one line, in the words of people.

What a path leads to is not looked at here: the command that opens it tells what is wrong there.
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any, Final, NoReturn

from appliance.cli.failure import printable
from appliance.cli.help_text import HelpFormatter
from appliance.cli.numbers import number, shown, whole

NAME_BYTES_MAX: Final = 255
PATH_BYTES_MAX: Final = 4095
"""Linux has no longer ones."""
FILE: Final = re.compile("(.*=)?@", re.DOTALL)
"""Before the path of a file in the place of a text, which may have any bytes."""


class Parser(argparse.ArgumentParser):
    """As argparse has it, but for what it says of words that are no number or no path, and of those that would break
    its line. No option is shortened: '--timeout' of one command is in seconds, '--timeout-ms' of another is not."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": HelpFormatter, "allow_abbrev": False, **settings})
        self.register("type", None, text)
        self.register("type", int, whole)
        self.register("type", float, number)
        self.register("type", Path, path)

    def error(self, message: str) -> NoReturn:
        """Tell it and end."""
        super().error(printable(message))


def text(said: str) -> str:
    """What was said, which names of models and the like can be. Raises ArgumentTypeError."""
    try:
        said.encode()
    except UnicodeEncodeError:
        if not FILE.match(said):
            raise argparse.ArgumentTypeError(f"{shown(said)} is no text: it is not UTF-8") from None
    return said


def path(said: str) -> Path:
    """The path that was said. Raises ArgumentTypeError."""
    if not said:
        raise argparse.ArgumentTypeError("is empty; give a path")
    data = os.fsencode(said)
    if len(data) > PATH_BYTES_MAX or max(map(len, data.split(b"/"))) > NAME_BYTES_MAX:
        raise argparse.ArgumentTypeError(f"{shown(said)} is longer than a path may be")
    return Path(said)
