"""Tell, of a version that is wanted from now on, what clients of the one before cannot use as they did."""

from __future__ import annotations

import argparse
from pathlib import Path

from appliance.cli import store_session
from appliance.cli.failure import printable
from appliance.config.repository import RepositoryConfig
from appliance.domain.errors import StoreUnavailable
from appliance.domain.interface import InterfaceChange, allows_change, interface_changes
from appliance.domain.model import ModelVersion
from appliance.engine.versions.wording import change_words
from appliance.repository.model_directory import read_model_directory
from appliance.store.catalog import Catalog
from appliance.store.layout import view_root
from appliance.store.running import read_incumbents, read_running


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Declare that clients change along."""
    parser.add_argument(
        "--allow-interface-change",
        action="store_true",
        help="have it go live although clients of what serves cannot talk to it; else it is held back then",
    )


def tell(arguments: argparse.Namespace, before: Catalog, after: Catalog, name: str, number: int) -> None:
    """Print what is not as with what served or was wanted ``before``, and what a 'serve' does about it; nothing where
    clients need not change, or that cannot be told."""
    settings = store_session.configured(arguments).repository
    wanted = after.model(name)
    old = _served_before(arguments, before, name, settings)
    new = _read(arguments, after, name, number, settings)
    if old is None or new is None or wanted is None:
        return
    changes = interface_changes(new, old)
    if not changes:
        return
    _show(changes)
    was, key = printable(old.key), printable(new.key)
    what = "it goes live, as was allowed"
    if not (wanted.interface_change or allows_change(new)):
        what = (
            f"it is held back where {was} serves, unless it was proven on this box before. "
            f"'appliance model want {key} --allow-interface-change' has it go live"
        )
    print(f"Clients of {was} cannot talk to {key}: {what}.", flush=True)


def _served_before(
    arguments: argparse.Namespace, before: Catalog, name: str, settings: RepositoryConfig
) -> ModelVersion | None:
    """What was wanted where a daemon runs it, else what was proven last while it served, as far as that is known, or
    what was wanted."""
    digests = {each.digest for each in read_incumbents(arguments.state_dir) if each.name == name}
    model = before.model(name)
    if model is None:
        return None
    served = next((each.version for each in model.versions if each.digest in digests), model.wanted)
    if _runs(arguments.state_dir, name, model.wanted):  # it may serve already, and not be proven yet
        served = model.wanted
    return _read(arguments, before, name, served, settings)


def _runs(state: Path, name: str, number: int) -> bool:
    """Whether a daemon runs the version, and has not found that it will not serve."""
    try:
        running = {(each.name, each.version) for each in read_running(state)}
    except StoreUnavailable:
        return False
    return (name, number) in running and number not in store_session.failed_here(state, name)


def _read(
    arguments: argparse.Namespace, catalog: Catalog, name: str, number: int, settings: RepositoryConfig
) -> ModelVersion | None:
    """The version as a 'serve' reads it; None where it is not there, or cannot be read."""
    model = catalog.model(name)
    version = model.version(number) if model else None
    if version is None:
        return None
    root = str(view_root(arguments.state_dir, version.digest).resolve())
    reading = read_model_directory(root, name, settings, only=number)
    return next((each.model for each in reading.servable), None) if reading else None


def _show(changes: tuple[InterfaceChange, ...]) -> None:
    from rich.text import Text

    from appliance.cli.text_table import Column, TextTable, output

    columns = tuple(Column(title=title, left=True) for title in ("changed", "was", "is"))
    rows = [[Text(printable(word)) for word in change_words(change)] for change in changes]
    output().print(TextTable(columns=columns, rows=rows))
