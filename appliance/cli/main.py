"""The ``appliance`` command: finds the sub-command, loads only its module, turns failures into one sentence.

Start-up is part of the manners of a command line, so nothing is imported before it is known to be needed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType
from typing import Final, cast

from appliance import __version__
from appliance.cli.failure import EXIT_HELP, CommandFailed, Exit

COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "serve": "serve the models of a directory over gRPC and HTTP",
        "infer": "send one request to a model and show the answer",
        "status": "show what a running appliance serves",
        "top": "watch rates, latencies, queues and workers",
        "trace": "show where the time of one traced request went",
        "config": "check a configuration file, or show the one in force",
        "version": "show the version",
    }
)
Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] not in COMMANDS:
        return _no_command(words)
    name = words[0]
    try:
        status = _run(name, words[1:])
        sys.stdout.flush()
        return status
    except CommandFailed as failure:
        print(f"appliance {name}: {failure}", file=sys.stderr)
        return failure.status
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK


def _run(name: str, words: Sequence[str]) -> int:
    module = import_module(f"appliance.cli.{name}")
    parser = argparse.ArgumentParser(
        prog=f"appliance {name}",
        description=module.__doc__,
        epilog=EXIT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    return cast(Command, module.run)(parser.parse_args(words))


def _no_command(words: Sequence[str]) -> int:
    width = max(map(len, COMMANDS))
    listing = "\n".join(f"  {name:{width}}  {text}" for name, text in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="appliance",
        usage="appliance COMMAND ... (appliance COMMAND --help says more)",
        description=f"Edge inference appliance.\n\ncommands:\n{listing}",
        epilog=EXIT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"appliance {__version__}")
    if not words:
        parser.print_help()
        return Exit.USAGE
    parser.parse_known_args([word for word in words if word.startswith("-")])
    return _unknown(words[0])


def _unknown(word: str) -> int:
    near = get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"the commands are {', '.join(COMMANDS)}"
    print(f"appliance: '{word}' is not a command; {hint}", file=sys.stderr)
    return Exit.USAGE
