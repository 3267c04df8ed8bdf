"""Check a configuration file, or show the configuration in force: the defaults with what a file says instead.

Checking asks this machine too, as serving does: the model directory, the log's directory and the CPUs must be there.
What 'serve' is told on its command line to serve, 'check' is told the same way.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from appliance import configuration
from appliance.cli.arguments import add_models, configuration_at, given_models
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.terminal import print_problems, print_text
from appliance.domain.errors import ConfigInvalid, ConfigUnreadable

COMMENT: Final = "# "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="check|show")
    text = "report every problem that 'serve' would have with a file here"
    check = actions.add_parser("check", help=text, description=f"{text[0].upper()}{text[1:]}.")
    _add_file(check)
    add_models(check)
    text = "print every key with its value, unit and meaning, as TOML"
    show = actions.add_parser("show", help=text, description=f"{text[0].upper()}{text[1:]}.")
    _add_file(show)
    show.add_argument("--json", action="store_true", help="print JSON instead of TOML")


def _add_file(parser: argparse.ArgumentParser) -> None:
    """Declare the file, alone or as other commands take it."""
    parser.add_argument("file", metavar="FILE", type=Path, nargs="?", help="TOML file")
    parser.add_argument("--config", metavar="FILE", type=Path, help="the same, as other commands take it")


def run(arguments: argparse.Namespace) -> int:
    """Check or show."""
    if arguments.file and arguments.config:
        raise CommandFailed("FILE is given twice; give it alone, or with --config")
    file = arguments.file or arguments.config
    if arguments.action == "show":
        return _show(file, arguments.json)
    if file is None:
        raise CommandFailed("there is nothing to check; give FILE")
    return _check(file, given_models(arguments))


def _check(file: Path, overrides: Mapping[str, object]) -> int:
    try:
        configuration.load_for_next_start(file, overrides)
    except ConfigUnreadable as error:
        raise CommandFailed(str(error)) from error
    except ConfigInvalid as error:
        count = len(error.problems)
        print(f"{printable(str(file))}: {count} problem{'s' * (count > 1)}", flush=True)
        print_problems([(each.key or "-", each.text) for each in error.problems], "key")
        return Exit.REFUSED
    print(f"{printable(str(file))}: no problems")
    return Exit.OK


def _show(file: Path | None, json_wanted: bool) -> int:
    config = configuration_at(file)
    if json_wanted:
        print(json.dumps(as_plain(config), indent=2))
        return Exit.OK
    for line in as_toml(config).removesuffix("\n").split("\n"):
        if line.startswith(COMMENT):
            print_text(line, below=COMMENT)
        else:
            print(line)
    return Exit.OK


def as_toml(section: object) -> str:
    """The tree as TOML with every key, its unit and what it is for, which can be read back and gives the same tree."""
    return "\n".join(_section(section, "")).strip() + "\n"


def as_plain(value: Any) -> Any:
    """The tree as plain values for JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [as_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {key: as_plain(each) for key, each in value.items()}
    return value


def _section(section: Any, path: str) -> Iterator[str]:
    """Plain keys first: TOML reads keys after a table's heading into that table."""
    tables = []
    for field in fields(section):
        value = getattr(section, field.name)
        if is_dataclass(value) or isinstance(value, Mapping):
            tables.append((field, value))
        elif value is not None:
            yield from _comment(field)
            yield f"{field.name} = {_toml(value)}"
    for field, value in tables:
        yield from _table(field, value, f"{path}.{field.name}" if path else field.name)


def _table(field: Field[Any], value: Any, path: str) -> Iterator[str]:
    yield ""
    yield from _comment(field)
    yield f"[{path}]"
    if is_dataclass(value):
        yield from _section(value, path)
        return
    for key, each in value.items():
        if is_dataclass(each):
            yield from _named(each, f"{path}.{json.dumps(key, ensure_ascii=False)}")
        else:
            yield f"{json.dumps(key, ensure_ascii=False)} = {_toml(each)}"


def _named(section: Any, path: str) -> Iterator[str]:
    """One of several sections that have names of their own: what its keys mean was said before them."""
    yield from ("", f"[{path}]")
    yield from (f"{field.name} = {_toml(getattr(section, field.name))}" for field in fields(section))


def _toml(value: Any) -> str:
    """JSON spells numbers, texts, truth values and lists as TOML does."""
    return json.dumps(as_plain(value), ensure_ascii=False)


def _comment(field: Field[Any]) -> Iterator[str]:
    notes = [str(field.metadata["help"])] if "help" in field.metadata else []
    if "unit" in field.metadata and field.metadata["unit"] not in field.name.split("_"):
        notes.append(f"in {field.metadata['unit']}")
    notes += _bounds(field)
    if notes:
        yield f"{COMMENT}{'; '.join(notes)}"


def _bounds(field: Field[Any]) -> list[str]:
    if isinstance(field.default, Enum):
        return [f"one of {', '.join(str(choice.value) for choice in type(field.default))}"]
    if "choices" in field.metadata:
        return [f"one of {', '.join(map(str, field.metadata['choices']))}"]
    low, high = field.metadata.get("min"), field.metadata.get("max")
    if low is not None and high is not None:
        return [f"{low} to {high}"]
    return [f"at least {low}"] if low else ([f"at most {high}"] if high is not None else [])
