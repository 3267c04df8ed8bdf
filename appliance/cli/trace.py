"""Show where the time of one traced request went, stage by stage.

The configuration says which requests are traced, and into which file: [trace] one_in and file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from appliance.cli.failure import CommandFailed, Exit
from appliance.cli.traced_request import TracedRequest, traced_request
from appliance.config.telemetry import TRACES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "request",
        nargs="?",
        default="",
        metavar="REQUEST-ID",
        help="its id, or its trace id (default: the latest)",
    )
    parser.add_argument("--file", default=TRACES, help=f"file of traces (default {TRACES})")
    parser.add_argument("--json", action="store_true", help="print its OTLP JSON")


def run(arguments: argparse.Namespace) -> int:
    """Find the latest trace of the request and show it."""
    line, traced = _find(Path(arguments.file), arguments.request)
    if arguments.json:
        sys.stdout.write(line)
        return Exit.OK
    from rich.console import Console

    from appliance.cli.trace_view import view

    Console().print(view(traced))
    return Exit.OK


def _find(file: Path, wanted: str) -> tuple[str, TracedRequest]:
    """The latest line about ``wanted``, here or in the file that was moved away before."""
    latest: tuple[str, TracedRequest] | None = None
    parts = (file, file.with_name(f"{file.name}.1"))
    for part in parts:
        # Between a rotation and the next trace there is only the one that was moved away.
        for line in _lines(part, optional=part != file or parts[1].exists()):
            # Cheap first: reading all of a full file as JSON would take half a minute.
            if json.dumps(wanted)[1:-1] in line or not wanted:
                traced = traced_request(line)
                if traced is not None and (not wanted or wanted in (traced.request_id, traced.trace_id)):
                    latest = (line, traced)
        if latest is not None:
            return latest
    about = f"about '{wanted}'" if wanted else "at all"
    raise CommandFailed(
        f"'{file}' has no trace {about}; one request in so many is traced, as trace.one_in says", Exit.REFUSED
    )


def _lines(file: Path, *, optional: bool) -> Iterator[str]:
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            yield from lines
    except OSError as error:
        if not optional:
            raise CommandFailed(
                f"'{file}' cannot be read: {error.strerror}; give --file the file that trace.file names",
                Exit.USAGE,
            ) from None
