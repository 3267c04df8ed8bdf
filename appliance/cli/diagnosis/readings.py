"""Readings that no command shows and that may not come back: each is run as a command in a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from appliance.cli import endpoint, store_session
from appliance.cli.arguments import configuration_at
from appliance.cli.command_table import Command, CommandTable, Entry
from appliance.cli.config import as_plain
from appliance.cli.failure import CommandFailed, Exit
from appliance.cli.status_source import METRICS as METRICS_PAGE
from appliance.cli.status_source import StatusSource
from appliance.devices.nvml import Nvml
from appliance.domain.errors import ArtefactError
from appliance.domain.regular_file import read_file
from appliance.store.layout import GIVEN, MACHINE, SCRUB
from appliance.sync.identity import NotEnrolled, read_identity
from appliance.sync.outboxes import waiting_bytes

NOTE_BYTES: Final = 1 << 20
NOTES: Final = (SCRUB, MACHINE, GIVEN)


def _metrics(arguments: argparse.Namespace) -> int:
    """What /metrics says, from the port for monitoring alone where there is one: that asks for no certificate."""
    sys.stdout.buffer.write(_asked(arguments))
    return Exit.OK


def _asked(arguments: argparse.Namespace) -> bytes:
    if not arguments.url and arguments.config is not None:
        own = endpoint.listening(configuration_at(arguments.config).metrics.addresses)
        if own:
            plain = argparse.Namespace(url=own, config=None, ca=None, cert=None, key=None, server_name="")
            with suppress(CommandFailed):
                return StatusSource(plain).fetch(METRICS_PAGE)
    return StatusSource(arguments).fetch(METRICS_PAGE)


def _gpus(_arguments: argparse.Namespace) -> int:
    """Devices as the driver tells of them, and how each is now."""
    try:
        driver = Nvml()
    except OSError as error:
        raise CommandFailed(f"no GPU can be looked at: {error}") from error
    try:
        told = [{**as_plain(each), "now": as_plain(driver.read(each))} for each in driver.devices]
    finally:
        driver.close()
    return _print(told)


def _identity(arguments: argparse.Namespace) -> int:
    """What others may know of who this box is: of its certificate, not of its key."""
    try:
        identity = read_identity(arguments.state_dir)
        if identity is None:
            raise CommandFailed(f"'{arguments.state_dir}' belongs to no fleet")
        certificate = identity.certificate
    except NotEnrolled as error:
        raise CommandFailed(str(error)) from error
    return _print(
        {
            "device": identity.device,
            "controller": identity.url,
            "subject": certificate.subject.rfc4514_string(),
            "issuer": certificate.issuer.rfc4514_string(),
            "serial": f"{certificate.serial_number:x}",
            "valid_from": str(certificate.not_valid_before_utc),
            "valid_until": str(certificate.not_valid_after_utc),
        }
    )


def _state(arguments: argparse.Namespace) -> int:
    """What the state directory takes, by its parts, what waits in its outboxes, and the notes that stand in it."""
    place: Path = arguments.state_dir
    try:
        entries = [_entry(place, "."), *(_entry(place, name) for name in sorted(os.listdir(place)))]
        waiting = waiting_bytes(place)
    except OSError as error:
        raise CommandFailed(f"'{error.filename or place}' cannot be read: {error.strerror}") from error
    return _print({"entries": entries, "outbox_waiting_bytes": waiting, "notes": dict(_notes(place))})


def _entry(place: Path, name: str) -> dict[str, Any]:
    """Whose it is, and what it takes with all below it; of the directory itself that is not added up."""
    path = place / name
    found = path.lstat()
    sizes = [] if name == "." else list(_sizes(path))
    return {
        "name": name,
        "mode": f"{found.st_mode & 0o7777:04o}",
        "owner": f"{found.st_uid}:{found.st_gid}",
        "bytes": sum(sizes),
        "files": len(sizes),
    }


def _sizes(path: Path) -> Iterator[int]:
    """Of the files at or below ``path``; what goes meanwhile, or is not to be read, is left out."""
    if not path.is_dir() or path.is_symlink():
        yield path.lstat().st_size
    for above, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                yield (Path(above) / name).lstat().st_size


def _notes(place: Path) -> Iterator[tuple[str, str]]:
    for name in NOTES:
        with suppress(ArtefactError):
            yield name, read_file(str(place / name), NOTE_BYTES, follow=False).decode(errors="replace")


def _disks(arguments: argparse.Namespace) -> int:
    """Room and files that are left where each of the paths is; one that is not there is left out."""
    return _print([_disk(path) for path in arguments.paths if path.exists()])


def _disk(path: Path) -> dict[str, Any]:
    found = os.statvfs(path)
    return {
        "path": str(path),
        "device": os.stat(path).st_dev,
        "bytes": found.f_blocks * found.f_frsize,
        "free_bytes": found.f_bavail * found.f_frsize,
        "files": found.f_files,
        "free_files": found.f_favail,
        "read_only": bool(found.f_flag & os.ST_RDONLY),
    }


def _print(document: object) -> int:
    print(json.dumps(document, indent=2))
    return Exit.OK


def _nothing(_parser: argparse.ArgumentParser) -> None:
    """There are no arguments."""


def _place(parser: argparse.ArgumentParser) -> None:
    store_session.add_place(parser, "TOML file that says state_dir")


def _paths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", type=Path, nargs="+")


METRICS: Final = Command(about=_metrics.__doc__ or "", add_arguments=endpoint.add_arguments, run=_metrics)
GPUS: Final = Command(about=_gpus.__doc__ or "", add_arguments=_nothing, run=_gpus)
IDENTITY: Final = Command(about=_identity.__doc__ or "", add_arguments=_place, run=_identity)
STATE: Final = Command(about=_state.__doc__ or "", add_arguments=_place, run=_state)
DISKS: Final = Command(about=_disks.__doc__ or "", add_arguments=_paths, run=_disks)


TABLE: Final = CommandTable(
    program="reading",
    about="Readings for a support archive.",
    commands=MappingProxyType(
        {
            name: Entry("", f"{__name__}:{name.upper()}")
            for name in ("metrics", "gpus", "identity", "state", "disks")
        }
    ),
)
