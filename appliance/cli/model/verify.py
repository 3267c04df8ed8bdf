"""Check packages: form, digests of contents, pieces and tensors, names, signatures, and the model itself as the serving
side reads it, firewall and golden set included. All problems of a package are reported at once.

Without --trusted-key and --config, signatures are shown but not judged.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.cli import package_policy
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.terminal import bytes_bar, print_problems, print_text

if TYPE_CHECKING:
    from appliance.package.trust import Verdict
    from appliance.package.verification import Policy, Verification


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("packages", metavar="PACKAGE", type=Path, nargs="+", help="files NAME-VERSION.model")
    package_policy.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON: one object per package, in a list")


def run(arguments: argparse.Namespace) -> int:
    """Check one after the other, those that cannot be read passed over and told at the end; the status tells whether
    all are well."""
    policy = package_policy.policy_of(arguments)
    found: list[tuple[Path, Verification]] = []
    unread: list[str] = []
    for path in arguments.packages:
        try:
            found.append((path, _verified(path, policy)))
        except OSError as error:
            unread.append(f"'{path}' cannot be checked: {error.strerror}")
            continue
        if not arguments.json:
            _show(*found[-1])
    if arguments.json and found:
        print(json.dumps([_plain(path, each) for path, each in found], indent=2))
    if unread:
        raise CommandFailed(unread[0], lines=unread[1:])
    return Exit.REFUSED if any(each.problems for _, each in found) else Exit.OK


def _verified(path: Path, policy: Policy) -> Verification:
    from appliance.package.verification import verify_package

    with ExitStack() as stack:

        def begin(total: int) -> Callable[[int], None]:
            return stack.enter_context(bytes_bar(f"verifying {printable(path.name)}", total))

        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="verifying-"))
        return verify_package(path, policy, Path(folder), begin)


def _plain(path: Path, found: Verification) -> Mapping[str, object]:
    return {
        "file": str(path),
        "model": found.manifest.key if found.manifest else None,
        "manifest": found.digest or None,
        "signatures": [
            {"keyid": each.keyid, "key": each.label or None, "right": each.right}
            for each in found.trust.verdicts
        ],
        "trust": found.trust.word,
        "problems": [{"file": each.file, "key": each.key, "text": each.text} for each in found.problems],
    }


def _show(path: Path, found: Verification) -> None:
    count = len(found.problems)
    verdict = f"{count} problem{'s' * (count > 1)}" if count else "no problems"
    key = f" ({found.manifest.key})" if found.manifest else ""
    print(f"{printable(str(path))}{key}: {verdict}")
    if found.manifest:
        print(f"  manifest   {found.digest}")
    for each in found.trust.verdicts:
        print_text(f"  signed by  {printable(each.keyid)}: {_said(each)}")
    if found.manifest and not found.trust.verdicts:
        print("  signed by  nobody")
    if found.problems:
        print(end="", flush=True)
        problems = found.problems
        print_problems(
            [(f"{each.file}: {each.key}" if each.key else each.file, each.text) for each in problems]
        )


def _said(verdict: Verdict) -> str:
    if verdict.right is None:
        return "a key that is not trusted here, so this says nothing"
    return f"{'right' if verdict.right else 'WRONG'}, {printable(verdict.label)} ({verdict.scheme})"
