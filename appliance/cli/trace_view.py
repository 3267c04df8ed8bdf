"""The timeline that ``appliance trace`` shows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from appliance.cli.failure import printable
from appliance.cli.traced_request import StageSpan, TracedRequest

BAR_CELLS = 40
PATHS = {"leased": "served by the front end under a lease", "asked": "served through the engine"}


def view(traced: TracedRequest) -> RenderableType:
    """Heading, and a line for each stage."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("stage")
    for column in ("from", "takes", "share"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for stage in traced.stages:
        takes_ns = stage.end_ns - stage.start_ns
        table.add_row(
            printable(stage.name),
            _microseconds(stage.start_ns),
            _microseconds(takes_ns),
            f"{takes_ns / max(traced.total_ns, 1):.0%}",
            _bar(stage, traced.total_ns),
        )
    return Group(*_heading(traced), table)


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


def _bar(stage: StageSpan, total_ns: int) -> Text:
    """Where the stage lies in the whole; at least a thin mark."""
    start = round(stage.start_ns * BAR_CELLS / max(total_ns, 1))
    end = round(stage.end_ns * BAR_CELLS / max(total_ns, 1))
    mark = "█" * (end - start) or "▏"
    return Text(" " * min(start, BAR_CELLS - 1) + mark, style="cyan")


def _microseconds(ns: int) -> str:
    return f"{ns / 1_000:,.1f}"
