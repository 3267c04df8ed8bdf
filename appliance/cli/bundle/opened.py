"""A bundle that a command was given, and its errors as sentences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.cli.failure import CommandFailed, Exit
from appliance.fleet.bundle import BundleInvalid
from appliance.transfer.bundle_reader import BundleReader


@contextmanager
def opened(path: Path) -> Iterator[BundleReader]:
    """The bundle at ``path``. Fails with all that is wrong with it, also while it is read."""
    with told(path), BundleReader(path) as bundle:
        yield bundle


@contextmanager
def told(path: Path) -> Iterator[None]:
    """What is wrong with the bundle at ``path`` ends the command, one problem a line."""
    try:
        yield
    except BundleInvalid as error:
        lines = map(str, error.problems)
        raise CommandFailed(f"the bundle '{path}' is refused:", Exit.REFUSED, lines=lines) from error
    except OSError as error:
        text = f"'{error.filename or path}' cannot be read or written: {error.strerror or error}"
        raise CommandFailed(text) from error
