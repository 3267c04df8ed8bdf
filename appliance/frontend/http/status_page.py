"""The page at ``/``: all models of the appliance, and what it has left. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final
from urllib.parse import quote

from appliance.domain.device_reading import DeviceFigures, fault_words, troubles
from appliance.domain.energy import cost_text, joules_text, watts_text
from appliance.domain.model import VersionState
from appliance.domain.quantity import bytes_text
from appliance.engine.versions.wording import with_next_try
from appliance.frontend.http.plot import Span, sparkline
from appliance.frontend.http.spoken import spoken_rate, spoken_time, spoken_us
from appliance.frontend.http.table import Column, row, table
from appliance.telemetry.meter import Result, Stage
from appliance.telemetry.recent import KEPT, PERIOD_S, RecentFigures, Sample
from appliance.telemetry.snapshot import (
    Snapshot,
    TrialStatus,
    VersionStatus,
    WorkerStatus,
)
from appliance.telemetry.status_document import batch_mean

TITLE: Final = "Edge inference appliance"
ON_TRIAL: Final = ("shadow", "canary")
POINTS_MIN: Final = 30
"""Of a picture: five minutes, so that the first moments are not stretched over all of it."""
REFUSALS: Final = (Result.REFUSED, Result.EXPIRED, Result.UNAVAILABLE)

_NO_BUDGET: Final = 1 << 62
"""What is said where it is not known how much memory there is."""
_COLUMNS: Final = (
    *(Column(title) for title in ("Model", "State", "Lately")),
    *(Column(title, "number") for title in ("Rate", "p50", "p99", "Answered", "Refused", "Failed")),
    *(Column(title, "number") for title in ("Queued", "Running", "Batch")),
    Column("Worker (memory)"),
)
JOULES: Final = Column("Energy/row", "number")
COST: Final = Column("Cost/million", "number")
_DEVICE_COLUMNS: Final = (
    *(Column(title) for title in ("Device", "Name", "UUID")),
    *(Column(title, "number") for title in ("Memory", "For models", "Versions")),
    Column("State"),
)
_POWER: Final = Column("Power", "number")


def energy_columns(snapshot: Snapshot) -> tuple[Column, ...]:
    """Columns that say what a row takes: none where that of no version is known."""
    told = [each for each in map(snapshot.inference_energy, snapshot.engine.versions) if each is not None]
    costs = any(each.cost_per_million is not None for each in told)
    return (JOULES, COST) if costs else (JOULES,) if told else ()


def overview(snapshot: Snapshot, rows: str) -> str:
    """The main part of the page; ``rows`` is the text of model_rows for each version."""
    return f"""<dl class="tiles">{_tiles(snapshot)}</dl>
<h2 id="models">Models</h2>
{table((*_COLUMNS, *energy_columns(snapshot)), rows, "models")}
{_devices(snapshot)}
<p class="quiet">Rate, p50 and p99 are of the last seconds; grey quantiles are since the start.</p>"""


def _devices(snapshot: Snapshot) -> str:
    """A table of the accelerators and their instances; "" where nothing tells of any."""
    if not snapshot.devices:
        return ""
    drawn = [each.reading.power_w for each in snapshot.devices]
    columns = _DEVICE_COLUMNS if all(each is None for each in drawn) else (*_DEVICE_COLUMNS, _POWER)
    rows = "".join(
        row(columns, (*_device_cells(each, snapshot), _power(watts))[: len(columns)])
        for each, watts in zip(snapshot.devices, drawn, strict=True)
    )
    return f'<h2 id="devices">Devices</h2>\n{table(columns, rows, "devices")}'


def _power(watts: float | None) -> str:
    return "–" if watts is None else watts_text(watts)


def _device_cells(figures: DeviceFigures, snapshot: Snapshot) -> tuple[str, ...]:
    device, used = figures.device, figures.reading.memory_used_bytes
    versions = [each for each in snapshot.engine.versions if each.state is not VersionState.UNAVAILABLE]
    running = sum(version.device == device.called for version in versions)
    return (
        str(device.called),
        escape(device.name),
        escape(device.uuid),
        "–" if used is None else _of_bound(used, device.memory_bytes or 0),
        "–"
        if figures.budget_bytes is None or fault_words(figures.reading)
        else bytes_text(figures.budget_bytes),
        str(running),
        "<br>".join(f'<span class="bad">{escape(each)}</span>' for each in troubles(figures.reading))
        or "sound",
    )


def _tiles(snapshot: Snapshot) -> str:
    status, store = snapshot.engine, snapshot.store
    ready = sum(version.state is VersionState.READY for version in status.versions)
    tiles = [
        ("Models ready", f"{ready} of {len(status.versions)}"),
        ("Queued", str(status.queued_requests)),
        ("Running", str(status.running_requests)),
        ("Workers", str(sum(worker.pid > 0 for worker in status.workers))),
        (
            "Tensor memory",
            f"{bytes_text(status.arena_used_bytes)} of {bytes_text(status.arena_limit_bytes)}",
        ),
        ("Model memory", _of_bound(status.residency.used_bytes, status.residency.budget_bytes)),
    ]
    if store is not None:
        tiles.append(("Store", _of_bound(store.taken_bytes, store.quota_bytes)))
        tiles.append(("Store's disk", f"{bytes_text(store.free_bytes)} free"))
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in tiles)


def _of_bound(used: int, bound: int) -> str:
    return bytes_text(used) + (f" of {bytes_text(bound)}" if 0 < bound < _NO_BUDGET else "")


def model_rows(
    version: VersionStatus,
    workers: Mapping[int, WorkerStatus],
    recent: RecentFigures,
    energies: Sequence[str] = (),
) -> str:
    """The table rows of one version: its figures, how its trial stands, and its reason when it has one. ``workers`` are
    by number, ``energies`` the cells of energy_columns."""
    results, mean = version.statistics.results, batch_mean(version.statistics)
    latest = recent.latest(version.name, version.version)
    cells = (
        _name(version),
        f"{badge(version)}",
        _spark(recent.of(version.name, version.version)),
        "–" if latest is None else spoken_rate(latest.answered),
        _lately(version, latest, 0.50),
        _lately(version, latest, 0.99),
        str(results.get(Result.SUCCESS, 0)),
        _bad(sum(results.get(each, 0) for each in REFUSALS)),
        _bad(results.get(Result.FAILED, 0)),
        str(version.queued),
        str(version.running),
        "–" if mean is None else f"{mean:.2f}",
        escape(spoken_workers(version.workers, workers))
        + ("" if version.device.is_cpu else f" on {version.placed}"),
        *energies,
    )
    notes = "".join(
        f'<tr role="row" class="note {kind}"><td role="cell" colspan="{len(cells)}"><div>{text}</div></td></tr>'
        for kind, text in _notes(version)
    )
    columns = (*_COLUMNS, *(JOULES, COST)[: len(energies)])
    return row(columns, cells) + notes


def energy_cells(snapshot: Snapshot, version: VersionStatus, columns: Sequence[Column]) -> tuple[str, ...]:
    """The cells of ``columns``, which are energy_columns."""
    used = snapshot.inference_energy(version)
    cost = used.cost_per_million if used is not None else None
    cells = "–" if used is None else joules_text(used.joules), "–" if cost is None else cost_text(cost)
    return cells[: len(columns)]


def badge(version: VersionStatus) -> str:
    """Its state in one word. A version on trial answers requests, and is not said to be loading."""
    trial = version.trial.stage if version.trial is not None else ""
    word = trial.upper() if trial in ON_TRIAL else version.state.value
    return f'<span class="badge {word}">{word}</span>'


def trial_text(trial: TrialStatus) -> str:
    """How a trial stands, as HTML: what is sent to it, what came of it, and what it is held against."""
    begin = f"On trial ({trial.stage})" if trial.stage in ON_TRIAL else "Watched since it went live"
    share = f"{trial.percent:g} % of the {f'clients by {trial.header}' if trial.header else 'requests'}"
    if ":" in trial.header:
        share = f"requests with {trial.header}"
    of = f" of {trial.wanted}" if trial.wanted else ""
    said = [
        f"{begin}: gets {share}" if trial.percent and trial.stage in ON_TRIAL else begin,
        f"{trial.answered}{of} answered, {trial.failed} failed" if trial.answered or trial.failed else "",
        f"{trial.compared}{of} answers compared, {trial.differing} different" if trial.compared else "",
        f"held against version {trial.before}" if trial.before else "",
    ]
    return escape("; ".join(filter(None, said)))


def spoken_workers(numbers: Sequence[int], workers: Mapping[int, WorkerStatus]) -> str:
    """The processes and their memory."""
    known = [workers[number] for number in numbers if number in workers]
    return ", ".join(map(_spoken_worker, known)) or "–"


def _spoken_worker(worker: WorkerStatus) -> str:
    """One that has no process yet is told by what it does; how much memory one takes is known a little later."""
    memory = f" ({bytes_text(worker.memory_bytes)})" if worker.memory_bytes else ""
    return f"{worker.pid}{memory}" if worker.pid else worker.state


def _name(version: VersionStatus) -> str:
    name, number = escape(version.name), f"/{version.version}" if version.version else ""
    return f'<a href="models/{quote(version.name, safe="")}">{name}{number}</a>'


def _spark(samples: Sequence[Sample]) -> str:
    if not samples:
        return ""
    rates, span = [each.answered for each in samples], span_of(samples)
    return sparkline(rates, span, f"at most {spoken_rate(max(rates))} since {span.since}")


def span_of(samples: Sequence[Sample]) -> Span:
    """The time that pictures of the samples are of: an hour, or less where there are fewer of them."""
    points = min(max(len(samples), POINTS_MIN), KEPT)
    return Span(points, f"{spoken_time(int(points * PERIOD_S))} ago")


def _lately(version: VersionStatus, latest: Sample | None, fraction: float) -> str:
    """The quantile of the last period, or in grey since the start."""
    if latest is not None and latest.p50_us:
        return spoken_us(latest.p50_us if fraction == 0.50 else latest.p99_us)
    total = version.statistics.stages[Stage.TOTAL]
    return f'<span class="quiet">{spoken_us(total.quantile_ns(fraction) / 1_000)}</span>'


def _bad(count: int) -> str:
    return f'<span class="bad">{count}</span>' if count else "0"


def _notes(version: VersionStatus) -> list[tuple[str, str]]:
    notes = []
    if version.trial is not None and version.trial.stage in ON_TRIAL:
        notes.append(("busy", trial_text(version.trial)))
    if version.reason:
        notes.append(("bad", escape(with_next_try(version.reason, version.next_try_ms))))
    return notes
