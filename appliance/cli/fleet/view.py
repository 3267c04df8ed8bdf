"""What there is at the controller beside devices: groups, releases, drift, logs, the audit log."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from appliance.cli.command_table import Command
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.fleet.session import Controller, read_profile, table, watched
from appliance.cli.numbers import natural
from appliance.cli.terminal import print_text
from appliance.domain.moment import moment
from appliance.domain.quantity import bytes_text
from appliance.fleet.record_words import record_text

Row = tuple[object, ...]
LOG_LINES: Final = 50
AUDIT_LINES: Final = 1000
RECORD_CHARACTERS: Final = 400


def wishes_text(wishes: Any) -> str:
    """What is wished, by model."""
    return ", ".join(
        f"{name}={wish['version']}" + (f" (trial of {wish['trial']['version']})" if wish["trial"] else "")
        for name, wish in wishes.items()
    )


def settings_text(settings: Any) -> str:
    """What is set, by name."""
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())


def _group_rows(found: list[Any]) -> list[Row]:
    """A controller of an earlier release does not say how many are where."""
    return [
        (
            each["name"],
            each["devices"],
            *(each.get(what, "-") for what in ("there", "failed", "silent")),
            ", ".join(filter(None, (wishes_text(each["wishes"]), settings_text(each["settings"])))) or "-",
        )
        for each in found
    ]


def _release_rows(found: list[Any]) -> list[Row]:
    return [
        (
            f"{each['model']}/{each['version']}",
            each["manifest"][:12],
            bytes_text(each["total_bytes"]),
            bytes_text(each["full_bytes"]),
            bytes_text(min(each["deltas"].values())) if each["deltas"] else "-",
            _signer(each["trust"]),
            f"{each['by']}, {moment(each['at_ms'])}",
        )
        for each in found
    ]


def _signer(trust: str) -> str:
    """Who signed a release, as far as boxes go by it."""
    word, _, keyid = trust.partition(" ")
    return {"unsigned": "nobody", "untrusted": "no trusted key", "wrong": "wrongly"}.get(
        word, f"key {keyid[:16]}"
    )


def _drift_rows(found: list[Any]) -> list[Row]:
    return [
        (
            each["device"],
            each["model"],
            each["what"],
            each["version"] or "-",
            each["who"],
            moment(each["since_ms"]),
        )
        for each in found
    ]


def _log_rows(found: list[Any]) -> list[Row]:
    return [
        (
            each["device"],
            moment(each["at_ms"]),
            each["stream"],
            each["number"],
            record_text(each["record"])[:RECORD_CHARACTERS],
        )
        for each in found
    ]


def _audit_rows(found: list[Any]) -> list[Row]:
    return [
        (each["number"], moment(each["at_ms"]), each["who"], each["what"], _detail_text(each["detail"]))
        for each in found
    ]


def _detail_text(detail: str) -> str:
    """What a line of the audit log is about, in words that a screen may set apart; as it is, where it is no object."""
    try:
        said = json.loads(detail)
    except (ValueError, RecursionError):
        return detail
    return ", ".join(_told(said)) or "-" if isinstance(said, dict) else detail


def _told(said: dict[str, Any], of: str = "") -> Iterator[str]:
    """What is said; of what is said ``of`` something only what was chosen."""
    for name, value in said.items():
        if isinstance(value, dict) and value:
            yield from _told(value, f"{of}{name}.")
        elif value not in ("", [], {}) and not (of and (value is None or value is False)):
            yield f"{of}{name}={value if isinstance(value, str) else json.dumps(value)}"


def _token_rows(found: list[Any]) -> list[Row]:
    return [
        (
            each["name"],
            each["role"]
            or (f"box {each['device']}".strip() if not each["group"] else f"box of {each['group']}"),
            each["made_by"],
            "withdrawn" if each["revoked"] else moment(each["expires_ms"]),
            each["used_by"] or "-",
        )
        for each in found
    ]


def ago(ms: int) -> str:
    """How long ago that was."""
    if not ms:
        return "never"
    return span(max(0, int(-left_s(ms))))


def left_s(ms: int) -> float:
    """In how many seconds that is; below 0: it was."""
    return (ms - now_ms()) / 1000


def now_ms() -> float:
    """The desk's clock."""
    return time.time() * 1000


def span(seconds: int) -> str:
    """So long, in the unit that fits."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def _listing(
    path: str,
    titles: tuple[str, ...],
    rows: Callable[[list[Any]], list[Row]],
    query: Callable[[Any], dict[str, Any]],
) -> Callable[[argparse.Namespace], int]:
    """A command that shows a list."""

    def run(arguments: argparse.Namespace) -> int:
        controller = Controller(read_profile())

        def show() -> None:
            found = controller.get(path, **query(arguments))
            if arguments.json:
                print(json.dumps(found, indent=None if arguments.watch else 2))
            else:
                table(titles, rows(found))

        return watched(show, watch=arguments.watch)

    return run


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def add_showing(parser: argparse.ArgumentParser) -> None:
    """Declare how a list is shown."""
    _add_json(parser)
    parser.add_argument("--watch", action="store_true", help="show it again every two seconds")


def _add_log(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", metavar="DEVICE", nargs="?", default="", help="only of this one")
    parser.add_argument("--most", type=natural(1), default=LOG_LINES, help=f"how many (default: {LOG_LINES})")
    add_showing(parser)


def _add_audit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--most",
        type=natural(1, AUDIT_LINES),
        default=AUDIT_LINES,
        metavar="N",
        help=f"how many, the newest (default, and at most: {AUDIT_LINES:,})",
    )
    add_showing(parser)


def _command(
    about: str, path: str, titles: tuple[str, ...], rows: Callable[[list[Any]], list[Row]],
    add: Callable[[argparse.ArgumentParser], None] = add_showing,
    query: Callable[[Any], dict[str, Any]] = lambda arguments: {},
) -> Command:  # fmt: skip
    return Command(about=about, add_arguments=add, run=_listing(path, titles, rows, query))


def _check_audit(arguments: argparse.Namespace) -> int:
    """Have the chain checked."""
    found = Controller(read_profile()).get("/audit/check")
    if arguments.json:
        print(json.dumps(found, indent=2))
    if found["first_wrong"]:
        raise CommandFailed(
            f"the audit log was changed: line {found['first_wrong']} does not follow", Exit.REFUSED
        )
    if not arguments.json:
        text = f"{found['lines']} lines, each follows from the one before; the newest is {found['newest']}"
        print_text(printable(text), below="  ")
    return Exit.OK


GROUPS: Final = _command(
    "Show the groups of devices, how many of them are there, and what is wanted in them.", "/groups",
    ("group", "devices", "there", "failed", "silent", "wanted"), _group_rows,
)  # fmt: skip
RELEASES: Final = _command(
    "Show the versions that were released, and what they take over the link.",
    "/releases",
    ("version", "(manifest)", "files", "from scratch", "at best", "signed by", "released"),
    _release_rows,
)
DRIFT: Final = _command(
    "Show what operators of boxes decided there, which the fleet leaves alone.",
    "/drift",
    ("device", "model", "did", "version", "who", "since"),
    _drift_rows,
)
LOGS: Final = _command(
    "Show the newest records of devices: health, history, events, figures.",
    "/logs",
    ("device", "came", "of", "number", "record"),
    _log_rows,
    _add_log,
    lambda arguments: {"device": arguments.device, "most": arguments.most},
)
AUDIT: Final = _command(
    "Show who changed what at the controller.",
    "/audit",
    ("line", "when", "who", "did", "what"),
    _audit_rows,
    _add_audit,
    lambda arguments: {"newest": arguments.most},
)
AUDIT_CHECK: Final = Command(
    about="Check that no line of the audit log was changed or left out.",
    add_arguments=_add_json,
    run=_check_audit,
)
TOKENS: Final = _command(
    "Show the tokens of boxes and people; never what they are.",
    "/tokens",
    ("token", "for", "made by", "good until", "used by"),
    _token_rows,
)
