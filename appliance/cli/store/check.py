"""Read everything that installed versions need and tell what is damaged. Changes nothing and needs no lock.

What is damaged comes back by installing the same package again: good blobs are kept, damaged ones replaced.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from appliance.cli import store_session
from appliance.cli.failure import Exit, printable
from appliance.cli.progress_bar import progress_bar
from appliance.durable import RealFolder
from appliance.store.inspection import Inspection, blobs_of, inspect
from appliance.store.trouble import told


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    store_session.add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="compare names and sizes only, read no blob")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Check; ends with status 1 when something is damaged."""
    found = _inspected(arguments)
    if arguments.json:
        print(json.dumps(asdict(found), indent=2))
    else:
        _show(found, arguments.quick)
    return Exit.REFUSED if found.findings else Exit.OK


def _inspected(arguments: argparse.Namespace) -> Inspection:
    catalog = store_session.catalog_of(arguments.state_dir)
    total = 0 if arguments.quick else sum(size for size, _ in blobs_of(catalog).values())
    with store_session.told(), told(str(arguments.state_dir), "check the store"):
        folder = RealFolder(arguments.state_dir)
        try:
            with progress_bar("check", total) as progress:
                return inspect(
                    folder,
                    lambda: store_session.catalog_of(arguments.state_dir),
                    quick=arguments.quick,
                    progress=progress,
                )
        finally:
            folder.close()


def _show(found: Inspection, quick: bool) -> None:
    looked = f"{found.versions} versions, {found.blobs} blobs, {store_session.bytes_text(found.bytes)}"
    how = "names and sizes" if quick else "every byte"
    if not found.findings:
        print(f"{looked}: no damage ({how} compared)")
        return
    print(
        f"{looked}: {len(found.findings)} damaged ({how} compared); install their packages again", flush=True
    )
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for title in ("what", "which", "is wrong", "needed by"):
        table.add_column(title)
    for each in found.findings:
        words = (each.what, each.place, each.text, " ".join(each.versions))
        table.add_row(*(Text(printable(word)) for word in words))
    Console().print(table)
