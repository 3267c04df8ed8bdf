"""The table that ``appliance status`` and ``appliance top`` show, and its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from appliance.cli.activity import Activity, Interval, WorkerActivity
from appliance.cli.failure import printable
from appliance.cli.notes import fitted, wrapped
from appliance.cli.snapshot import DeviceSnapshot, ModelSnapshot, Snapshot
from appliance.cli.text_table import Column, TextTable
from appliance.core.rollout.phase import Phase
from appliance.domain.device import CPU
from appliance.domain.energy import cost_text, joules_text, watts_text
from appliance.domain.quantity import bytes_text
from appliance.engine.versions.wording import with_next_try

STATE_STYLES: Mapping[str, str] = {
    "READY": "green",
    "UNAVAILABLE": "red",
    "LOADING": "yellow",
    "SHADOW": "cyan",
    "UNLOADING": "yellow",
}
NOTE_STYLES: Final = ("red", "yellow", "cyan", "yellow")
"""Of reasons, of clients that are held, of what is on its way, and of what was noted: the most urgent first."""
MEBIBYTE = 1 << 20
RATES: Final = Column(title="2 minutes", leaves=1)
JOULES: Final = Column(title="energy/row", leaves=3)
COST: Final = Column(title="cost/million", leaves=4)
COLUMNS: Final = (
    Column(title="model", left=True),
    Column(title="state", left=True),
    Column(title="rate/s"),
    RATES,
    Column(title="refused", leaves=2),
    Column(title="lease", leaves=7),
    Column(title="p50"),
    Column(title="p99"),
    Column(title="queue", leaves=3),
    Column(title="run", leaves=6),
    Column(title="batch", leaves=5),
    Column(title="worker", left=True, leaves=8),
    Column(title="memory", leaves=4),
    JOULES,
    COST,
)
BARS: Final = "▁▂▃▄▅▆▇█"
PLAIN_BARS: Final = "_.:-=+*#"
"""For screens that show no others."""
BARS_MAX: Final = 30
NO_BUDGET: Final = 1 << 62
"""What is said where it is not known how much memory there is."""
PROBLEMS_MAX: Final = 3
DEVICES_MAX: Final = 8
OTHERS: Final = "clients without a name"
LINES_FOR_WORKERS: Final = 8
"""With fewer there are models only."""
ALERTS_PART: Final = 4
"""What the box says of itself may take one line in so many, where lines are counted."""
TOLD_IN: Final = "'appliance status'"
"""What of the notes has no room on a screen."""
KEPT_FROM: Final = ("files", "network", "signals", "calls")
"""All that a worker can be kept from."""
WORKER_COLUMNS: Final = (
    Column(title="worker", left=True),
    Column(title="pid"),
    Column(title="state", left=True),
    Column(title="requests/s"),
    Column(title="lease", leaves=3),
    Column(title="lane", left=True, leaves=1),
    Column(title="restarts", leaves=2),
    Column(title="memory"),
)


def view(
    found: Interval, lines: int | None = None, *, workers: bool = False, rates: bool = False
) -> RenderableType:
    """Heading, table, and the reasons of what is not ready before other notes; then that of the ``workers``, if it is
    wanted. With ``rates`` each model has those of the last minutes as bars. All of that in at most ``lines`` lines,
    when given: of those the workers get half, or none of fewer than LINES_FOR_WORKERS, and the models what is left."""
    return _View(
        heading=_heading(found.now),
        alerts=list(_alerts(found.now, found.over_quota)),
        versions=found.versions,
        columns=list(_columns(found, rates)),
        workers=TextTable(
            columns=WORKER_COLUMNS,
            rows=[list(_worker_cells(activity)) for activity in found.workers if workers],
            tail="models",
        ),
        lines=lines,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """To be printed by rich; see view."""

    heading: Text
    alerts: Sequence[Text]
    versions: Sequence[Activity]
    columns: Sequence[Column]
    workers: TextTable
    lines: int | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """See rich's console protocol."""
        width, lines = options.max_width, self.lines
        heading, below = wrapped(self.heading, width), list[Text]()
        alerts_lines = None if lines is None else max(lines // ALERTS_PART, 2)
        heading += fitted(self.alerts, width, alerts_lines, TOLD_IN)
        if self.workers.rows and (lines is None or lines >= LINES_FOR_WORKERS):
            half = None if lines is None else lines // 2 - 1
            below = [Text(), *replace(self.workers, lines=half).texts(width)]
        if lines is not None:
            heading = heading[: max(lines - len(below), 0)]
            lines = max(lines - len(below) - len(heading), 0)
        yield from heading
        yield from self._models(lines, BARS if _shows_bars(options) else PLAIN_BARS).texts(width)
        yield from below

    def _models(self, lines: int | None, bars: str) -> TextTable:
        return TextTable(
            columns=self.columns,
            rows=[
                [
                    cell
                    for column, cell in zip(COLUMNS, _cells(each, bars), strict=True)
                    if column in self.columns
                ]
                for each in self.versions
            ],
            notes=list(_notes([each.model for each in self.versions])),
            notes_in=TOLD_IN,
            lines=lines,
        )


def _columns(found: Interval, rates: bool) -> Iterator[Column]:
    """Those that have something to say: of energy where that of any version is known."""
    models = [each.model for each in found.versions]
    silent = {
        RATES: not rates,
        JOULES: all(each.joules_per_inference is None for each in models),
        COST: all(each.cost_per_million_inferences is None for each in models),
    }
    return (column for column in COLUMNS if not silent.get(column, False))


def _shows_bars(options: ConsoleOptions) -> bool:
    """Whether what is written to can be told them."""
    try:
        BARS.encode(options.encoding)
    except (UnicodeError, LookupError):
        return False
    return True


def as_json(found: Interval) -> dict[str, Any]:
    """What the tables show, as plain JSON values."""
    snapshot = found.now
    return {
        "server": snapshot.server,
        "site": snapshot.site,
        "accepting": snapshot.accepting,
        "uptime_s": round(snapshot.uptime_s, 3),
        "queued_requests": snapshot.queued_requests,
        "running_requests": snapshot.running_requests,
        "store_trouble": snapshot.trouble,
        "models_used_bytes": snapshot.models_used_bytes,
        "models_budget_bytes": snapshot.models_budget_bytes,
        "residency_problems": list(snapshot.problems),
        "devices": [{"device": each.called, **asdict(each)} for each in snapshot.devices],
        "over_quota_per_s": {name: round(rate, 3) for name, rate in found.over_quota.items()},
        "slots": snapshot.slots,
        "slots_used": snapshot.slots_used,
        "workers": [_worker_json(activity) for activity in found.workers],
        "models": [_model_json(activity) for activity in found.versions],
    }


def _worker_json(activity: WorkerActivity) -> dict[str, Any]:
    worker = activity.worker
    return {
        "worker": worker.worker,
        "pid": worker.pid,
        "state": worker.state,
        "rate_per_s": round(activity.rate_per_s, 3),
        "leased": _rounded(activity.leased),
        "leased_now": worker.leased_now,
        "confinement": list(worker.confinement),
    }


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def _model_json(activity: Activity) -> dict[str, Any]:
    model = activity.model
    return {
        "name": model.name,
        "version": model.version,
        "state": model.state,
        "phase": model.phase,
        "device": model.device,
        "joules_per_inference": model.joules_per_inference,
        "cost_per_million_inferences": model.cost_per_million_inferences,
        "residency": model.residency,
        "reason": model.reason,
        "trial": model.trial,
        "loading": model.loading,
        "tries_left": model.tries_left,
        "next_try_ms": model.next_try_ms,
        "rate_per_s": round(activity.rate_per_s, 3),
        "rates_per_s": list(model.rates_per_s),
        "refused_per_s": round(activity.refused_per_s, 3),
        "leased": _rounded(activity.leased),
        "p50_us": activity.p50_us,
        "p99_us": activity.p99_us,
        "queued": model.queued,
        "running": model.running,
        "held_clients": model.held_clients,
        "batch_mean": activity.batch_mean,
        "workers": [
            {"pid": worker.pid, "memory_bytes": worker.memory_bytes, "restarts": worker.restarts}
            for worker in activity.workers
        ],
    }


def _heading(snapshot: Snapshot) -> Text:
    site = f"{printable(snapshot.site)}: " if snapshot.site else ""
    text = Text(f"{site}{printable(snapshot.server)}, up {_duration(snapshot.uptime_s)}, ")
    text.append("serving" if snapshot.accepting else "draining", "green" if snapshot.accepting else "yellow")
    used, limit = snapshot.arena_used_bytes / MEBIBYTE, snapshot.arena_limit_bytes / MEBIBYTE
    text.append(
        f"; {snapshot.queued_requests} queued, {snapshot.running_requests} running, "
        f"tensors {used:.1f} of {limit:.0f} MiB"
    )
    if snapshot.slots:
        text.append(f", {snapshot.slots_used} slots")
    if snapshot.models_budget_bytes:
        text.append(f", models {_of_budget(snapshot.models_used_bytes, snapshot.models_budget_bytes)}")
    if snapshot.store_free_bytes is not None:
        bound = f" of {bytes_text(snapshot.store_quota_bytes)}" if snapshot.store_quota_bytes else ""
        text.append(f", store {bytes_text(snapshot.store_taken_bytes)}{bound}")
        text.append(f", {bytes_text(snapshot.store_free_bytes)} free on its disk")
    for each in snapshot.devices[:DEVICES_MAX]:
        text.append(f"\n{_device(each, snapshot.models)}", "yellow" if each.troubles else "")
    if len(snapshot.devices) > DEVICES_MAX:
        text.append(f"\n... {len(snapshot.devices) - DEVICES_MAX} more in devices of /status.json")
    return text


def _alerts(snapshot: Snapshot, over_quota: Mapping[str, float]) -> Iterator[Text]:
    """What people should see of the box as a whole, the most urgent first."""
    if snapshot.trouble:
        text = f"The store cannot be read, and what serves goes on: {printable(snapshot.trouble)}"
        yield Text(text, "bold red")
    if over_quota:
        names = [
            f"{OTHERS if name == '*' else printable(name)} {_rate(rate)}/s"
            for name, rate in over_quota.items()
        ]
        more = f", {len(names) - PROBLEMS_MAX} more clients" if len(names) > PROBLEMS_MAX else ""
        yield Text(f"Refused for their quota: {', '.join(names[:PROBLEMS_MAX])}{more}", "yellow")
    for problem in snapshot.problems[:PROBLEMS_MAX]:
        yield Text(f"Memory for models: {printable(problem)}", "yellow")
    if len(snapshot.problems) > PROBLEMS_MAX:
        left_out = len(snapshot.problems) - PROBLEMS_MAX
        yield Text(f"... {left_out} more in residency.problems of /status.json", "yellow")
    for notice in snapshot.notices:
        yield Text(printable(notice), "yellow")


def _device(device: DeviceSnapshot, models: Sequence[ModelSnapshot]) -> str:
    """What it is, how much of it is taken, whether it takes models, and how many versions run there."""
    said = printable(f"{device.called} {device.name} ({device.uuid})")
    if device.memory_used_bytes is not None and device.memory_bytes:
        said += f", {bytes_text(device.memory_used_bytes)} of {bytes_text(device.memory_bytes)} taken"
    if device.fault:
        said += f", takes no models ({printable(device.fault)})"
    elif device.budget_bytes is not None:
        said += f", {bytes_text(device.budget_bytes)} for models"
    if device.power_w is not None:
        said += f", {watts_text(device.power_w)}"
    count = sum(model.device == device.called and model.state != "UNAVAILABLE" for model in models)
    return f"{said}, {count} version{'s' * (count != 1)}"


def _of_budget(used: int, budget: int) -> str:
    if budget >= NO_BUDGET:
        return f"{used / MEBIBYTE:.0f} MiB"
    return f"{used / MEBIBYTE:.0f} of {budget / MEBIBYTE:.0f} MiB"


def _cells(activity: Activity, bars: str) -> Iterator[Text]:
    model = activity.model
    yield Text(printable(model.key))
    yield _state(model)
    yield Text(_rate(activity.rate_per_s))
    yield Text(_plot(model.rates_per_s[-BARS_MAX:], bars), style="cyan")
    yield Text(_rate(activity.refused_per_s), style="yellow" if activity.refused_per_s else "")
    yield Text(_share(activity.leased))
    yield Text(_latency(activity.p50_us))
    yield Text(_latency(activity.p99_us))
    yield Text(str(model.queued))
    yield Text(str(model.running))
    yield Text("-" if activity.batch_mean is None else f"{activity.batch_mean:.1f}")
    yield Text(_pids(activity))
    yield Text(_memory(activity.memory_bytes))
    joules, cost = model.joules_per_inference, model.cost_per_million_inferences
    yield Text("-" if joules is None else joules_text(joules))
    yield Text("-" if cost is None else cost_text(cost))


def _plot(rates: Sequence[float], bars: str) -> str:
    """A bar for each, the largest of them as high as a bar can be; the lowest stands for nothing."""
    largest = max(rates, default=0.0)
    if largest <= 0:
        return bars[0] * len(rates)
    return "".join(
        bars[min(ceil(max(rate, 0.0) / largest * (len(bars) - 1)), len(bars) - 1)] for rate in rates
    )


def _state(model: ModelSnapshot) -> Text:
    """What serves is also told by how much of it is in memory, where that is not all. What runs in the shadow has been
    loaded, and answers nobody."""
    word = "SHADOW" if model.phase == Phase.SHADOW.value else model.state
    text = Text(printable(word), style=STATE_STYLES.get(word, ""))
    if model.state == "READY" and model.residency not in ("", "resident"):
        text.append(f" {printable(model.residency)}", style="dim")
    return text


def _worker_cells(activity: WorkerActivity) -> Iterator[Text]:
    worker = activity.worker
    yield Text(str(worker.worker))
    yield Text(str(worker.pid or "-"))
    yield Text(printable(worker.state))
    yield Text(_rate(activity.rate_per_s))
    yield Text(_share(activity.leased))
    yield Text("leased" if worker.leased_now else "asks", "green" if worker.leased_now else "dim")
    yield Text(str(worker.restarts))
    yield Text(_memory(worker.memory_bytes))
    yield Text(printable(" ".join(worker.models))).append_text(_jail(worker.confinement))


def _jail(kept_from: Sequence[str]) -> Text:
    """What the worker is kept from, in short, behind its models."""
    if len(kept_from) == len(KEPT_FROM):
        return Text(" jailed", "dim")
    return Text(f" jailed: {printable(', '.join(kept_from))}" if kept_from else " not jailed", "yellow")


def _pids(activity: Activity) -> str:
    """The processes, and the device where that is not the processor."""
    pids = [str(worker.pid) for worker in activity.workers if worker.pid]
    said = f"{pids[0]} +{len(pids) - 1}" if len(pids) > 1 else "".join(pids) or "-"
    device = activity.model.device
    return said if device == CPU.kind.value else f"{said} {printable(device)}"


def _notes(models: Sequence[ModelSnapshot]) -> Iterator[Text]:
    """What is said of versions, the most urgent first, and what is said of several once, behind the names of all."""
    said: dict[tuple[int, str], list[str]] = {}
    for model in models:
        for told in _said(model):
            said.setdefault(told, []).append(model.key)
    for (urgency, text), keys in sorted(said.items(), key=lambda each: each[0][0]):
        yield Text(printable(f"{', '.join(keys)}: {text}"), style=NOTE_STYLES[urgency])


def _said(model: ModelSnapshot) -> Iterator[tuple[int, str]]:
    """Each with its place in NOTE_STYLES."""
    if model.reason:
        yield 0, with_next_try(model.reason, model.next_try_ms)
    if model.held_clients:
        clients = f"{model.held_clients} client{'s' * (model.held_clients > 1)}"
        yield 1, f"{clients} held, whose requests ended its workers"
    waits = model.reason and not model.loading and model.trial.startswith("loading")
    if words := [word for word in ("" if waits else model.trial, model.loading) if word]:
        yield 2, ", ".join(words)
    for note in model.notes:
        yield 3, f"Noted: {note}"


def _memory(count: int) -> str:
    return f"{count / MEBIBYTE:.0f} MiB" if count else "-"


def _share(share: float | None) -> str:
    """As a percentage that says 0 and 100 only when it is that."""
    if share is None:
        return "-"
    return f"{share:.0%}" if share in (0, 1) else f"{min(max(share * 100, 0.1), 99.9):.1f}%"


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
