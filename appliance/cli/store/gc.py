"""Remove blobs and views that no installed version and no running 'serve' needs."""

from __future__ import annotations

import argparse
import json

from appliance.cli import store_session
from appliance.cli.failure import Exit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    store_session.add_arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="only tell what would be removed")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Collect, and tell whether that was enough."""
    floor_bytes = store_session.configured(arguments).store.free_floor_bytes
    with store_session.writing(arguments) as store:
        found = store.garbage() if arguments.dry_run else store.collect()
        free_bytes = store.free_bytes
    if arguments.json:
        blobs = [{"digest": digest, "bytes": size} for digest, size in found.blobs]
        about = {
            "removed": not arguments.dry_run,
            "views": found.views,
            "blobs": blobs,
            "free_bytes": free_bytes,
            "free_floor_bytes": floor_bytes,
        }
        print(json.dumps(about, indent=2))
        return Exit.OK
    verb = "would be removed" if arguments.dry_run else "removed"
    told = store_session.bytes_text
    print(f"{len(found.blobs)} blobs and {len(found.views)} views {verb}: {told(found.bytes)}")
    if free_bytes <= floor_bytes and not arguments.dry_run:
        print(
            f"{told(free_bytes)} are free on that disk now, and store.free_floor_bytes keeps {told(floor_bytes)}: "
            "nothing can be installed. Uninstall versions ('appliance store usage' shows what each takes), or remove "
            "what others put there."
        )
    return Exit.OK
