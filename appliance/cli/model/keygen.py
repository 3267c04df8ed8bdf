"""Make a key that signs packages: the private key in FILE, readable by its owner alone, the public one in FILE.pub.

The private key has no password; where that matters, give it one with 'openssl pkcs8 -topk8', or keep the key in a
PKCS#11 token. Files that are there already are not replaced; both files are made or none.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

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
    with ExitStack() as undo:
        files = [_made(path, mode, undo) for path, mode in ((arguments.file, 0o600), (beside, 0o644))]
        for (path, file), data in zip(files, (private, public_pem(public)), strict=True):
            _write(path, file, data)
        undo.pop_all()
    print(
        f"key id {public.keyid}\nprivate key {printable(str(arguments.file))}\npublic key {printable(str(beside))}"
    )
    return Exit.OK


def _made(path: Path, mode: int, undo: ExitStack) -> tuple[Path, BinaryIO]:
    """An empty file where none was; ``undo`` takes it away again."""
    with _told(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    undo.callback(path.unlink, missing_ok=True)
    return path, undo.enter_context(open(descriptor, "wb"))


def _write(path: Path, file: BinaryIO, data: bytes) -> None:
    with _told(path), file:
        file.write(data)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommandFailed(f"'{path}' cannot be written: {error.strerror}") from error
