"""Write a bundle. On a box: its telemetry that did not arrive yet and how it stands, signed by the box. With
--controller: what is wanted of boxes, the streams that this needs, which telemetry arrived; for all boxes or some.

Nothing is removed from a box before its controller says, over the link or in a bundle, that it arrived.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from appliance.cli import store_session
from appliance.cli.bundle.box import box_of
from appliance.cli.bundle.opened import told
from appliance.cli.bundle.written import add_place, write
from appliance.cli.failure import Exit
from appliance.cli.sync import session
from appliance.domain.quantity import bytes_text
from appliance.package.keys import open_signer
from appliance.store.layout import FLEET
from appliance.sync.bundle_export import certificate_pem, index_for, parts_of, report_of, signed_by_box
from appliance.sync.identity import IDENTITY, Identity
from appliance.sync.outboxes import waiting
from appliance.transfer.bundle_writer import Sign


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "bundle",
        metavar="BUNDLE",
        type=Path,
        help="file to write; a directory that is there gets the bundle's files",
    )
    add_place(parser)
    parser.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="NAME",
        help="at a controller: only for this box; several times",
    )
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Gather, write, tell."""
    if arguments.controller is not None:
        from appliance.cli.bundle import desk

        return desk.export(arguments)
    state: Path = arguments.state_dir
    with box_of(state) as (identity, _), told(arguments.bundle):
        parts = parts_of(
            identity.device, report_of(session.settings_of(arguments), session.CLOCK), waiting(state)
        )
        index = index_for(parts, store_session.wall_ms())
        write(arguments.bundle, index, parts, _signing(state, identity), force=arguments.force)
    batches = len(index.of("telemetry", identity.device))
    size = sum(each.member.size for each in parts)
    if arguments.json:
        found = {
            "device": identity.device,
            "bundle": str(arguments.bundle),
            "batches": batches,
            "bytes": size,
        }
        print(json.dumps(found, indent=2))
    else:
        print(
            f"{batches} batches of telemetry of {identity.device}, {bytes_text(size)}, are in '{arguments.bundle}'."
        )
    return Exit.OK


def _signing(state: Path, identity: Identity) -> Sign:
    signer = open_signer(str(state / FLEET / IDENTITY), lambda what: "")
    certificate = certificate_pem(identity)
    return lambda index: signed_by_box(index, certificate, signer)
