"""Add signatures to a package that is there, signed already or not; its contents and its name stay what they are.

A signature covers the manifest, and so everything; those that the package has stay, so that it can be signed with a new
key before all boxes know it. All contents are checked while they are copied. The file is replaced as a whole, or with
-o another one is written.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, cast

from appliance.cli import signing
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.model.target import add_output, free_target
from appliance.cli.progress_bar import progress_bar
from appliance.domain.errors import ApplianceError, PackageInvalid

if TYPE_CHECKING:
    from appliance.package.keys import Signer
    from appliance.package.reader import PackageReader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("package", metavar="PACKAGE", type=Path, help="file NAME-VERSION.model")
    signing.add_arguments(parser, required=True)
    add_output(parser, "file or directory to write (default: PACKAGE itself)")
    parser.add_argument("--force", action="store_true", help="replace another file that is there")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Sign, and tell who has signed it now."""
    from appliance.package.reader import open_package

    try:
        signers = signing.signers_of(arguments)
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
        raise CommandFailed(f"'{arguments.package}' cannot be signed: {error.strerror}") from error
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
    from appliance.package.trust import judge, sign
    from appliance.package.writer import replacing, write_package

    signatures = sign(reader.manifest_bytes, signers, reader.signatures)
    trust = judge(
        reader.manifest_bytes, signatures, []
    )  # as others read it: not one too many, none malformed
    blobs, manifest = reader.blobs(), reader.manifest
    with replacing(target) as out, progress_bar(f"sign {manifest.key}", manifest.total_bytes) as advance:
        write_package(out, manifest, signatures, lambda entry: nullcontext(next(blobs).stream), advance)
        assert next(blobs, None) is None, "a package has the contents that its manifest names"
    return [verdict.keyid for verdict in trust.verdicts]
