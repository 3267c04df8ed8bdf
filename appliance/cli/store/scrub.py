"""Read all that installed versions need from the disk, slowly and at the lowest classes of processor and disk.

What it finds is in scrub.json of the state directory, where it also remembers how far it was: it may be killed at any
moment and goes on there. Damaged blobs come back by installing their packages again.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict

from appliance.cli import store_session
from appliance.cli.failure import Exit, printable
from appliance.cli.terminal import bytes_bar
from appliance.domain.quantity import bytes_text
from appliance.process.priority import yield_disk, yield_processor
from appliance.store.scrub import Scrub, ScrubRecord, blobs_of, due_s, read_record
from appliance.store.trouble import told


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    store_session.add_arguments(parser)
    parser.add_argument(
        "--forever", action="store_true", help="one pass each store.scrub_interval_h, until it is ended"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Scrub; ends with status 1 when something is damaged."""
    config = store_session.configured(arguments).store
    if not arguments.forever:
        store_session.catalog_of(arguments.state_dir)
    yield_processor()
    yield_disk()
    with store_session.told(), told(str(arguments.state_dir), "scrub the store"):
        scrub = Scrub(
            arguments.state_dir,
            config,
            wall_ms=store_session.wall_ms,
            elapsed_s=time.monotonic,
            pause=time.sleep,
        )
        try:
            while arguments.forever:
                record = read_record(arguments.state_dir)
                time.sleep(due_s(record, config.scrub_interval_h * 3600, store_session.wall_ms()))
                _show(scrub.run_pass(), arguments)
            record = _one_pass(scrub, arguments)
        finally:
            scrub.close()
    _show(record, arguments)
    return Exit.REFUSED if record.damaged else Exit.OK


def _one_pass(scrub: Scrub, arguments: argparse.Namespace) -> ScrubRecord:
    total = sum(size for size, _ in blobs_of(store_session.catalog_of(arguments.state_dir)).values())
    with bytes_bar("scrub", total) as progress:
        return scrub.run_pass(progress)


def _show(record: ScrubRecord, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(json.dumps(asdict(record), indent=2), flush=True)
        return
    damaged = f"{len(record.damaged)} damaged" if record.damaged else "no damage"
    print(f"{record.blobs} blobs, {bytes_text(record.bytes)} read: {damaged}", flush=True)
    for each in record.damaged:
        print(f"  {each.digest} {printable(each.text)}", flush=True)
