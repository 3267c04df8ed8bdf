"""Remove blobs and views that no installed version and no running 'serve' needs.

Looking for them alone (``--dry-run``) needs no lock: it writes nothing, and goes on beside a writer.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from appliance.cli import store_session
from appliance.cli.failure import Exit
from appliance.config.store import StoreConfig
from appliance.domain.quantity import bytes_text
from appliance.durable import is_held
from appliance.store.census import Garbage, census_of
from appliance.store.layout import LOCK
from appliance.store.trouble import told


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    store_session.add_arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="only tell what would be removed")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Collect, and tell whether that was enough."""
    config = store_session.configured(arguments).store
    floor_bytes, writes = config.free_floor_bytes, False
    if arguments.dry_run:
        found, free_bytes, writes = _looked(arguments.state_dir, config)
    else:
        with store_session.writing(arguments) as store:
            found, free_bytes = store.collect(), store.free_bytes
    if arguments.json:
        blobs = [{"digest": digest, "bytes": size} for digest, size in found.blobs]
        about = {
            "removed": not arguments.dry_run,
            "views": found.views,
            "blobs": blobs,
            "free_bytes": free_bytes,
            "free_floor_bytes": floor_bytes,
            "writing": writes,
        }
        print(json.dumps(about, indent=2))
        return Exit.OK
    verb = "would be removed" if arguments.dry_run else "removed"
    size = bytes_text
    print(f"{len(found.blobs)} blobs and {len(found.views)} views {verb}: {size(found.bytes)}")
    if writes:
        print("another process writes to the store: what it is bringing counts here until it is installed")
    if free_bytes <= floor_bytes and not arguments.dry_run:
        print(
            f"{size(free_bytes)} are free on that disk now, and store.free_floor_bytes keeps {size(floor_bytes)}: "
            "nothing can be installed. Uninstall versions ('appliance store usage' shows what each takes), or remove "
            "what others put there."
        )
    return Exit.OK


def _looked(state: Path, config: StoreConfig) -> tuple[Garbage, int, bool]:
    """The garbage, what is free on the disk, and whether another process writes meanwhile."""
    store_session.catalog_of(state)
    with store_session.told(), told(str(state), "look for garbage"), census_of(state, config) as census:
        writes = is_held(state / LOCK)
        found = census.garbage(lambda: store_session.catalog_of(state))
        return found, census.free_bytes, writes or is_held(state / LOCK)
