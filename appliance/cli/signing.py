"""What the commands that sign packages have in common: which keys, and what unlocks them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
    from appliance.cli.secret import secret_from
    from appliance.package.keys import MODULE_VARIABLE, open_signer

    if arguments.pkcs11_module is not None:
        os.environ[MODULE_VARIABLE] = str(arguments.pkcs11_module)
    secret = secret_from(arguments.secret_file)
    return [open_signer(key, secret) for key in arguments.key]
