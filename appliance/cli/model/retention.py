"""What a store keeps: versions that are pinned stay, those that are uninstalled leave, models that a person changed are
held until that is lifted."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Final

from appliance.cli import store_session
from appliance.cli.command_table import Command
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.domain.model_names import no_such_model
from appliance.domain.moment import moment
from appliance.domain.quantity import bytes_text
from appliance.store.catalog import Hold
from appliance.store.edits import check_spared
from appliance.store.running import read_running


def _add_pin(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``pin`` and ``unpin``."""
    parser.add_argument("model", metavar="NAME/VERSION", help="which version")
    store_session.add_arguments(parser)


def _pin(arguments: argparse.Namespace, *, pinned: bool) -> int:
    """Pin it, or let it go."""
    name, number = store_session.numbered(arguments.model)
    with store_session.writing(arguments) as store:
        store.pin(name, number, pinned=pinned)
        held = store.catalog.hold(name) is not None
    print(f"{printable(arguments.model)} is {'pinned' if pinned else 'not pinned any more'}")
    if held:
        store_session.tell_held(arguments.state_dir, name)
    return Exit.OK


def hold_words(hold: Hold) -> str:
    """What was done, by whom and when, for people."""
    version = f" of version {hold.version}" if hold.version else ""
    return f"{hold.what}{version} by {hold.who or 'a person'}, {moment(hold.since_ms)}"


def _add_uninstall(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="NAME[/VERSION]", help="without a version: all of the model")
    store_session.add_arguments(parser)
    parser.add_argument(
        "--force",
        action="store_true",
        help="take out the last version that has proved itself here as well, although another is wanted that has not",
    )


def _uninstall(arguments: argparse.Namespace) -> int:
    """Uninstall, and remove the garbage."""
    name, number = store_session.reference(arguments.model)
    with store_session.writing(arguments) as store:
        model = store.catalog.model(name)
        present = [each for each in model.versions if number in (None, each.version)] if model else []
        if model is not None and number is not None and not arguments.force:
            served = store_session.served_here(arguments.state_dir, model)
            with store_session.told():
                check_spared(store.catalog, name, number, served)
        gone = store.uninstall(name, number)
        in_use = {each.digest for each in read_running(arguments.state_dir)}
    held = ", ".join(f"{name}/{each.version}" for each in present if each.digest in in_use)
    rest = (
        f"; {held} is in use, and goes with the next install, uninstall or 'appliance store gc' after "
        "the daemon has let go of it"
    )
    freed = bytes_text(gone.bytes)
    print(printable(f"{arguments.model} uninstalled: {freed} freed{rest if held else ''}"))
    store_session.tell_held(arguments.state_dir, name)
    return Exit.OK


def _add_resume(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("models", metavar="NAME", nargs="*", help="models to let go")
    parser.add_argument("--all", action="store_true", help="every model that is held")
    store_session.add_arguments(parser)


def _resume(arguments: argparse.Namespace) -> int:
    """Lift what holds each of them."""
    if bool(arguments.models) == arguments.all:
        raise CommandFailed("give the NAMEs of models, or --all")
    with store_session.writing(arguments) as store:
        catalog = store.catalog
        names = arguments.models or [each.name for each in catalog.holds]
        known = {*(each.name for each in catalog.models), *(each.name for each in catalog.holds)}
        for name in dict.fromkeys(names):
            if name not in known:
                raise CommandFailed(no_such_model(name, sorted(known)), Exit.REFUSED)
            hold = catalog.hold(name)
            store.resume(name)
            what = f"not held any more: {hold_words(hold)}" if hold else "not held; nothing was changed"
            print(printable(f"{name} is {what}"), flush=True)
            model = catalog.model(name)
            for number in model.pins if model else ():
                print(
                    printable(
                        f"{name}/{number} stays pinned; 'appliance model unpin {name}/{number}' lets it go"
                    )
                )
    return Exit.OK


PIN: Final = Command(
    about="""\
Keep a version in the store, wanted or not: it is never evicted to make room, and not uninstalled by mistake.""",
    add_arguments=_add_pin,
    run=partial(_pin, pinned=True),
)
UNPIN: Final = Command(
    about="""\
Let a version be evicted or uninstalled again when nobody wants it. A model that was not held, or not any more, is not
held by this.""",
    add_arguments=_add_pin,
    run=partial(_pin, pinned=False),
)
RESUME: Final = Command(
    about="""\
Let the fleet change models again that a person changed on this box: with 'want', 'install', 'rollback', 'trial', 'pin',
'unpin' or 'uninstall'. The agent then makes of them what the fleet wants; until then it leaves them as they are and
reports who holds them. What they serve does not change by this command, and versions that are pinned stay so until
'unpin'.""",
    add_arguments=_add_resume,
    run=_resume,
)
UNINSTALL: Final = Command(
    about="""\
Take a version, or all of a model, out of the store. What a running 'serve' still uses is removed when it is done.

Refused for what is pinned, for what is wanted while there are other versions, and for the last version that has served
on this box while another is wanted that has not: it may be all that serves.""",
    add_arguments=_add_uninstall,
    run=_uninstall,
)
