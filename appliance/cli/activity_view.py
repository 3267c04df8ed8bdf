"""The table that ``appliance status`` and ``appliance top`` show, and its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from appliance.cli.activity import Activity
from appliance.cli.failure import printable
from appliance.cli.snapshot import Snapshot

STATE_STYLES: Mapping[str, str] = {
    "READY": "green",
    "UNAVAILABLE": "red",
    "LOADING": "yellow",
    "UNLOADING": "yellow",
}
MEBIBYTE = 1 << 20
_COLUMNS = (
    "model",
    "state",
    "rate/s",
    "refused",
    "p50",
    "p99",
    "queue",
    "run",
    "batch",
    "worker",
    "memory",
)
_LEFT = frozenset({"model", "state", "worker"})


def view(snapshot: Snapshot, activities: Sequence[Activity], rows: int | None = None) -> RenderableType:
    """Heading, table and the reasons of what is not ready; at most ``rows`` models when given."""
    shown = activities if rows is None or len(activities) <= rows else activities[: max(rows - 1, 1)]
    parts: list[RenderableType] = [_heading(snapshot), _table(shown)]
    if len(shown) < len(activities):
        parts.append(Text(f"... {len(activities) - len(shown)} more", style="dim"))
    parts.extend(_reasons(shown))
    return Group(*parts)


def as_json(snapshot: Snapshot, activities: Sequence[Activity]) -> dict[str, Any]:
    """What the table shows, as plain JSON values."""
    return {
        "server": snapshot.server,
        "accepting": snapshot.accepting,
        "uptime_s": round(snapshot.uptime_s, 3),
        "queued_requests": snapshot.queued_requests,
        "running_requests": snapshot.running_requests,
        "models": [_model_json(activity) for activity in activities],
    }


def _model_json(activity: Activity) -> dict[str, Any]:
    model = activity.model
    return {
        "name": model.name,
        "version": model.version,
        "state": model.state,
        "reason": model.reason,
        "rate_per_s": round(activity.rate_per_s, 3),
        "refused_per_s": round(activity.refused_per_s, 3),
        "p50_us": activity.p50_us,
        "p99_us": activity.p99_us,
        "queued": model.queued,
        "running": model.running,
        "batch_mean": activity.batch_mean,
        "workers": [
            {"pid": worker.pid, "memory_bytes": worker.memory_bytes, "restarts": worker.restarts}
            for worker in activity.workers
        ],
    }


def _heading(snapshot: Snapshot) -> Text:
    text = Text(f"{printable(snapshot.server)}, up {_duration(snapshot.uptime_s)}, ")
    text.append("serving" if snapshot.accepting else "draining", "green" if snapshot.accepting else "yellow")
    used, limit = snapshot.arena_used_bytes / MEBIBYTE, snapshot.arena_limit_bytes / MEBIBYTE
    text.append(
        f"; {snapshot.queued_requests} queued, {snapshot.running_requests} running, "
        f"{used:.1f} of {limit:.0f} MiB"
    )
    return text


def _table(activities: Sequence[Activity]) -> Table:
    """Where the screen is narrow, names of models give way and nothing else does."""
    rows = [list(_cells(activity)) for activity in activities]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for index, column in enumerate(_COLUMNS):
        widest = max([len(column), *(len(row[index]) for row in rows)])
        side: Literal["left", "right"] = "left" if column in _LEFT else "right"
        table.add_column(column, justify=side, no_wrap=True, min_width=widest if index else len(column))
    for row in rows:
        table.add_row(*row)
    return table


def _cells(activity: Activity) -> Iterator[Text]:
    model = activity.model
    yield Text(printable(model.key))
    yield Text(printable(model.state), style=STATE_STYLES.get(model.state, ""))
    yield Text(_rate(activity.rate_per_s))
    yield Text(_rate(activity.refused_per_s), style="yellow" if activity.refused_per_s else "")
    yield Text(_latency(activity.p50_us))
    yield Text(_latency(activity.p99_us))
    yield Text(str(model.queued))
    yield Text(str(model.running))
    yield Text("-" if activity.batch_mean is None else f"{activity.batch_mean:.1f}")
    yield Text(_pids(activity))
    yield Text(f"{activity.memory_bytes / MEBIBYTE:.0f} MiB" if activity.memory_bytes else "-")


def _pids(activity: Activity) -> str:
    pids = [str(worker.pid) for worker in activity.workers if worker.pid]
    return f"{pids[0]} +{len(pids) - 1}" if len(pids) > 1 else "".join(pids) or "-"


def _reasons(activities: Sequence[Activity]) -> Iterator[Text]:
    for activity in activities:
        if activity.model.reason:
            yield Text(printable(f"{activity.model.key}: {activity.model.reason}"), style="red")


def _rate(per_second: float) -> str:
    return f"{per_second:.0f}" if per_second >= 10 else f"{per_second:.1f}".removesuffix(".0")


def _latency(microseconds: float | None) -> str:
    if microseconds is None:
        return "-"
    if microseconds < 1_000:
        return f"{microseconds:.0f} us"
    return f"{microseconds / 1_000:.1f} ms" if microseconds < 1e6 else f"{microseconds / 1e6:.1f} s"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else (f"{minutes} min {rest} s" if minutes else f"{rest} s")
