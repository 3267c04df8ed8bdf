"""What the commands that sign packages have in common: which keys, and what unlocks them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.cli.failure import CommandFailed

if TYPE_CHECKING:
    from appliance.package.keys import Signer


def add_arguments(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Declare the keys."""
    parser.add_argument(
        "--key", action="append", default=[], metavar="KEY", required=required,
        help="sign with this private key: a PEM file, or hsm:ID?label=TOKEN; may be given several times",
    )  # fmt: skip
    parser.add_argument("--pkcs11-module", type=Path, metavar="FILE", help="the token's PKCS#11 library")
    parser.add_argument(
        "--secret-file", type=Path, metavar="FILE", help="password or pin of the key (default: ask for it)"
    )


def signers_of(arguments: argparse.Namespace) -> Sequence[Signer]:
    """The keys that were named, opened. Raises OperatorError."""
    if not arguments.key:
        return ()
    from appliance.package.keys import MODULE_VARIABLE, open_signer

    if arguments.pkcs11_module is not None:
        os.environ[MODULE_VARIABLE] = str(arguments.pkcs11_module)
    secret = _secret_from(arguments.secret_file)
    return [open_signer(key, secret) for key in arguments.key]


def _secret_from(file: Path | None) -> Callable[[str], str]:
    """Give a secret when it is told what is wanted ("pin", "password"): the first line of ``file``, or what is
    typed."""

    def ask(what: str) -> str:
        if file is not None:
            return _first_line(file)
        if not sys.stdin.isatty():
            raise CommandFailed(f"the key needs a {what}; give --secret-file, or run this at a terminal")
        from getpass import getpass

        return getpass(f"{what} of the key: ")

    return ask


def _first_line(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").partition("\n")[0]
    except (OSError, ValueError) as error:
        raise CommandFailed(f"'{file}' cannot be read: {error}") from error
