"""Bundles at a controller: what is written for boxes, and what of a box is taken in."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from appliance.cli.bundle.opened import opened, told
from appliance.cli.bundle.written import write
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.person import who
from appliance.cli.store_session import wall_ms
from appliance.cli.terminal import bytes_bar, print_text
from appliance.controller.bundles import receive
from appliance.controller.by_hand import Desk, desk_of, incoming, is_revoked, outgoing
from appliance.controller.signing import sign_bundle
from appliance.domain.errors import ApplianceError
from appliance.domain.quantity import bytes_text, counted
from appliance.fleet.bundle import TO_BOXES, BundleInvalid
from appliance.transfer.bundle_writer import index_of


def export(arguments: argparse.Namespace) -> int:
    """Write a bundle for the boxes that were named, or for all."""
    with _desk(arguments) as desk, told(arguments.bundle), desk.blobs.kept():
        found = outgoing(desk, arguments.device, who(), wall_ms())
        if not found.devices:
            raise CommandFailed("there is no device that could be brought anything", Exit.REFUSED)
        index = index_of(TO_BOXES, found.parts, wall_ms())
        write(arguments.bundle, index, found.parts, partial(sign_bundle, desk.keys), force=arguments.force)
    size = sum(each.size for each in index.members)
    if arguments.json:
        said = {
            "bundle": str(arguments.bundle), "devices": found.devices, "held": found.held,
            "missing": found.missing, "streams": len(index.of("stream")), "bytes": size,
        }  # fmt: skip
        print(json.dumps(said, indent=2))
        return Exit.OK
    devices, streams = counted(len(found.devices), "device"), counted(len(index.of("stream")), "stream")
    print_text(f"{devices}, {streams}, {bytes_text(size)}, in '{arguments.bundle}'.")
    if found.held:
        print_text(f"Nothing for {', '.join(found.held)}: see 'appliance fleet resume'.")
    if found.missing:
        print_text(
            f"{len(found.missing)} streams or indexes are not at this controller and not in the bundle."
        )
    return Exit.OK


def take_in(arguments: argparse.Namespace) -> int:
    """Take in the telemetry and the report of a box."""
    with _desk(arguments) as desk, opened(arguments.bundle) as bundle:
        with bytes_bar("reading", sum(each.size for each in bundle.index.members)) as advance:
            received = receive(bundle, [desk.authority.certificate], partial(is_revoked, desk), advance)
        here = incoming(desk, received, who(), wall_ms())
    if arguments.json:
        acknowledged = [{"stream": each.stream, "epoch": each.epoch, "next": each.next} for each in here]
        said = {"device": received.device, "records": received.records, "acknowledged": acknowledged}
        print(json.dumps(said, indent=2))
    else:
        name = printable(received.device)
        print_text(
            f"{counted(received.records, 'record')} of {name} are here; the next bundle for it says so."
        )
    return Exit.OK


@contextmanager
def _desk(arguments: argparse.Namespace) -> Iterator[Desk]:
    try:
        with desk_of(arguments.controller) as desk:
            yield desk
    except BundleInvalid:
        raise
    except ApplianceError as error:
        raise CommandFailed(str(error)) from error
