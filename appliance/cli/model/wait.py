"""What the commands that change what is served have in common: waiting until it is, with a bar where it is watched."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from appliance.cli import endpoint, store_session
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.numbers import seconds
from appliance.cli.rollout_progress import Done, Failed, InProgress, progress_of
from appliance.cli.snapshot import Read, understood
from appliance.cli.status_source import StatusSource
from appliance.cli.terminal import share_bar

LOOK_S: Final = 0.1
"""How often the appliance is asked."""
LEAST_S: Final = 0.001
LIMIT_S: Final = 600.0
MOST_S: Final = 86_400.0


def add_arguments(parser: argparse.ArgumentParser, *, trial: bool = False) -> None:
    """Declare whether, where and how long to wait; ``trial``: for that."""
    parser.add_argument(
        "--wait",
        action="store_true",
        help=f"until a running 'serve' has {'it on trial' if trial else 'brought it live'}, with a progress bar",
    )
    endpoint.add_arguments(parser, config=False)
    add_bound(parser, "with --wait: seconds to wait at most; the change stays made")


def add_bound(
    parser: argparse.ArgumentParser, bound: str, limit_s: float = LIMIT_S, most_s: float = MOST_S
) -> None:
    """Declare how long to wait, ``limit_s`` where that is not said, and what that ``bound`` means."""
    parser.add_argument(
        "--timeout",
        type=seconds(LEAST_S, most_s),
        metavar="S",
        help=f"{bound} (default {limit_s:.0f})",
    )


def bound_s(arguments: argparse.Namespace, limit_s: float = LIMIT_S) -> float:
    """How long to wait at most."""
    return limit_s if arguments.timeout is None else float(arguments.timeout)


def check_bound(arguments: argparse.Namespace) -> None:
    """Fails where it is said how long to wait, and not that."""
    if arguments.timeout is not None and not arguments.wait:
        raise CommandFailed("--timeout is for --wait: give --wait as well, or leave it out")


def check_reachable(arguments: argparse.Namespace) -> None:
    """Fails where one is to wait for an appliance that does not answer, or only for how long to wait is said: before
    anything is changed."""
    check_bound(arguments)
    if arguments.wait:
        told_by_holder(
            StatusSource(arguments), arguments.state_dir, lambda document: document["store"]["generation"]
        )


def told_by_holder(source: StatusSource, state: Path, read: Callable[[Mapping[str, Any]], Read]) -> Read:
    """What ``read`` makes of the status of the appliance that serves from the store in ``state``. Fails where none
    does, or another one answers: what that says is about other versions."""
    document, holder = source.fetch(), store_session.holder_of(state)

    def checked(fields: Mapping[str, Any]) -> Read:
        pid = fields["server"].get("pid", 0)  # an appliance of an earlier release does not say it
        if holder is None:
            raise CommandFailed(
                f"no 'serve' has the store in '{state}'; what answers at {source.url} serves something else",
                Exit.UNREACHABLE,
            )
        if fields["store"] is None or (holder and pid not in (0, holder)):
            raise CommandFailed(
                f"what answers at {source.url} is not the 'serve' that has the store in '{state}'; give the --url of "
                "that one, or a --config that says where it listens",
                Exit.UNREACHABLE,
            )
        return read(fields)

    return understood(document, source.url, checked)


def wait_for(
    arguments: argparse.Namespace, versions: Mapping[str, int], generation: int, *, trial: bool = False
) -> None:
    """Wait, if that was asked for, until the ``versions`` by name that the catalog ``generation`` asks for serve, or
    are on ``trial``, and say so of each. Fails when one never will, or not all of them do within the time; what was
    asked for stays asked for."""
    began = time.monotonic()
    for name, version in versions.items() if arguments.wait else ():
        _wait_for(arguments, name, version, generation, trial, began)


def _wait_for(
    arguments: argparse.Namespace, name: str, version: int, generation: int, trial: bool, began: float
) -> None:
    key, end, source = f"{name}/{version}", "on trial" if trial else "live", StatusSource(arguments)
    limit_s = bound_s(arguments)
    with share_bar(key) as show:
        while True:
            try:
                found = told_by_holder(
                    source,
                    arguments.state_dir,
                    lambda document: progress_of(document, name, version, generation, trial=trial),
                )
            except CommandFailed as failure:
                text = f"whether {key} goes {end} is not known: {failure}; it stays asked for"
                raise CommandFailed(text, failure.status) from None
            if not isinstance(found, InProgress):
                break
            if show is not None:
                show(found.share, found.text)
            if time.monotonic() - began > limit_s:
                raise CommandFailed(
                    f"{key} is not {end} after {limit_s:g} s: {found.text}; it stays asked for, and "
                    "'appliance status' tells what becomes of it",
                    Exit.REFUSED,
                )
            time.sleep(LOOK_S)
    if isinstance(found, Failed):
        raise CommandFailed(f"{key} does not go {end}: {found.reason}", Exit.REFUSED)
    assert isinstance(found, Done)
    print(f"{printable(key)} {printable(found.text)} after {time.monotonic() - began:.1f} s")
    if found.remark:
        print(f"{printable(key)} {printable(found.remark)}")
