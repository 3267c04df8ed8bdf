"""What there is at the controller: devices, groups, releases, drift, logs, the audit log."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, Final

from appliance.cli.command_table import Command
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.fleet.arrival import IN_CONFLICT
from appliance.cli.fleet.session import Controller, read_profile, table, watched
from appliance.cli.numbers import natural
from appliance.cli.terminal import print_text
from appliance.domain.moment import moment
from appliance.fleet.record_words import record_text
from appliance.store.full_disk import bytes_text

Row = tuple[object, ...]
LOG_LINES: Final = 50
RECORD_CHARACTERS: Final = 400
CONFLICT: Final = f"{IN_CONFLICT}; look why, then 'appliance fleet resume {{name}}'"


def _device_rows(found: list[Any]) -> list[Row]:
    return [
        (
            each["name"],
            each["group"] or "-",
            each["state"],
            ago(each["seen_ms"]),
            f"{each['told_generation']} of {each['generation']}",
            _there(each),
            each["freshness"] or "-",
            ", ".join(_model_text(model) for model in each["models"]) or "-",
        )
        for each in found
    ]


def _there(device: Any) -> str:
    """Whether it has done what is wanted. One that did all but what a person holds there is not where it was wished:
    who waits for the wish is told the same."""
    if not device["converged"]:
        return "not yet"
    return "held" if any(model["phase"] == "held" for model in device["models"]) else "yes"


def _model_text(model: Any) -> str:
    """What serves, and what is at it."""
    serving = f"{model['name']}/{model['serving'] or '-'}"
    further = f" to {model['wanted']}" if model["wanted"] not in (0, model["serving"]) else ""
    return serving + further + (f" ({model['phase']})" if model["phase"] not in ("", "done") else "")


def _device_notes(found: list[Any]) -> list[str]:
    """What a row has no room for: why something is not there, and what is wished of the one device alone."""
    return [f"{each['name']}: {text}" for each in found for text in (*_problems(each), *_own(each))]


def _problems(device: Any) -> list[str]:
    reasons = [
        f"{model['name']} {model['phase']}: {model['reason']}"
        for model in device["models"]
        if model["phase"] in ("failed", "refused", "held")
    ]
    conflict = [CONFLICT.format(name=device["name"])] if device["state"] == "conflict" else []
    return [*conflict, *device["problems"], *reasons]


def _own(device: Any) -> list[str]:
    own = [_wishes_text(device["wishes"]), _settings_text(device["settings"])]
    return [f"for it alone: {', '.join(each for each in own if each)}"] if any(own) else []


def _wishes_text(wishes: Any) -> str:
    return ", ".join(
        f"{name}={wish['version']}" + (f" (trial of {wish['trial']['version']})" if wish["trial"] else "")
        for name, wish in wishes.items()
    )


def _settings_text(settings: Any) -> str:
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())


def _group_rows(found: list[Any]) -> list[Row]:
    return [
        (
            each["name"],
            each["devices"],
            _wishes_text(each["wishes"]) or "-",
            _settings_text(each["settings"]) or "-",
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
        (each["number"], moment(each["at_ms"]), each["who"], each["what"], each["detail"]) for each in found
    ]


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
    return ms / 1000 - time.time()


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
    notes: Callable[[list[Any]], list[str]],
) -> Callable[[argparse.Namespace], int]:
    """A command that shows a list."""

    def run(arguments: argparse.Namespace) -> int:
        controller = Controller(read_profile())

        def show() -> None:
            found = controller.get(path, **query(arguments))
            if arguments.json:
                print(json.dumps(found, indent=None if arguments.watch else 2))
            else:
                table(titles, rows(found), notes(found))

        return watched(show, watch=arguments.watch)

    return run


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _add(parser: argparse.ArgumentParser) -> None:
    _add_json(parser)
    parser.add_argument("--watch", action="store_true", help="show it again every two seconds")


def _add_log(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", metavar="DEVICE", nargs="?", default="", help="only of this one")
    parser.add_argument("--most", type=natural(1), default=LOG_LINES, help=f"how many (default: {LOG_LINES})")
    _add(parser)


def _command(
    about: str, path: str, titles: tuple[str, ...], rows: Callable[[list[Any]], list[Row]],
    add: Callable[[argparse.ArgumentParser], None] = _add,
    query: Callable[[Any], dict[str, Any]] = lambda arguments: {},
    notes: Callable[[list[Any]], list[str]] = lambda found: [],
) -> Command:  # fmt: skip
    return Command(about=about, add_arguments=add, run=_listing(path, titles, rows, query, notes))


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


DEVICES: Final = _command(
    "Show the devices of the fleet, and how they stand.",
    "/devices",
    ("device", "group", "state", "seen", "document", "there", "(knows)", "models"),
    _device_rows,
    notes=_device_notes,
)
GROUPS: Final = _command(
    "Show the groups of devices, and what is wanted in them.", "/groups", ("group", "devices", "wanted", "settings"),
    _group_rows,
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
    "Show who changed what at the controller.", "/audit", ("line", "when", "who", "did", "what"), _audit_rows
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
