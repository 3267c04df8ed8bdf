"""Keys that sign packages, which of them a command is told to use, and signatures."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from appliance.cli.arguments import add_output, free_target, text_of
from appliance.cli.command_table import Command
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.terminal import bytes_bar
from appliance.domain.errors import ApplianceError, OperatorError, PackageInvalid
from appliance.store.full_disk import reason_of

if TYPE_CHECKING:
    from appliance.package.keys import Signer
    from appliance.package.reader import PackageReader


def add_keys(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
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
    """The keys that were named, opened. Fails where one cannot be used."""
    if not arguments.key:
        return ()
    from appliance.package.keys import MODULE_VARIABLE, open_signer

    if arguments.pkcs11_module is not None:
        os.environ[MODULE_VARIABLE] = str(arguments.pkcs11_module)
    secret = _secret_from(arguments.secret_file)
    try:
        return [open_signer(key, secret) for key in arguments.key]
    except OperatorError as error:
        raise CommandFailed(str(error)) from error


def _secret_from(file: Path | None) -> Callable[[str], str]:
    """Give a secret when it is told what is wanted ("pin", "password"): the first line of ``file``, or what is
    typed."""

    def ask(what: str) -> str:
        if file is not None:
            return text_of(file).partition("\n")[0]
        if not sys.stdin.isatty():
            raise CommandFailed(f"the key needs a {what}; give --secret-file, or run this at a terminal")
        from getpass import getpass

        return getpass(f"{what} of the key: ")

    return ask


def _add_keygen(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", type=Path, help="where the private key goes")
    parser.add_argument(
        "--kind",
        choices=("ecdsa", "ed25519", "rsa"),
        default="ecdsa",
        help="kind of key (default: %(default)s)",
    )


def _keygen(arguments: argparse.Namespace) -> int:
    """Make both files and tell the key's id."""
    from appliance.package.keys import make_key, public_pem

    private, public = make_key(arguments.kind)
    beside = arguments.file.with_name(arguments.file.name + ".pub")
    with ExitStack() as undo:
        files = [_new_file(path, mode, undo) for path, mode in ((arguments.file, 0o600), (beside, 0o644))]
        for (path, file), data in zip(files, (private, public_pem(public)), strict=True):
            _write(path, file, data)
        undo.pop_all()
    print(
        f"key id {public.keyid}\nprivate key {printable(str(arguments.file))}\npublic key {printable(str(beside))}"
    )
    return Exit.OK


def _new_file(path: Path, mode: int, undo: ExitStack) -> tuple[Path, BinaryIO]:
    """An empty file where none was; ``undo`` takes it away again."""
    with _failures(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    undo.callback(path.unlink, missing_ok=True)
    return path, undo.enter_context(open(descriptor, "wb"))


def _write(path: Path, file: BinaryIO, data: bytes) -> None:
    with _failures(path), file:
        file.write(data)


@contextmanager
def _failures(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        text = f"'{path}' is there already; give another name, or move it away if it signs nothing any more"
        raise CommandFailed(text) from error
    except OSError as error:
        raise CommandFailed(f"'{path}' cannot be written: {reason_of(error, path)}") from error


def _add_sign(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("package", metavar="PACKAGE", type=Path, help="file NAME-VERSION.model")
    add_keys(parser, required=True)
    add_output(parser, "file or directory to write (default: PACKAGE itself)")
    parser.add_argument("--force", action="store_true", help="replace another file that is there")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _sign(arguments: argparse.Namespace) -> int:
    """Sign, and tell who has signed it now."""
    from appliance.package.reader import open_package

    target: Path | None = None
    try:
        signers = signers_of(arguments)
        with open_package(arguments.package) as reader:
            target = _target(arguments)
            keyids = _signed(reader, signers, target)
    except PackageInvalid as error:
        raise CommandFailed(
            f"'{arguments.package}' is refused:", Exit.REFUSED, lines=map(str, error.problems)
        ) from error
    except ApplianceError as error:
        raise CommandFailed(f"'{arguments.package}' cannot be signed: {error}", Exit.REFUSED) from error
    except OSError as error:
        raise CommandFailed(
            f"'{arguments.package}' cannot be signed: {reason_of(error, target or arguments.package)}"
        ) from error
    if arguments.json:
        print(json.dumps({"file": str(target), "manifest": reader.digest, "signed_by": keyids}, indent=2))
    else:
        print(f"{printable(str(target))} ({reader.manifest.key}) is signed by {', '.join(keyids)}")
    return Exit.OK


def _target(arguments: argparse.Namespace) -> Path:
    if arguments.output is None:
        return cast(Path, arguments.package)
    target = free_target(arguments.output, arguments.package.name, force=True)
    same = target.exists() and target.samefile(arguments.package)
    return target if same else free_target(target, "", force=arguments.force)


def _signed(reader: PackageReader, signers: Sequence[Signer], target: Path) -> list[str]:
    """Write the package with its signatures and those of ``signers`` to ``target``; gives the ids of all keys."""
    from appliance.package.container import replacing, write_package
    from appliance.package.trust import judge, sign

    signatures = sign(reader.manifest_bytes, signers, reader.signatures)
    trust = judge(
        reader.manifest_bytes, signatures, []
    )  # as others read it: not one too many, none malformed
    blobs, manifest = reader.blobs(), reader.manifest
    with replacing(target) as out, bytes_bar(f"sign {manifest.key}", manifest.total_bytes) as advance:
        write_package(out, manifest, signatures, lambda entry: nullcontext(next(blobs).stream), advance)
        assert next(blobs, None) is None, "a package has the contents that its manifest names"
    return [verdict.keyid for verdict in trust.verdicts]


KEYGEN: Final = Command(
    about="""\
Make a key that signs packages: the private key in FILE, readable by its owner alone, the public one in FILE.pub.

The private key has no password; where that matters, give it one with 'openssl pkcs8 -topk8', or keep the key in a
PKCS#11 token. Files that are there already are not replaced; both files are made or none.
""",
    add_arguments=_add_keygen,
    run=_keygen,
)
SIGN: Final = Command(
    about="""\
Add signatures to a package that is there, signed already or not; its contents and its name stay what they are.

A signature covers the manifest, and so everything; those that the package has stay, so that it can be signed with a new
key before all boxes know it. All contents are checked while they are copied. The file is replaced as a whole, or with
-o another one is written.
""",
    add_arguments=_add_sign,
    run=_sign,
)
