"""Arguments that several commands take: what models are served, where a result is written, numbers within bounds."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from appliance.cli.failure import CommandFailed, Exit
from appliance.cli.numbers import number, whole
from appliance.config.tree import ApplianceConfig
from appliance.domain.errors import ConfigInvalid
from appliance.domain.manifest import INT64_MAX
from appliance.domain.model_names import no_such_model


def add_models(parser: argparse.ArgumentParser) -> None:
    """Declare where models come from, for the commands that serve them or check it: a directory, or a store."""
    parser.add_argument("--models", metavar="DIR", help="directory that holds NAME/VERSION/model.onnx")
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        help="serve the store in DIR, which 'appliance model install' fills, instead",
    )


def given_models(arguments: argparse.Namespace) -> dict[str, object]:
    """What of ``add_models`` the command line says, as a table of the configuration."""
    said = {"models": arguments.models, "state_dir": arguments.state_dir}
    return {key: value for key, value in said.items() if value}


def add_output(
    parser: argparse.ArgumentParser,
    text: str,
    *,
    metavar: str = "PATH",
    dest: str = "output",
    default: Path | None = None,
) -> None:
    """Declare ``-o``, which may be written out either way."""
    parser.add_argument(
        "-o", "--output", "--out", dest=dest, type=Path, default=default, metavar=metavar, help=text
    )


def free_target(output: Path | None, name: str, *, force: bool) -> Path:
    """The file to write: ``output``, or ``name`` in it if it is a directory, or here. Fails when its directory is not
    there, or when it is there itself, unless that is wanted by ``force``."""
    target = output or Path(name)
    if target.is_dir():
        target = target / name
    if not target.parent.is_dir():
        raise CommandFailed(f"'{target.parent}' is not a directory")
    if target.exists() and not force:
        raise CommandFailed(f"'{target}' is there already; give --force to replace it, or another name")
    return target


def configuration_at(path: Path | None) -> ApplianceConfig:
    """The configuration in the file at ``path``, or the defaults; whether this machine could serve with it is not
    asked. Fails with all that is wrong with it."""
    from appliance.config import loading

    try:
        return loading.load(path)
    except ConfigInvalid as error:
        raise CommandFailed("the configuration has problems:", lines=map(str, error.problems)) from error


def contents(path: Path) -> bytes:
    """What the file at ``path`` holds. Fails where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandFailed(f"'{path}' cannot be read: {error.strerror}") from error


def natural(smallest: int, largest: int | None = None) -> Callable[[str], int]:
    """The type of an option that takes a whole number of at least ``smallest``, and at most ``largest`` where there is
    such a bound."""

    def read(text: str) -> int:
        value = whole(text)
        if largest is not None and not smallest <= value <= largest:
            raise argparse.ArgumentTypeError(f"must be from {smallest} to {largest}")
        if value < smallest:
            raise argparse.ArgumentTypeError(f"must be at least {smallest}")
        return value

    return read


def seconds(least: float, most: float) -> Callable[[str], float]:
    """The type of an option that takes ``least`` to ``most`` seconds; what is none is a usage error that says so."""

    def read(text: str) -> float:
        value = number(text, "number of seconds")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be from {least:g} to {most:g} seconds")
        return value

    return read


def check_known(asked: Iterable[str], known: Collection[str]) -> None:
    """Fail for the first of the names ``asked`` for that none of the ``known`` models has."""
    for name in asked:
        if name not in known:
            raise CommandFailed(no_such_model(name, known), Exit.REFUSED)


def version_number(text: str) -> int:
    """``text`` as the number of a version. Raises ArgumentTypeError for what cannot be one."""
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and 1 <= int(text) <= INT64_MAX):
        raise argparse.ArgumentTypeError(f"'{text}' is no version; give 1 to {INT64_MAX}")
    return int(text)
