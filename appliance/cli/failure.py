"""How a command ends: exit statuses, and the failure that carries one."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit statuses, the same for every command."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


EXIT_HELP = """exit status:
  0    it worked
  1    the server refused the request, or the checked file has problems
  2    the command line, a file or the configuration is wrong
  3    no server answers at that address
  130  interrupted
"""


class CommandFailed(Exception):
    """A command cannot go on; the text is one sentence for the person who typed it."""

    def __init__(self, text: str, status: Exit = Exit.USAGE) -> None:
        super().__init__(text)
        self.status = status
