"""Replace this machine's image by a newer release; the next start tries it.

PLACE is the directory of a release or its URL. Everything is checked before anything is written: who signed it, its
version, its machine, its sizes, the room for it. What came goes on where it stopped, whenever the command is run again.
The new version has three starts to answer a request; otherwise the boot loader takes the version that runs now.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from appliance.cli.arguments import configuration_at
from appliance.cli.failure import CommandFailed, Exit
from appliance.cli.image.here import FOLDER, KEYS, this_machine, told
from appliance.cli.numbers import natural
from appliance.cli.terminal import bytes_bar
from appliance.domain.manifest import INT64_MAX
from appliance.durable import WriterLock, make_own_directory
from appliance.image import update
from appliance.image.machine import Machine
from appliance.image.place import Place, open_place
from appliance.image.release import Release, ReleaseInvalid
from appliance.package.keys import PublicKey, read_public_key


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("place", metavar="PLACE", help="directory or URL of a release")
    parser.add_argument("--check", action="store_true", help="only tell whether it could be installed")
    parser.add_argument(
        "--rate",
        type=natural(0, INT64_MAX),
        metavar="N",
        help="bytes per second at most, 0: no bound (default: fleet.rate_bytes_per_s)",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML file whose fleet.rate_bytes_per_s counts"
    )


def run(arguments: argparse.Namespace) -> int:
    """Check, transfer, install."""
    machine = this_machine()
    rate = arguments.rate
    if rate is None:
        rate = configuration_at(arguments.config).fleet.rate_bytes_per_s
    with told():
        if arguments.check:
            release = asyncio.run(_bring(arguments.place, machine, trusted_keys(KEYS), rate, True))
            print(f"{release.version} can be installed; {machine.version} runs")
            return Exit.OK
        lock = WriterLock(FOLDER.with_suffix(".lock"))  # what two bring at once is neither's
        try:
            release = asyncio.run(_bring(arguments.place, machine, trusted_keys(KEYS), rate, False))
            if machine.entry(release.version) is None:
                update.check_kernel(release, FOLDER)
            update.install(release, machine)
            update.clear(FOLDER)
        finally:
            lock.release()
    print(f"{release.version} is installed; the next start tries it, and falls back to {machine.version}")
    return Exit.OK


def trusted_keys(folder: Path) -> list[PublicKey]:
    """The keys that may have signed a release. Raises OperatorError where one cannot be read, CommandFailed
    where there is none."""
    keys = [read_public_key(path) for path in sorted(folder.glob("*.pub"))]
    if not keys:
        raise CommandFailed(f"'{folder}' has no keys, so no release can be trusted", Exit.REFUSED)
    return keys


async def _bring(said: str, machine: Machine, keys: list[PublicKey], rate: int, only_check: bool) -> Release:
    async with open_place(said) as place:
        release = _checked(place, machine, keys)
        if not only_check:
            update.make_room(FOLDER, release)
        if (
            not only_check and machine.entry(release.version) is None
        ):  # else it is here, and only gets its starts
            with bytes_bar(f"image {release.version}", release.total_bytes) as advance:
                seen = 0

                def show(here: int, _of: int) -> None:
                    nonlocal seen
                    advance(here - seen)
                    seen = here

                await update.transfer(release, place.source, FOLDER, rate, show)
    return release


def _checked(place: Place, machine: Machine, keys: list[PublicKey]) -> Release:
    release, trust = update.read(place.papers, place.envelope, keys)
    make_own_directory(FOLDER)
    if found := list(update.refusals(release, trust, machine, update.free_bytes(FOLDER))):
        raise ReleaseInvalid(found)
    return release
