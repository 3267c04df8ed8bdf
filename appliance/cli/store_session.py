"""A command's hold on a store: where it is, what the configuration says of it, and its errors as sentences.

Also the only place of the command line that looks at the wall clock, for the times that the catalog keeps for people.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from appliance.cli.arguments import configuration_at
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.person import who
from appliance.config.tree import ApplianceConfig
from appliance.core.rollout.records import have_served
from appliance.domain.errors import (
    ApplianceError,
    CatalogInvalid,
    CatalogLost,
    PackageInvalid,
    StoreUnavailable,
)
from appliance.durable import RealFolder
from appliance.engine.versions.history import read_history, unfit
from appliance.store import trouble
from appliance.store.catalog import Catalog, CatalogModel, identity_of
from appliance.store.catalog_file import read_catalog
from appliance.store.layout import ENROLLED, SERVE
from appliance.store.running import read_holder, read_incumbents
from appliance.store.writer import Hand, StoreWriter, open_store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where the store is."""
    add_place(
        parser,
        "TOML file; its state_dir and its sections [store] and [packages] count here ('appliance config show' lists "
        "the keys)",
    )


def add_place(parser: argparse.ArgumentParser, config: str, *, required: bool = True) -> None:
    """Declare the state directory, which the configuration (``config`` says what else it is for) may say as well."""
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        type=Path,
        help="state directory that holds the store (default: state_dir of --config)",
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help=config)
    parser.set_defaults(settle=(partial(_settle, required),))


def _settle(required: bool, parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if arguments.state_dir is None and arguments.config is not None:
        said = configured(arguments).state_dir
        arguments.state_dir = Path(said) if said else None
    if arguments.state_dir is None and required:
        parser.error("--state-dir is required, or a --config that says state_dir")


def configured(arguments: argparse.Namespace) -> ApplianceConfig:
    """The configuration; whether this machine could serve with it is not asked."""
    return configuration_at(arguments.config)


@contextmanager
def writing(arguments: argparse.Namespace, *, make: bool = False) -> Iterator[StoreWriter]:
    """The store, with its lock, for as long as the context lasts; a model that is changed is held by who gave the
    command. Fails where there is none, unless it is to ``make`` one."""
    config = configured(arguments)
    if not make:
        catalog_of(arguments.state_dir)
    hand = Hand(who=who(), now_ms=wall_ms())
    with told(), open_store(arguments.state_dir, config.store, hand) as store:
        yield store


def tell_held(state: Path, name: str) -> None:
    """Say, where the box belongs to a fleet, that this leaves the model alone from now on."""
    if (state / ENROLLED).exists():
        resume = f"'appliance model resume {name}'"
        print(printable(f"held by hand: the fleet leaves {name} alone until {resume}"), flush=True)


@contextmanager
def looking(state: Path, what: str) -> Iterator[RealFolder]:
    """The state directory, for one who reads; ``what`` is being done there, for errors."""
    with told(), trouble.told(str(state), what), closing(RealFolder(state)) as folder:
        yield folder


def catalog_of(state: Path) -> Catalog:
    """What a reader finds; fails where there is no store."""
    catalog = None
    if os.path.lexists(state):
        with told():
            catalog = read_catalog(state)
    if catalog is None:
        what = f"'{state}' holds no store" if os.path.lexists(state) else f"there is no '{state}'"
        raise CommandFailed(f"{what}; 'appliance model install' makes a store")
    return catalog


def holder_of(state: Path) -> int | None:
    """See ``read_holder``; 0 also where the lock itself cannot be looked at."""
    try:
        return read_holder(state)
    except OSError:
        return 0


def failed_here(state: Path, name: str) -> frozenset[int]:
    """Versions that the daemon says failed; none where that cannot be read, which stands in the way of nothing."""
    try:
        return unfit(read_history(state / SERVE, name))
    except OSError:
        return frozenset()


def served_here(state: Path, model: CatalogModel) -> frozenset[int]:
    """Versions of the model that have served, by the daemon's history or its word of what was proven last; none where
    neither can be read. Where one was proven, what is wanted in its place counts once that is, too: it may serve for a
    moment only."""
    incumbents = {each.digest for each in read_incumbents(state)} if model.versions else set()
    proven = frozenset(each.version for each in model.versions if each.digest in incumbents)
    try:
        changes = read_history(state / SERVE, model.name)
    except OSError:
        changes = ()
    live = have_served(changes)
    served = frozenset(each.version for each in model.versions if identity_of(model.name, each) in live)
    proven -= unfit(changes)
    return (served - {model.wanted} if proven else served) | proven


def ask_again(
    store: StoreWriter, before: Catalog, state: Path, name: str, number: int, *, order: bool = False
) -> bool:
    """Have a version tried again that failed here, by ``order`` or as a proposal, unless that was asked for by what was
    changed since ``before``; whether it was."""
    found, present = (_asked_ms(catalog, name, number) for catalog in (before, store.catalog))
    if found != present or number not in failed_here(state, name):
        return False
    store.ask_again(name, number, wall_ms(), order=order)
    return True


def _asked_ms(catalog: Catalog, name: str, number: int) -> int | None:
    model = catalog.model(name)
    version = model.version(number) if model else None
    return version.last_wanted_ms if version else None


@contextmanager
def told() -> Iterator[None]:
    """Errors of the appliance end the command with their text; lists of problems come one per line."""
    try:
        yield
    except CatalogInvalid as error:
        lines = map(str, error.problems)
        raise CommandFailed("the store's catalog cannot be believed:", Exit.REFUSED, lines=lines) from error
    except PackageInvalid as error:
        raise CommandFailed(
            "the package is refused:", Exit.REFUSED, lines=map(str, error.problems)
        ) from error
    except (StoreUnavailable, CatalogLost) as error:
        raise CommandFailed(str(error)) from error
    except ApplianceError as error:
        raise CommandFailed(str(error), Exit.REFUSED) from error


def reference(text: str) -> tuple[str, int | None]:
    """``NAME/VERSION`` or ``NAME`` as name and version. Fails for anything else."""
    name, slash, number = text.partition("/")
    fleet, equals, version = text.partition("=")
    if equals and fleet and version.isascii() and version.isdecimal():
        raise CommandFailed(f"'{text}' is how 'fleet want' names a version; here it is {fleet}/{version}")
    if not name or (slash and not (number.isascii() and number.isdecimal())):
        raise CommandFailed(f"'{text}' is not NAME or NAME/VERSION")
    return name, int(number) if slash else None


def numbered(text: str) -> tuple[str, int]:
    """``NAME/VERSION`` as name and version. Fails for anything else."""
    name, number = reference(text)
    if number is None:
        raise CommandFailed(f"'{text}' says no version; give {text}/VERSION")
    return name, number


def wall_ms() -> int:
    """Milliseconds since 1970, if the clock is right; for people and estimates only."""
    return time.time_ns() // 1_000_000
