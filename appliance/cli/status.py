"""Show what a running appliance serves: state, requests since its start, latencies, queues and workers."""

from __future__ import annotations

import argparse
import sys

from appliance.cli.activity import since_start, workers_between
from appliance.cli.failure import Exit
from appliance.cli.snapshot import DEFAULT_URL, fetch, parse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--url", default=DEFAULT_URL, help=f"HTTP address (default {DEFAULT_URL})")
    parser.add_argument("--workers", action="store_true", help="show the worker processes, too")
    parser.add_argument("--json", action="store_true", help="print the document that /status.json gives")


def run(arguments: argparse.Namespace) -> int:
    """Fetch once and show."""
    document = fetch(arguments.url)
    snapshot = parse(document, arguments.url)
    if arguments.json:
        sys.stdout.write(document.decode().rstrip() + "\n")
        return Exit.OK
    from appliance.cli.activity_view import view
    from appliance.cli.text_table import output

    workers = workers_between(None, snapshot) if arguments.workers else ()
    output().print(view(snapshot, since_start(snapshot), workers=workers))
    return Exit.OK
