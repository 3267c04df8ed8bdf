"""What is changed at the controller: releases, wishes, settings, tokens, devices."""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from appliance.cli.command_table import Command
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.fleet.session import Controller, Profile, read_profile, write_profile
from appliance.cli.model.golden_loss import loss_words
from appliance.cli.numbers import TOKEN_HOURS_MAX, natural, version_number
from appliance.cli.terminal import print_text
from appliance.domain.manifest import INT64_MAX, is_name
from appliance.domain.moment import moment
from appliance.domain.quantity import bytes_text

TOKENS_MAX: Final = 1_000
"""At once; each is a request of its own."""
LAST_ADMIN: Final = (
    "that was the last token of an admin: nobody can make or withdraw tokens of people, or shut devices out. "
    "'appliance controller token DIR --person NAME' makes one where the controller is, as its user"
)
UNTRUSTED: Final = (
    "{key}: no key that the fleet's root names has signed it, so boxes refuse it, unless their own "
    "packages.trusted_keys has the key; 'appliance fleet root make --package-key' has the whole fleet trust a maker"
)


def _login(arguments: argparse.Namespace) -> int:
    """Ask for the token, try it, keep it."""
    token = sys.stdin.readline() if not sys.stdin.isatty() else getpass.getpass("token: ")
    try:
        authority = arguments.authority.read_text() if arguments.authority else ""
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(
            f"the authority '{arguments.authority}' is not to be read; give a PEM file"
        ) from error
    if not token.strip():
        raise CommandFailed("no token was given: 'appliance fleet token --person NAME' makes one")
    profile = Profile(url=arguments.url.rstrip("/"), token=token.strip(), authority=authority)
    Controller(profile).get("/devices")
    print_text(printable(f"Logged in at {profile.url}; kept in '{write_profile(profile)}'."))
    return Exit.OK


def _release(arguments: argparse.Namespace) -> int:
    """Upload packages, one after the other, or take a release back."""
    if bool(arguments.packages) == bool(arguments.withdraw):
        raise CommandFailed("give packages to release, or --withdraw MODEL/VERSION, one of them")
    controller = Controller(read_profile())
    if arguments.withdraw:
        return _withdraw(arguments, controller)
    for path in arguments.packages:
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                found = controller.upload("/releases", file, size)
        except OSError as error:
            raise CommandFailed(f"'{path}' cannot be read: {error.strerror}") from error
        text = (
            f"{found['model']}/{found['version']} is released: {bytes_text(found['full_bytes'])} from scratch"
        )
        _print(arguments, found, text)
        if not found["trust"].startswith("key "):
            print_text(printable(UNTRUSTED.format(key=f"{found['model']}/{found['version']}")), sys.stderr)
        if before := found.get("golden_before", 0):  # a controller of an earlier release does not say it
            words = loss_words(f"{found['model']}/{found['version']}", f"{found['model']}/{before}")
            print_text(words, sys.stderr)
    return Exit.OK


def _withdraw(arguments: argparse.Namespace, controller: Controller) -> int:
    """Take a release back that nobody needs."""
    model, mark, number = arguments.withdraw.partition("/")
    if not (mark and is_name(model) and _is_number(number)):
        raise CommandFailed(f"'{arguments.withdraw}' is no MODEL/VERSION")
    found = controller.post(f"/releases/{model}/{number}/withdraw")
    text = (
        f"{model}/{number} is withdrawn; {bytes_text(found['bytes'])} become free at the controller within half an "
        "hour, or when the boxes that were told of it have asked again"
    )
    _print(arguments, found, text)
    return Exit.OK


def _is_number(text: str) -> bool:
    """Whether it can be that of a version."""
    return text.isascii() and text.isdecimal() and len(text) <= len(str(INT64_MAX))


def _want(arguments: argparse.Namespace) -> int:
    """Wish for a version, or take the wish back."""
    from appliance.cli.fleet import waiting
    from appliance.fleet.arrival import Wished

    model, mark, number = arguments.model.partition("=")
    if not arguments.withdraw and not (mark and _is_number(number)):
        raise CommandFailed(f"'{arguments.model}' is no MODEL=VERSION")
    wish: dict[str, Any] | None = None
    if not arguments.withdraw:
        wish = {
            "version": int(number),
            "order": arguments.order,
            "interface_change": arguments.allow_interface_change,
            "downgrade": arguments.downgrade,
            "prefetch": arguments.prefetch,
        }
        if arguments.trial:
            wish["trial"] = {"version": arguments.trial, "mode": "canary", "percent": arguments.percent}
    waiting.check(arguments)
    profile = read_profile()
    body = {"model": model, "wish": wish, "group": arguments.group, "device": arguments.device}
    found = Controller(profile).post("/want", body)
    for each in found.get("halts", ()):  # a controller of an earlier release does not say it
        rest = f"'appliance fleet rollout {model}' with --resume, --back or --stop"
        print_text(printable(f"{each} halts for this; {rest}"), sys.stderr)
    version = 0 if arguments.withdraw else int(number)
    wished = Wished(model=model, version=version, group=arguments.group, device=arguments.device)
    if not arguments.wait:
        return _say(arguments, found, f"wish for {model}", "" if arguments.withdraw else wished.undo)
    return waiting.wait_for(arguments, profile, wished)


def _setting(arguments: argparse.Namespace) -> int:
    """Change a setting of boxes, or take that back."""
    name, mark, text = arguments.setting.partition("=")
    try:
        value = json.loads(text) if mark else None
    except ValueError:
        value = text
    body = {"name": name, "value": value, "group": arguments.group, "device": arguments.device}
    found = Controller(read_profile()).post("/settings", body)
    undo = f"appliance fleet setting {name} --group {arguments.group}" if mark else ""
    return _say(arguments, found, f"setting {name}", undo)


def _token(arguments: argparse.Namespace) -> int:
    """Make a token, for a box or a person, or withdraw one."""
    _check_token_arguments(arguments)
    controller = Controller(read_profile())
    if arguments.revoke:
        found = controller.post(f"/tokens/{arguments.revoke}/revoke")
        status = _say(arguments, found)
        if found.get("last_admin"):  # a controller of an earlier release does not say it
            print_text(LAST_ADMIN, sys.stderr)
        return status
    if arguments.person:
        path, body = "/tokens/person", {"name": arguments.person, "role": arguments.role or "viewer"}
    else:
        path, body = "/tokens/enrolment", {"group": arguments.group, "device": arguments.device}
    return _make_tokens(arguments, controller, path, {**body, **_hours(arguments)})


def _make_tokens(
    arguments: argparse.Namespace, controller: Controller, path: str, body: dict[str, Any]
) -> int:
    """Make as many as are asked for; each is shown as soon as it is made, so that none is lost that is known there."""
    count = arguments.count or 1
    for number in range(count):
        try:
            found = controller.post(path, body)
        except CommandFailed as error:
            if not number:
                raise
            text = f"{error}; {number} of {count} tokens were made before, and were shown"
            raise CommandFailed(text, error.status) from error
        print(json.dumps(found) if arguments.json else found["token"], flush=True)
    if not arguments.json:
        what = f"token '{found['name']}'" if count == 1 else f"{count} tokens"
        print_text(
            printable(f"{what}, shown this once; good until {moment(found['expires_ms'])}"), sys.stderr
        )
    return Exit.OK


def _check_token_arguments(arguments: argparse.Namespace) -> None:
    """What would be passed over is refused. Raises CommandFailed."""
    boxes, people = arguments.group or arguments.device, arguments.person or arguments.role
    if arguments.revoke and (boxes or people or arguments.hours is not None or arguments.count):
        raise CommandFailed("--revoke takes a token's name and nothing else")
    if arguments.count and (people or arguments.device):
        raise CommandFailed("--count is for boxes of a group: each of its tokens is for one box")
    if arguments.role and not arguments.person:
        raise CommandFailed("--role is for a person: give --person NAME as well")
    if people and boxes:
        raise CommandFailed("--person makes a token for a person; --group and --device are for boxes")
    if arguments.group and arguments.device:
        raise CommandFailed(
            "a box that takes a device's place is in that one's group: give --group or --device"
        )


def _hours(arguments: argparse.Namespace) -> dict[str, int]:
    return {} if arguments.hours is None else {"hours": arguments.hours}


def _on_device(what: str) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        path = f"/devices/{arguments.device}/{what}" if arguments.device else f"/{what}"
        body = {"group": arguments.group} if what == "group" else None
        return _say(arguments, Controller(read_profile()).post(path, body))

    return run


def _say(arguments: argparse.Namespace, found: Any, what: str = "", undo: str = "") -> int:
    """Say for how many devices it is done; ``what`` was made, which the command ``undo`` takes back ("": it was taken
    back just now)."""
    count, group = found["devices"], getattr(arguments, "group", "")
    text = f"done; {count} device{'' if count == 1 else 's'}"
    if not count and group:
        back = f": '{undo}' takes the {what.partition(' ')[0]} back" if undo else ""
        text = f"done; no device is in the group '{group}' so far{back}"
    if (
        what and not undo and not found.get("before", True)
    ):  # a controller of an earlier release does not say it
        scope = f"group '{group}'" if group else f"device '{arguments.device}'"
        text = f"the {scope} had no {what}{'' if group else ' of its own'}; nothing was changed"
    if getattr(arguments, "revoke", ""):
        text = "done"
    _print(arguments, found, text)
    return Exit.OK


def _print(arguments: argparse.Namespace, found: Any, text: str) -> None:
    """Say what came of it, to a person or a program."""
    if arguments.json:
        print(json.dumps(found), flush=True)
    else:
        print_text(printable(text))
        sys.stdout.flush()


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_scope(parser: argparse.ArgumentParser) -> None:
    scope = parser.add_mutually_exclusive_group(required=True)
    scope.add_argument("--group", default="", help="for all devices of this group")
    scope.add_argument("--device", default="", help="for this device; goes before its group's")
    _json(parser)


def _add_login(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="where the controller is")
    parser.add_argument(
        "--authority", type=Path, metavar="FILE", help="certificate of its authority, a PEM file"
    )


def _add_release(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("packages", metavar="PACKAGE", type=Path, nargs="*", help="files NAME-VERSION.model")
    parser.add_argument(
        "--withdraw",
        default="",
        metavar="MODEL/VERSION",
        help="take this release back instead; nobody may need it",
    )
    _json(parser)


def _add_want(parser: argparse.ArgumentParser) -> None:
    from appliance.cli.fleet import waiting

    parser.add_argument(
        "model",
        metavar="MODEL=VERSION",
        help="what to serve; version 0: nothing of it; with --withdraw MODEL alone",
    )
    parser.add_argument("--order", action="store_true", help="at once, whatever serves now: as a rollback")
    parser.add_argument(
        "--trial", type=version_number, default=0, metavar="VERSION", help="try this version beside it"
    )
    parser.add_argument(
        "--percent",
        type=natural(0, 100),
        default=10,
        metavar="PERCENT",
        help="with --trial: its share of the requests (default: 10)",
    )
    parser.add_argument(
        "--prefetch",
        type=version_number,
        action="append",
        default=[],
        metavar="VERSION",
        help="have this version there; may be repeated",
    )
    parser.add_argument(
        "--allow-interface-change",
        action="store_true",
        help="have it go live although clients of what serves cannot talk to it",
    )
    parser.add_argument(
        "--downgrade", action="store_true", help="take a version older than was wanted before"
    )
    parser.add_argument("--withdraw", action="store_true", help="take the wish for the model back")
    waiting.add_arguments(parser)
    _add_scope(parser)


def _add_setting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "setting",
        metavar="NAME[=VALUE]",
        help="a setting such as fleet.poll_s=60; without a value it is taken back",
    )
    _add_scope(parser)


def _add_token(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--group", metavar="NAME", default="", help="the box becomes one of this group")
    parser.add_argument("--device", metavar="NAME", default="", help="the box takes this device's place")
    parser.add_argument(
        "--person", default="", metavar="NAME", help="a token for a person or a program instead"
    )
    parser.add_argument(
        "--role", default="", choices=("viewer", "operator", "admin"), help="of the person (default: viewer)"
    )
    parser.add_argument(
        "--hours",
        type=natural(1, TOKEN_HOURS_MAX),
        help="how long it is good (default: a day for a box, 90 days for a person)",
    )
    parser.add_argument(
        "--count",
        type=natural(1, TOKENS_MAX),
        metavar="N",
        help=f"make so many, at most {TOKENS_MAX:,}, each for one box; one on each line, with --json a document each",
    )
    parser.add_argument("--revoke", default="", metavar="NAME", help="withdraw this token instead")
    _json(parser)


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", metavar="DEVICE", help="which one")
    _json(parser)


def _add_resume(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", metavar="DEVICE", nargs="?", default="", help="which one (default: all)")
    _json(parser)


def _add_group(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", metavar="DEVICE", help="which one")
    parser.add_argument("group", metavar="GROUP", help="its group from now on")
    _json(parser)


LOGIN: Final = Command(
    about="Log in at a controller; the token is read from standard input.",
    add_arguments=_add_login,
    run=_login,
)
RELEASE: Final = Command(
    about="Hand packages over to the controller, which checks them and makes them ready to be sent; or take a release "
    "back.",
    add_arguments=_add_release,
    run=_release,
)
WANT: Final = Command(
    about="Wish for a version of a model in a group or on a device.", add_arguments=_add_want, run=_want
)
SETTING: Final = Command(
    about="Change a setting of boxes from afar.", add_arguments=_add_setting, run=_setting
)
TOKEN: Final = Command(
    about="Make a token with which a box enrols, or one for a person; it is shown once.",
    add_arguments=_add_token,
    run=_token,
)
REVOKE: Final = Command(about="Shut a device out.", add_arguments=_add_device, run=_on_device("revoke"))
RESUME: Final = Command(
    about="Give devices in conflict what is wanted here: they have seen newer documents than this controller knows.",
    add_arguments=_add_resume,
    run=_on_device("resume"),
)
GROUP: Final = Command(about="Put a device into a group.", add_arguments=_add_group, run=_on_device("group"))
