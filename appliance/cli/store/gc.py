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
    """Collect."""
    with store_session.writing(arguments) as store:
        found = store.garbage() if arguments.dry_run else store.collect()
    if arguments.json:
        blobs = [{"digest": digest, "bytes": size} for digest, size in found.blobs]
        print(json.dumps({"removed": not arguments.dry_run, "views": found.views, "blobs": blobs}, indent=2))
        return Exit.OK
    verb = "would be removed" if arguments.dry_run else "removed"
    print(
        f"{len(found.blobs)} blobs and {len(found.views)} views {verb}: {store_session.bytes_text(found.bytes)}"
    )
    return Exit.OK
