"""The root of a fleet's trust, by commands: each holder of an offline key signs where the key is, without a network."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from appliance.cli.arguments import add_output, contents, free_target
from appliance.cli.command_table import Command
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.model.sign import add_keys, signers_of
from appliance.cli.numbers import natural
from appliance.cli.store_session import wall_ms
from appliance.controller.online_keys import OnlineKeys, read_public
from appliance.controller.root import RootPlan, make_root, root_plan, root_status, sign_root
from appliance.domain.errors import ApplianceError
from appliance.domain.moment import moment
from appliance.package.container import replacing
from appliance.package.keys import PublicKey, read_public_key

if TYPE_CHECKING:
    from appliance.controller.by_hand import Desk

DAYS: Final = 365
DAYS_MAX: Final = 36_500
"""No calendar here goes on for ever."""


@contextmanager
def _told(status: Exit = Exit.REFUSED) -> Iterator[None]:
    try:
        yield
    except ApplianceError as error:
        raise CommandFailed(str(error), status) from error


@contextmanager
def _desk(folder: Path) -> Iterator[Desk]:
    """That of the controller in ``folder``. Fails where none is there, or none that can be used."""
    from appliance.controller.by_hand import desk_of

    with ExitStack() as stack:
        with _told(Exit.USAGE):
            desk = stack.enter_context(desk_of(folder))
        yield desk


def _add_keys(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", type=Path, help="where the keys go; made if need be")


def _keys(arguments: argparse.Namespace) -> int:
    """Make them and tell their ids."""
    with _told():
        keys = OnlineKeys.create(arguments.directory)
    for role, key in keys.public().items():
        print(f"{role:9}  {key.keyid}")
    return Exit.OK


def _add_make(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--previous",
        type=Path,
        metavar="ROOT",
        help="the root before: what is not said here stays as it is there",
    )
    parser.add_argument(
        "--key",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="public key of a holder; several times",
    )
    parser.add_argument(
        "--threshold", type=natural(1), metavar="N", help="how many holders sign the next root"
    )
    parser.add_argument(
        "--online",
        type=Path,
        metavar="DIR",
        help="directory with the public keys of the controller, ROLE.pem.pub",
    )
    parser.add_argument(
        "--package-key", type=Path, action="append", metavar="FILE",
        help="public key that packages may be signed with; several times; all, also those that stay",
    )  # fmt: skip
    parser.add_argument(
        "--days", type=natural(1, DAYS_MAX), default=DAYS, metavar="N",
        help="after how many days people are told to look at it again (default: %(default)s); it never ends by that",
    )  # fmt: skip
    add_output(parser, "file to write (default: root-N.json)")
    parser.add_argument("--force", action="store_true", help="replace a file that is there")


def _make(arguments: argparse.Namespace) -> int:
    """Make it and say who has to sign."""
    previous = None if arguments.previous is None else contents(arguments.previous)
    expires = datetime.fromtimestamp(wall_ms() / 1000, UTC) + timedelta(days=arguments.days)
    with _told():
        plan = _planned(arguments, previous, expires)
        root = make_root(plan, previous)
        status = root_status(root, previous)
    target = free_target(arguments.output, f"root-{status.version}.json", force=arguments.force)
    _write(target, root)
    print(
        f"{printable(str(target))}: root {status.version}, to be signed by {plan.threshold} of {len(plan.offline)}"
    )
    return Exit.OK


def _planned(arguments: argparse.Namespace, previous: bytes | None, expires: datetime) -> RootPlan:
    with _told(Exit.USAGE):
        offline: Sequence[PublicKey] = [read_public_key(each) for each in arguments.key]
        online = None if arguments.online is None else read_public(arguments.online)
        packages = (
            None
            if arguments.package_key is None
            else [read_public_key(each) for each in arguments.package_key]
        )
    if previous is not None:
        before = root_plan(previous)
        return replace(
            before,
            offline=offline or before.offline,
            threshold=arguments.threshold or before.threshold,
            online=before.online if online is None else online,
            packages=before.packages if packages is None else packages,
            expires=expires,
        )
    if not (offline and arguments.threshold and online):
        raise CommandFailed("the first root needs --key, --threshold and --online")
    return RootPlan(
        offline=offline,
        threshold=arguments.threshold,
        online=online,
        packages=packages or (),
        expires=expires,
    )


def _add_sign(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("root", metavar="ROOT", type=Path, help="the root; it is replaced as a whole")
    parser.add_argument(
        "--previous", type=Path, metavar="ROOT", help="the root before, for those who held a key of it"
    )
    add_keys(parser, required=True)


def _sign(arguments: argparse.Namespace) -> int:
    """Sign it and say who is missing."""
    previous = None if arguments.previous is None else contents(arguments.previous)
    root = contents(arguments.root)
    with _told():
        for signer in signers_of(arguments):
            root = sign_root(root, signer, previous)
        status = root_status(root, previous)
    _write(arguments.root, root)
    print(f"{printable(str(arguments.root))}: {_missing(status.missing, status.missing_previous)}")
    return Exit.OK


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("root", metavar="ROOT", type=Path, help="the root")
    parser.add_argument(
        "--previous", type=Path, metavar="ROOT", help="the root before, which has a say in it"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _show(arguments: argparse.Namespace) -> int:
    """Say who may sign what, and who has to sign still; the status says whether that is nobody."""
    previous = None if arguments.previous is None else contents(arguments.previous)
    root = contents(arguments.root)
    with _told():
        plan, status = root_plan(root), root_status(root, previous)
    found: dict[str, Any] = {
        "version": status.version,
        "complete": status.complete,
        "missing": status.missing,
        "missing_previous": status.missing_previous,
        "expires_ms": int(plan.expires.timestamp() * 1000),
        "threshold": plan.threshold,
        "offline": [each.keyid for each in plan.offline],
        "online": {role: key.keyid for role, key in plan.online.items()},
        "packages": [each.keyid for each in plan.packages],
    }
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        _print(found)
    return Exit.OK if status.complete else Exit.REFUSED


def _print(found: dict[str, Any]) -> None:
    print(f"root {found['version']}, to be looked at again by {moment(found['expires_ms'])}")
    print(
        f"{_missing(found['missing'], found['missing_previous'])}; {found['threshold']} sign the next one, of"
    )
    for keyid in found["offline"]:
        print(f"  {keyid}")
    for role, keyid in found["online"].items():
        print(f"{role:9}  {keyid}")
    for keyid in found["packages"] or ["none but those of the boxes' own configuration"]:
        print(f"packages   {keyid}")


def _missing(own: int, previous: int) -> str:
    if not own and not previous:
        return "all signatures are there"
    parts = [f"{own} of its own keys"] if own else []
    parts += [f"{previous} of the keys of the root before"] if previous else []
    return f"signatures are missing: {' and '.join(parts)}"


def _write(target: Path, data: bytes) -> None:
    try:
        with replacing(target) as file:
            file.write(data)
    except OSError as error:
        raise CommandFailed(f"'{target}' cannot be written: {error.strerror}") from error


def _add_get(parser: argparse.ArgumentParser) -> None:
    _add_controller(parser)
    add_output(parser, "file to write (default: root-N.json)")
    parser.add_argument("--force", action="store_true", help="replace a file that is there")


def _get(arguments: argparse.Namespace) -> int:
    """Write it."""
    from appliance.controller.roots import newest_root

    with _desk(arguments.controller) as desk, _told(Exit.USAGE):
        version, root = newest_root(desk)
    target = free_target(arguments.output, f"root-{version}.json", force=arguments.force)
    _write(target, root)
    print(f"{printable(str(target))}: root {version}")
    return Exit.OK


def _add_publish(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("root", metavar="ROOT", type=Path, help="the root, with all signatures")
    _add_controller(parser)


def _publish(arguments: argparse.Namespace) -> int:
    """Take it over and say what follows."""
    from appliance.cli.person import who
    from appliance.controller.roots import publish_root

    root = contents(arguments.root)
    with _desk(arguments.controller) as desk, _told():
        anew = publish_root(desk, arguments.controller, root, who(), wall_ms())
    print(f"Boxes follow it from their next contact on; {anew} documents are signed anew.")
    return Exit.OK


def _add_controller(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--controller", type=Path, metavar="DIR", required=True, help="directory of the controller"
    )


KEYS: Final = Command(
    about="""\
Make the keys that the controller signs with: one for each of targets, snapshot and timestamp, readable by their owner
alone, and beside each the public one for 'appliance fleet root make'.
""",
    add_arguments=_add_keys,
    run=_keys,
)
MAKE: Final = Command(
    about="""\
Make a root, not signed yet: the first of a fleet, or the next with what changes. Boxes take one that enough holders of
the root before, and of its own, have signed.

Keys of holders are made with 'appliance model keygen', or are in PKCS#11 tokens. The private ones are not needed here.
""",
    add_arguments=_add_make,
    run=_make,
)
SIGN: Final = Command(
    about="Sign a root as one of its holders, or of the root before. No network and no controller is needed.",
    add_arguments=_add_sign,
    run=_sign,
)
SHOW: Final = Command(
    about="Show who may sign what by a root, and whose signatures are missing; the status is 1 as long as some are.",
    add_arguments=_add_show,
    run=_show,
)
GET: Final = Command(
    about="Write the newest root of a controller into a file, to make the next one from it.",
    add_arguments=_add_get,
    run=_get,
)
PUBLISH: Final = Command(
    about="""\
Have boxes follow a root that has all its signatures. The controller is stopped meanwhile. Where the root names other
keys of the controller, these are in its directory 'keys' already, and every document is signed anew.
""",
    add_arguments=_add_publish,
    run=_publish,
)
