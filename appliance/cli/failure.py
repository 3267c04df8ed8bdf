"""How a command ends: exit statuses, and the failure that carries one.

Names of models, tensors and files, and what a server says, may hold any character. Showing one keeps it on its
line, and off the terminal's controls, with ``printable``; the text of a failure is kept so here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final


class Exit(IntEnum):
    """Exit statuses; each means the same wherever it is given. Which ones a command gives, its ``Entry`` says."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    STOPPED = 4
    OVERDUE = 5
    BROKEN = 70
    INTERRUPTED = 130


ALWAYS: Final = frozenset({Exit.OK, Exit.USAGE, Exit.INTERRUPTED})
"""What any command may give."""
NOTHING_ELSE: Final = frozenset[Exit]()
JUDGES: Final = frozenset({Exit.REFUSED})
"""What a command gives besides that looks at something, or changes it, on this machine."""
ASKS: Final = JUDGES | {Exit.UNREACHABLE}
"""And one that has somebody else answer."""
_MEANINGS: Final[Mapping[Exit, str]] = MappingProxyType(
    {
        Exit.OK: "it worked",
        Exit.REFUSED: "it was refused or did not come about, or what was checked has problems",
        Exit.USAGE: "the command line, a file or the configuration is wrong",
        Exit.UNREACHABLE: "no server answers at that address, or not the one that is meant",
        Exit.STOPPED: "'fleet want --wait': a device refused the version, went back, or is held; "
        "'fleet rollouts --wait': it halted, was taken back or was stopped; "
        "'fleet compare': what is demanded is missed",
        Exit.OVERDUE: "'fleet want --wait', 'fleet rollouts --wait': it was not done within the time; "
        "'fleet compare': too little is known of what is demanded",
        Exit.BROKEN: "a part of the server failed, and only a new start helps",
        Exit.INTERRUPTED: "interrupted",
    }
)


def exit_help(statuses: Iterable[Exit]) -> str:
    """What help says of the ``statuses`` that a command may give, and of those that any may."""
    lines = (f"  {status:<3}  {_MEANINGS[status]}\n" for status in sorted({*statuses, *ALWAYS}))
    return f"exit status:\n{''.join(lines)}"


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
