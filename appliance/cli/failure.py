"""How a command ends: exit statuses, and the failure that carries one.

Names of models, tensors and files, and what a server says, may hold any character. Showing one keeps it on its
line, and off the terminal's controls, with ``printable``; the text of a failure is kept so here.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class Exit(IntEnum):
    """Exit statuses, the same for every command."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    STOPPED = 4
    OVERDUE = 5
    INTERRUPTED = 130


EXIT_HELP = """exit status:
  0    it worked
  1    the server refused the request, or the checked file has problems
  2    the command line, a file or the configuration is wrong
  3    no server answers at that address
  4    'fleet want --wait': a device refused the version, went back, or is held
  5    'fleet want --wait': not every device served it within the time
  130  interrupted
"""


class CommandFailed(Exception):
    """A command cannot go on; the text is one sentence for the person at the terminal, ``lines`` are a list below
    it."""

    def __init__(self, text: str, status: Exit = Exit.USAGE, *, lines: Iterable[str] = ()) -> None:
        super().__init__("\n".join(printable(line) for line in (text, *lines)))
        self.status = status


def printable(text: str) -> str:
    """``text`` on one line: control characters and others that show nothing become escapes such as \\n."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
