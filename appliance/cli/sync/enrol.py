"""Have this box belong to a fleet, with the token that its operator made there ('appliance fleet token').

The box makes a key that never leaves it. It trusts the controller by the digest in the token alone, so no certificate
has to be put on the box before. A box that belongs to a fleet already is enrolled anew with --replace: it forgets what
it trusted. What serves is not touched by this.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Final

from appliance.cli import store_session
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.model.retention import hold_words
from appliance.cli.sync import session
from appliance.durable import RealFolder, WriterLock
from appliance.fleet.messages import Enrolled, Enrolment
from appliance.store.catalog_file import read_catalog
from appliance.store.layout import FLEET
from appliance.sync.identity import (
    LOCK,
    Token,
    enrol,
    fleet_folder,
    read_identity,
    request_for_enrolment,
    token_of,
)
from appliance.sync.link import Link, authority_of, enrolment_tls
from appliance.telemetry.inventory import inventory

TOKEN_MOST: Final = 4096
"""Characters."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "token", metavar="TOKEN", help="what 'appliance fleet token' printed, @FILE, or - to read it here"
    )
    parser.add_argument("--name", default="", help="what the box would like to be called")
    parser.add_argument("--replace", action="store_true", help="although the box belongs to a fleet already")
    session.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Enrol."""
    with session.failures():
        said = _text(arguments.token)
        token = token_of(said)
        _check_free(arguments)
        folder = fleet_folder(arguments.state_dir)
        lock = WriterLock(arguments.state_dir / FLEET / LOCK)
        try:
            enrolled = asyncio.run(_ask(token, said, folder, arguments.name))
            enrol(folder, token.url, enrolled)
        finally:
            lock.release()
            folder.close()
    print(printable(f"This box is '{enrolled.device}' of the fleet at {token.url}."))
    _tell_holds(arguments)
    return Exit.OK


def _text(said: str) -> str:
    if said == "-":
        return sys.stdin.read(TOKEN_MOST).strip()
    if not said.startswith("@"):
        return said.strip()
    with open(said[1:], encoding="ascii", errors="replace") as file:
        return file.read(TOKEN_MOST).strip()


def _check_free(arguments: argparse.Namespace) -> None:
    identity = None if arguments.replace else read_identity(arguments.state_dir)
    if identity is not None:
        text = f"this box is '{identity.device}' of the fleet at {identity.url} already; --replace enrols it anew"
        raise CommandFailed(text, Exit.REFUSED)


async def _ask(token: Token, said: str, folder: RealFolder, name: str) -> Enrolled:
    authority = await authority_of(token)
    request = request_for_enrolment(folder)
    enrolment = Enrolment(token=said, request=request, name=name, inventory=dict(inventory()))
    async with Link(token.url, enrolment_tls(authority)) as link:
        return await link.enrol(enrolment)


def _tell_holds(arguments: argparse.Namespace) -> None:
    """What was done by hand before stands, and somebody should know that."""
    with store_session.told():
        catalog = read_catalog(arguments.state_dir)
    holds = catalog.holds if catalog else ()
    for hold in holds:
        print(printable(f"{hold.name} is held by hand: {hold_words(hold)}"))
    if holds:
        print("The fleet leaves these alone; 'appliance model resume --all' lets it have them.")
