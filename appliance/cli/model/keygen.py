"""Make a key that signs packages: the private key in FILE, readable by its owner alone, the public one in FILE.pub.

The private key has no password; where that matters, give it one with 'openssl pkcs8 -topk8', or keep the key in a
PKCS#11 token. Files that are there already are not replaced.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from appliance.cli.failure import CommandFailed, Exit, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", type=Path, help="where the private key goes")
    parser.add_argument(
        "--kind",
        choices=("ecdsa", "ed25519", "rsa"),
        default="ecdsa",
        help="kind of key (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Make both files and tell the key's id."""
    from appliance.package.keys import make_key, public_pem

    private, public = make_key(arguments.kind)
    beside = arguments.file.with_name(arguments.file.name + ".pub")
    _write(arguments.file, private, 0o600)
    _write(beside, public_pem(public), 0o644)
    print(
        f"key id {public.keyid}\nprivate key {printable(str(arguments.file))}\npublic key {printable(str(beside))}"
    )
    return Exit.OK


def _write(path: Path, data: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as file:
            file.write(data)
    except OSError as error:
        raise CommandFailed(f"'{path}' cannot be written: {error.strerror}") from error
