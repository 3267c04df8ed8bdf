"""Show what a running appliance serves: state, requests since its start, latencies, queues and workers."""

from __future__ import annotations

import argparse
import sys

from appliance.cli.activity import over_quota_between, since_start, workers_between
from appliance.cli.failure import Exit
from appliance.cli.snapshot import Source, add_url, parse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_url(parser, "HTTP address")
    parser.add_argument("--workers", action="store_true", help="show the worker processes, too")
    parser.add_argument("--json", action="store_true", help="print the document that /status.json gives")


def run(arguments: argparse.Namespace) -> int:
    """Fetch once and show."""
    document = Source(arguments).fetch()
    snapshot = parse(document, arguments.url)
    if arguments.json:
        sys.stdout.write(document.decode().rstrip() + "\n")
        return Exit.OK
    from appliance.cli.activity_view import view
    from appliance.cli.text_table import output

    workers = workers_between(None, snapshot) if arguments.workers else ()
    over_quota = over_quota_between(None, snapshot)
    output().print(view(snapshot, since_start(snapshot), workers=workers, over_quota=over_quota))
    return Exit.OK
