"""The box that a command of bundles is given: who it is to its controller, and its agent's directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.cli.failure import CommandFailed
from appliance.domain.errors import ApplianceError
from appliance.durable import RealFolder
from appliance.fleet.bundle import BundleInvalid
from appliance.sync.identity import Identity, fleet_folder, read_identity


@contextmanager
def box_of(state: Path) -> Iterator[tuple[Identity, RealFolder]]:
    """The box whose state directory this is. Fails where it belongs to no fleet, and with the text of what goes wrong
    with its files."""
    try:
        identity = read_identity(state)
        if identity is None:
            raise CommandFailed(
                f"the box of '{state}' belongs to no fleet; 'appliance sync enrol' has it belong to one"
            )
        folder = fleet_folder(state)
        try:
            yield identity, folder
        finally:
            folder.close()
    except BundleInvalid:
        raise
    except ApplianceError as error:
        raise CommandFailed(str(error)) from error
