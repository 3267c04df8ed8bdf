"""Arguments that several commands take: what models are served, where a result is written."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable
from pathlib import Path

from appliance.cli.failure import CommandFailed, Exit
from appliance.config.tree import ApplianceConfig
from appliance.domain.errors import ConfigInvalid, system_reason
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


def text_of(path: Path) -> str:
    """The text in the file at ``path``. Fails where it cannot be read, or is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CommandFailed(f"'{path}' cannot be read: {system_reason(error)}") from error


def check_known(asked: Iterable[str], known: Collection[str]) -> None:
    """Fail for the first of the names ``asked`` for that none of the ``known`` models has."""
    for name in asked:
        if name not in known:
            raise CommandFailed(no_such_model(name, known), Exit.REFUSED)
