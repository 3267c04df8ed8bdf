"""Take in a bundle. On a box: what its fleet wants of it, the streams that this needs, and which telemetry arrived.
With --controller: telemetry of a box, each record once, and how it stands.

Everything is checked first, as if it had come over the link; a bundle that is not what it says changes nothing. Where
'appliance sync' runs, it takes over what was checked; where it does not, it goes on with that when it is started.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from appliance.cli.bundle.box import box_of
from appliance.cli.bundle.opened import opened
from appliance.cli.bundle.written import add_place
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.sync.session import instant
from appliance.cli.terminal import bytes_bar
from appliance.domain.errors import StoreBusy
from appliance.domain.quantity import bytes_text
from appliance.durable import RealFolder, WriterLock
from appliance.fleet.settings import setting_problems
from appliance.store.layout import FLEET
from appliance.sync import progress, trust_file
from appliance.sync.bundle_import import Found, look, take, take_pieces
from appliance.sync.carried import Carried
from appliance.sync.identity import LOCK, Identity
from appliance.sync.inbox import Delivery, deliver
from appliance.sync.outboxes import acknowledge
from appliance.transfer.bundle_reader import BundleReader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="directory or file")
    add_place(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Check it, keep it, tell what it was."""
    if arguments.controller is not None:
        from appliance.cli.bundle import desk

        return desk.take_in(arguments)
    with box_of(arguments.state_dir) as (identity, folder), opened(arguments.bundle) as bundle:
        before = trust_file.load(folder).trusted
        with bytes_bar("checking", _stream_bytes(bundle)) as advance:
            found = look(bundle, before, identity.device, advance)
        if found.refused and found.trusted == before:
            text = f"the bundle is refused ({found.refused.code}): {found.refused.text}"
            raise CommandFailed(text, Exit.REFUSED)
        with bytes_bar("taking in", sum(each.size for each in found.pieces)) as advance:
            rose = found.trusted.counters.timestamp > before.counters.timestamp
            running = _keep(arguments.state_dir, folder, bundle, found, advance, rose=rose)
    said = _told(identity, found, changed=found.trusted != before, running=running)
    print(json.dumps(said, indent=2) if arguments.json else _sentences(said))
    return Exit.REFUSED if found.refused else Exit.OK


def _keep(
    state: Path,
    folder: RealFolder,
    bundle: BundleReader,
    found: Found,
    advance: Callable[[int], None],
    *,
    rose: bool,
) -> bool:
    """Keep what was found, or leave it for the agent; whether one runs. ``rose``: it has a newer timestamp."""
    try:
        lock = WriterLock(state / FLEET / LOCK)
    except StoreBusy:
        deliver(folder, Delivery(found.polled, found.acknowledged))
        take_pieces(bundle, found, Carried(folder), advance)
        return True
    try:
        take(
            bundle,
            found,
            Carried(folder),
            lambda each: trust_file.keep(folder, each),
            lambda each: acknowledge(state, each),
            advance,
        )
        _note(folder, found, rose=rose)
    finally:
        lock.release()
    return False


def _note(folder: RealFolder, found: Found, *, rose: bool) -> None:
    """Note the contact in the place of the agent."""
    before = progress.read(folder)
    progress.keep(folder, progress.after_answer(before, found.refused, instant(), rose=rose))


def _told(identity: Identity, found: Found, *, changed: bool, running: bool) -> dict[str, Any]:
    return {
        "device": identity.device,
        "generation": found.trusted.counters.targets,
        "changed": changed,
        "refused": {"code": found.refused.code, "text": found.refused.text} if found.refused else None,
        "streams": sum(each.kind == "stream" for each in found.pieces),
        "bytes": sum(each.size for each in found.pieces),
        "setting_problems": list(setting_problems(found.trusted.desired.settings))
        if found.trusted.desired
        else [],
        "signed": found.signed,
        "acknowledged": [
            {"stream": each.stream, "epoch": each.epoch, "next": each.next} for each in found.acknowledged
        ],
        "agent_runs": running,
    }


def _sentences(said: dict[str, Any]) -> str:
    lines = []
    if said["refused"]:
        lines.append(
            f"The newest state cannot be done here: {said['refused']['text']}. The box works towards the one before."
        )
    elif said["changed"]:
        lines.append(f"Generation {said['generation']} is trusted.")
    else:
        lines.append(f"Nothing is new: generation {said['generation']} is trusted already.")
    if said["setting_problems"]:
        lines.append(f"Its settings are not taken: {'; '.join(said['setting_problems'])}.")
    if said["streams"]:
        lines.append(f"{said['streams']} streams are here, {bytes_text(said['bytes'])} with their indexes.")
    if said["acknowledged"]:
        lines.append("The controller has telemetry of this box; it is not sent again.")
    elif not said["signed"]:
        lines.append("What it says of telemetry is not believed: the controller did not sign the bundle.")
    if said["changed"] and not said["agent_runs"]:
        lines.append("'appliance sync' does not run; it goes on with this when it is started.")
    return "\n".join(map(printable, lines))


def _stream_bytes(bundle: BundleReader) -> int:
    return sum(each.size for kind in ("stream", "index") for each in bundle.index.of(kind))
