"""A table of commands: finds the one that was asked for, loads only its module, turns failures into one sentence.

A module that is a command has ``add_arguments(parser)`` and ``run(arguments)``, and its docstring is what ``--help``
says; one of several commands has a ``Command`` for each. What one argument leaves open and another one says, functions
settle that are its parser's default for ``settle``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import NamedTuple

from appliance import __version__
from appliance.cli.failure import JUDGES, CommandFailed, Exit, exit_help, printable
from appliance.cli.parser import Parser
from appliance.cli.terminal import print_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command: what its help says of it, how its arguments are declared, what it does for its exit status."""

    about: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


class Entry(NamedTuple):
    """A line of a table: what is said of the command, and its place, ``MODULE`` or ``MODULE:NAME``, or the table of the
    commands below it; ``exits`` are the exit statuses that it may give besides those that any command may."""

    text: str
    place: str | CommandTable
    exits: frozenset[Exit] = JUDGES

    def statuses(self) -> frozenset[Exit]:
        """See ``exits``; of a table those of all its commands."""
        return self.place.statuses() if isinstance(self.place, CommandTable) else self.exits

    def load(self) -> Command:
        """The command, from its module."""
        assert isinstance(self.place, str)
        name, _, attribute = self.place.partition(":")
        module = import_module(name)
        if not attribute:
            return Command(about=module.__doc__ or "", add_arguments=module.add_arguments, run=module.run)
        command = getattr(module, attribute)
        assert isinstance(command, Command)
        return command


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTable:
    """Commands by name, as ``program NAME``; ``alone`` is what ``program`` does without a name."""

    program: str
    about: str
    commands: Mapping[str, Entry]
    alone: Entry | None = None

    def statuses(self) -> frozenset[Exit]:
        """The exit statuses that one or the other of the commands may give."""
        entries = (*self.commands.values(), *([self.alone] if self.alone else []))
        return frozenset().union(*(entry.statuses() for entry in entries))

    def run(self, words: Sequence[str]) -> int:
        """Run one command; gives its exit status."""
        if self.alone is not None and (not words or words[0].startswith("-")):
            return self._ended(self.program, self.alone, words)
        if not words or words[0] not in self.commands:
            return self._no_command(words)
        name = words[0]
        entry = self.commands[name]
        if isinstance(entry.place, CommandTable):
            return entry.place.run(words[1:])
        return self._ended(f"{self.program} {name}", entry, words[1:])

    def _ended(self, program: str, entry: Entry, words: Sequence[str]) -> int:
        try:
            status = _run(program, entry, words)
            sys.stdout.flush()
            return status
        except CommandFailed as failure:
            # Each line of a list is to be told from the next.
            below = "  " if "\n" in str(failure) else ""
            print_text(f"{program}: {failure}", sys.stderr, below=below)
            return failure.status
        except KeyboardInterrupt:
            return Exit.INTERRUPTED
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return Exit.OK

    def _no_command(self, words: Sequence[str]) -> int:
        width = max(map(len, self.commands))
        listing = "\n".join(f"  {name:{width}}  {entry.text}" for name, entry in self.commands.items())
        parser = Parser(
            prog=self.program,
            usage=f"{self.program} COMMAND ... (COMMAND --help says more)",
            description=f"{self.about}\n\ncommands:\n{listing}",
            epilog=exit_help(self.statuses()),
        )
        parser.add_argument("--version", action="version", version=f"appliance {__version__}")
        if not words:
            parser.print_help()
            return Exit.USAGE
        parser.parse_known_args([word for word in words if word.startswith("-")])
        return self._unknown(words[0])

    def _unknown(self, word: str) -> int:
        near = get_close_matches(word, self.commands, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"the commands are {', '.join(self.commands)}"
        print(f"{self.program}: '{printable(word)}' is not a command; {hint}", file=sys.stderr)
        return Exit.USAGE


def _run(program: str, entry: Entry, words: Sequence[str]) -> int:
    command = entry.load()
    parser = Parser(prog=program, description=command.about, epilog=exit_help(entry.exits))
    command.add_arguments(parser)
    arguments = parser.parse_args(words)
    for settle in vars(arguments).pop("settle", ()):
        settle(parser, arguments)
    return command.run(arguments)
