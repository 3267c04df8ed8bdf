"""A table of commands: finds the one that was asked for, loads only its module, turns failures into one sentence.

Start-up is part of the manners of a command line, so nothing is imported before it is known to be needed. A module of
a command has ``add_arguments(parser)`` and ``run(arguments)``; one of a group of commands has ``TABLE``. What one
argument leaves open and another one says, functions settle that are its parser's default for ``settle``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from keyword import iskeyword
from typing import cast

from appliance import __version__
from appliance.cli.failure import EXIT_HELP, CommandFailed, Exit

Command = Callable[[argparse.Namespace], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTable:
    """Commands by name with what they do, as ``program NAME``. Their modules are in ``package`` (with an underscore
    after a name that Python keeps for itself), or where ``groups`` says for those that are tables themselves."""

    program: str
    about: str
    package: str
    commands: Mapping[str, str]
    groups: Mapping[str, str]

    def run(self, words: Sequence[str]) -> int:
        """Run one command; gives its exit status."""
        if not words or words[0] not in self.commands:
            return self._no_command(words)
        name = words[0]
        if name in self.groups:
            table: CommandTable = import_module(self.groups[name]).TABLE
            return table.run(words[1:])
        try:
            status = self._run(name, words[1:])
            sys.stdout.flush()
            return status
        except CommandFailed as failure:
            print(f"{self.program} {name}: {failure}", file=sys.stderr)
            return failure.status
        except KeyboardInterrupt:
            return Exit.INTERRUPTED
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return Exit.OK

    def _run(self, name: str, words: Sequence[str]) -> int:
        module = import_module(f"{self.package}.{name}{'_' * iskeyword(name)}")
        parser = argparse.ArgumentParser(
            prog=f"{self.program} {name}",
            description=module.__doc__,
            epilog=EXIT_HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,  # '--timeout' of one command is in seconds, '--timeout-ms' of another is not
        )
        module.add_arguments(parser)
        arguments = parser.parse_args(words)
        for settle in vars(arguments).pop("settle", ()):
            settle(parser, arguments)
        return cast(Command, module.run)(arguments)

    def _no_command(self, words: Sequence[str]) -> int:
        width = max(map(len, self.commands))
        listing = "\n".join(f"  {name:{width}}  {text}" for name, text in self.commands.items())
        parser = argparse.ArgumentParser(
            prog=self.program,
            usage=f"{self.program} COMMAND ... ({self.program} COMMAND --help says more)",
            description=f"{self.about}\n\ncommands:\n{listing}",
            epilog=EXIT_HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
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
        print(f"{self.program}: '{word}' is not a command; {hint}", file=sys.stderr)
        return Exit.USAGE
