"""What is wanted of the versions that a store holds: served as before, or on trial."""

from __future__ import annotations

import argparse
from typing import Final

from appliance.cli import store_session
from appliance.cli.command_table import Command
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.model import wait
from appliance.cli.numbers import natural
from appliance.config.swap import header_problems
from appliance.store.catalog import Catalog, Trial, TrialMode


def _add_rollback(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="NAME", help="the model")
    store_session.add_arguments(parser)
    wait.add_arguments(parser)


def _rollback(arguments: argparse.Namespace) -> int:
    """Go back."""
    wait.check_reachable(arguments)
    with store_session.writing(arguments) as store:
        model = store.catalog.model(arguments.model)
        left = model.wanted if model else 0
        failed = store_session.failed_here(arguments.state_dir, arguments.model)
        number = store.roll_back(arguments.model, store_session.wall_ms(), failed)
        generation = store.catalog.generation
    print(
        f"{printable(arguments.model)}/{number} is wanted again, in the place of version {left}", flush=True
    )
    way = model.wanted_before if model else ()
    if passed := failed.intersection(way[: way.index(number)]):
        print(f"Passed over, because it failed here: version {', '.join(map(str, sorted(passed)))}")
    store_session.tell_held(arguments.state_dir, arguments.model)
    wait.wait_for(arguments, {arguments.model: number}, generation)
    return Exit.OK


def _add_trial(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="NAME/VERSION", help="the version, or NAME with --stop")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--canary", metavar="PERCENT", type=natural(1, 100), help="share of the requests that it answers"
    )
    what.add_argument(
        "--shadow",
        metavar="PERCENT",
        type=natural(1, 100),
        help="share of the requests of which it gets a copy",
    )
    what.add_argument("--stop", action="store_true", help="end the model's trial: what is wanted stays")
    parser.add_argument(
        "--header",
        metavar="NAME[: VALUE]",
        default="",
        help="the canary's share is of clients, told apart by this header; with a value: just those that send it",
    )
    store_session.add_arguments(parser)
    wait.add_arguments(parser, trial=True)


def _trial(arguments: argparse.Namespace) -> int:
    """Ask for the trial, or for its end."""
    if arguments.stop and arguments.wait:
        raise CommandFailed("--wait is for a version that goes on trial; leave out --stop")
    if arguments.stop:
        name, number = store_session.reference(arguments.model)
        trial = None
    else:
        name, number = store_session.numbered(arguments.model)
        trial = _trial_of(arguments, number)
    wait.check_reachable(arguments)
    with store_session.writing(arguments) as store:
        before = store.catalog
        if trial is None:
            _check_on_trial(before, name, number)
        store.try_out(name, trial)
        if trial is not None:
            store_session.ask_again(store, before, arguments.state_dir, name, trial.version)
        generation = store.catalog.generation
    if trial is None:
        print(printable(_stopped(before, name)))
        store_session.tell_held(arguments.state_dir, name)
        return Exit.OK
    print(f"{printable(arguments.model)} is {'to be ' * arguments.wait}on trial", flush=True)
    store_session.tell_held(arguments.state_dir, name)
    wait.wait_for(arguments, {name: trial.version}, generation, trial=True)
    return Exit.OK


def _check_on_trial(catalog: Catalog, name: str, number: int | None) -> None:
    """Fails where another version than ``number`` is on trial: the operator means something else."""
    model = catalog.model(name)
    tried = model.trial.version if model and model.trial else None
    if number is not None and tried not in (None, number):
        raise CommandFailed(f"{name}/{number} is not on trial, {name}/{tried} is", Exit.REFUSED)


def _stopped(before: Catalog, name: str) -> str:
    """Which version stays now that no trial is asked for."""
    model = before.model(name)
    wanted, ended = (model.wanted, model.trial) if model else (0, None)
    stays = f"{name}/{wanted} stays" if wanted else "nothing of it is wanted"
    if ended is not None:
        return (
            f"the trial of {name}/{ended.version} is ended: {stays}, {name}/{ended.version} answers no more"
        )
    back = f"; where it is tried as configured, or watched, 'appliance model rollback {name}' goes back"
    return f"no trial of {name} was asked for: {stays}{back if wanted else ''}"


def _trial_of(arguments: argparse.Namespace, number: int) -> Trial:
    canary = arguments.canary is not None
    percent = arguments.canary if canary else arguments.shadow
    if arguments.header and not canary:
        raise CommandFailed("--header is for --canary: a shadow answers nobody")
    header = arguments.header.partition(":")[0].strip().lower()
    if arguments.header and (problem := next(header_problems(header), "")):
        raise CommandFailed(f"--header: {problem}")
    return Trial(
        version=number,
        mode=TrialMode.CANARY if canary else TrialMode.SHADOW,
        percent=percent,
        header=arguments.header,
    )


ROLLBACK: Final = Command(
    about="""\
Have the version served again that was wanted before the present one; a running 'serve' takes it over at once.

Each call goes one step further back, as far as versions are still installed; those that failed on this box are passed
over.
""",
    add_arguments=_add_rollback,
    run=_rollback,
)
TRIAL: Final = Command(
    about="""\
Let an installed version prove itself on real requests before anybody wants it.

As a canary it answers a share of the requests; in the shadow its answers are only compared.

It stays on trial until another trial, 'trial NAME --stop', or another version that is wanted ('want', 'install',
'rollback') ends it. What it showed is in 'appliance status' and 'appliance model history'.
""",
    add_arguments=_add_trial,
    run=_trial,
)
