"""Show where the time of one traced request went, stage by stage.

The configuration says which requests are traced, and into which file: [trace] one_in and file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.text_table import GAP, Column, TextTable
from appliance.config.telemetry import TRACES
from appliance.domain.manifest import INT64_MAX

BAR_CELLS = 40
BAR_CELLS_MIN = 8
TITLES = ("stage", "from", "takes", "share")
PATHS = {"leased": "served by the front end under a lease", "asked": "served through the engine"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "request",
        nargs="?",
        default="",
        metavar="REQUEST-ID",
        help="its id, or its trace id (default: the latest)",
    )
    parser.add_argument("--file", type=Path, default=Path(TRACES), help=f"file of traces (default {TRACES})")
    parser.add_argument("--json", action="store_true", help="print its OTLP JSON")


def run(arguments: argparse.Namespace) -> int:
    """Find the latest trace of the request and show it."""
    line, traced = _find(arguments.file, arguments.request)
    if arguments.json:
        sys.stdout.write(line)
        return Exit.OK
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpan:
    """One stage; times are nanoseconds from the request's arrival on."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRequest:
    """One request. ``attributes`` are by their names in the file; ``arrived_ns`` is Unix time."""

    trace_id: str
    arrived_ns: int
    total_ns: int
    error: str
    attributes: Mapping[str, str]
    stages: tuple[StageSpan, ...]

    @property
    def request_id(self) -> str:
        """The client's id, or ""."""
        return self.attributes.get("appliance.request.id", "")


def traced_request(line: str) -> TracedRequest | None:
    """What ``line`` says; None when it is no line of a trace file, for instance one that was cut."""
    try:
        document = json.loads(line)
        root, *stages = document["resourceSpans"][0]["scopeSpans"][0]["spans"]
        arrived_ns = _time(root, "start")
        return TracedRequest(
            trace_id=str(root["traceId"]),
            arrived_ns=arrived_ns,
            total_ns=_time(root, "end") - arrived_ns,
            error=str(root.get("status", {}).get("message", "")),
            attributes=_attributes(root["attributes"]),
            stages=tuple(
                StageSpan(
                    name=str(span["name"]),
                    start_ns=_time(span, "start") - arrived_ns,
                    end_ns=_time(span, "end") - arrived_ns,
                )
                for span in stages
            ),
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return None


def _time(span: Mapping[str, Any], which: str) -> int:
    """When a span starts or ends, in Unix nanoseconds. Raises ValueError for what is no such time."""
    found = int(span[f"{which}TimeUnixNano"])
    if not 0 <= found <= INT64_MAX:
        raise ValueError("a time that no clock has")
    return found


def _attributes(pairs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {pair["key"]: str(next(iter(pair["value"].values()), "")) for pair in pairs}


def view(traced: TracedRequest) -> RenderableType:
    """Heading, and a line for each stage."""
    return Group(*_heading(traced), _Stages(traced))


@dataclass(frozen=True, slots=True)
class _Stages:
    """To be printed by rich: bars have what room is left beside the figures, and are left out where that is little."""

    traced: TracedRequest

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """See rich's console protocol."""
        rows = [self._words(stage) for stage in self.traced.stages]
        used = sum(max(cell_len(row[index]) for row in (TITLES, *rows)) + GAP for index in range(len(TITLES)))
        room = min(options.max_width - used, BAR_CELLS)
        bars = [_bar(stage, self.traced.total_ns, room) for stage in self.traced.stages]
        beside = room >= BAR_CELLS_MIN
        columns = [Column(title=title, left=title == TITLES[0]) for title in TITLES]
        cells = [[*map(Text, row), *([bar] if beside else [])] for row, bar in zip(rows, bars, strict=True)]
        bar = [Column(title="", left=True)] if beside else []
        yield from TextTable(columns=[*columns, *bar], rows=cells).texts(options.max_width)

    def _words(self, stage: StageSpan) -> tuple[str, ...]:
        takes_ns = stage.end_ns - stage.start_ns
        share = f"{takes_ns / max(self.traced.total_ns, 1):.0%}"
        return printable(stage.name), _microseconds(stage.start_ns), _microseconds(takes_ns), share


def _heading(traced: TracedRequest) -> Iterator[Text]:
    fields = traced.attributes
    arrived = datetime.fromtimestamp(traced.arrived_ns / 1e9, UTC).isoformat(timespec="milliseconds")
    model = f"{fields.get('appliance.model', '?')}/{fields.get('appliance.model.version', '?')}"
    named = f"request '{traced.request_id}'" if traced.request_id else "a request without id"
    yield Text(
        printable(f"{model}, {named}, at {arrived}, {_microseconds(traced.total_ns)} us"), style="bold"
    )
    path = PATHS.get(fields.get("appliance.path", ""), "")
    rows = fields.get("appliance.rows", "?")
    parts = [path, f"{rows} row{'' if rows == '1' else 's'}"]
    if "appliance.batch.rows" in fields:
        parts.append(f"in a batch of {fields['appliance.batch.rows']}")
    if not fields.get("appliance.worker", "-").startswith("-"):
        parts.append(f"worker {fields['appliance.worker']}")
    if "appliance.client" in fields:
        parts.append(f"client {fields['appliance.client']}")
    yield Text(printable(", ".join(filter(None, parts))))
    yield Text(printable(f"trace {traced.trace_id}"), style="dim")
    if traced.error:
        yield Text(printable(f"{fields.get('appliance.outcome', 'failed')}: {traced.error}"), style="red")


def _bar(stage: StageSpan, total_ns: int, cells: int) -> Text:
    """Where the stage lies in the whole, for which ``cells`` stand; at least a thin mark."""
    start, end = (
        min(max(round(ns * cells / max(total_ns, 1)), 0), cells) for ns in (stage.start_ns, stage.end_ns)
    )
    mark = "█" * (end - start) or "▏"
    return Text(" " * min(start, cells - 1) + mark, style="cyan")


def _microseconds(ns: int) -> str:
    return f"{ns / 1_000:,.1f}"
