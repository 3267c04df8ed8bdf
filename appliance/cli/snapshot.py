"""The document of ``/status.json`` as typed values.

Fields that are not known are ignored and fields that are missing are an error, as the document's format promises.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from functools import cache
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from appliance.cli.failure import CommandFailed
from appliance.cli.status_source import no_appliance
from appliance.core.rollout.phase import Phase, stage_of
from appliance.domain.device import CPU
from appliance.domain.manifest import INT64_MAX

FORMAT = 1
WATCH = stage_of(Phase.WATCHED)

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramSnapshot:
    """Durations per bucket, not cumulative, trailing zeros left out; quantiles since the start in microseconds."""

    count: int
    p50_us: float | None
    p99_us: float | None
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot:
    """A worker process. ``asked`` and ``leased`` count the requests that the engine and the front end gave it,
    ``leased_now`` says whether the front end may, ``confinement`` what the worker is kept from; all
    nothing where the server does not tell."""

    worker: int
    pid: int
    state: str
    models: tuple[str, ...]
    memory_bytes: int
    restarts: int
    asked: int = 0
    leased: int = 0
    leased_now: bool = False
    confinement: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSnapshot:
    """An accelerator, or an instance of one (MIG): ``index`` is how models name it. Of its memory
    ``memory_used_bytes`` are taken by anyone and ``budget_bytes`` are for models (None: not told). ``troubles`` are
    what ails it, ``fault`` why it takes no models, in a few words ("": it does); ``power_w`` is what it draws now,
    where the driver tells that of it alone."""

    kind: str
    index: int
    name: str
    uuid: str
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    budget_bytes: int | None = None
    power_w: float | None = None
    troubles: tuple[str, ...] = ()
    fault: str = ""

    @property
    def called(self) -> str:
        """As models' ``device`` says it."""
        return f"{self.kind}:{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSnapshot:
    """A model version, as far as it is shown."""

    name: str
    version: int
    state: str
    reason: str
    queued: int
    running: int
    workers: tuple[int, ...]
    requests: Mapping[str, int]
    """Those that ended, by outcome."""
    inferences: int
    """Rows answered."""
    executions: int
    """Batches that ran."""
    executed_rows: int
    """Their rows, answered or not."""
    batch_mean: float | None
    total: HistogramSnapshot
    residency: str = "resident"
    """How much of it is in memory."""
    phase: str = ""
    """That of its life; "": not told."""
    leased: int = 0
    """Requests that were answered without the engine."""
    trial: str = ""
    """How far it is on its way to serving; "" when that is behind it or has nothing to show."""
    loading: str = ""
    tries_left: int = 0
    next_try_ms: int = 0
    notes: tuple[str, ...] = ()
    """What of its configuration has no effect."""
    held_clients: int = 0
    rates_per_s: tuple[float, ...] = ()
    """Those of the last minutes, oldest first."""
    device: str = CPU.kind.value
    """What it runs on."""
    joules_per_inference: float | None = None
    """What a row takes of that; None: not known."""
    cost_per_million_inferences: float | None = None
    """What that costs; None: not known."""

    @property
    def key(self) -> str:
        """``name/version``; the name alone of a model that came to no version."""
        return f"{self.name}/{self.version}" if self.version else self.name

    @property
    def ended(self) -> int:
        """Requests that ended, whatever their outcome."""
        return sum(self.requests.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """An appliance at one moment."""

    server: str
    site: str
    """Which device of its fleet it is, and of which group; "": it belongs to none, or does not tell."""
    accepting: bool
    now_ns: int
    started_ns: int
    queued_requests: int
    running_requests: int
    arena_used_bytes: int
    arena_limit_bytes: int
    slots: int
    """Places that the front end keeps for requests it serves by itself."""
    slots_used: int
    bounds_us: tuple[float, ...]
    workers: tuple[WorkerSnapshot, ...]
    models: tuple[ModelSnapshot, ...]
    trouble: str = ""
    """Why its store cannot be read; "" when it can."""
    models_used_bytes: int = 0
    """What models and their workers take."""
    models_budget_bytes: int = 0
    """What they may take; 0: not told."""
    problems: tuple[str, ...] = ()
    """What of that cannot be as it is configured."""
    over_quota: Mapping[str, int] = field(default_factory=dict)
    """Requests that were refused for their client's quota, by its name; ``*``: of all that have none."""
    store_taken_bytes: int = 0
    store_quota_bytes: int = 0
    """What the store may take; 0: no bound."""
    store_free_bytes: int | None = None
    """What the store's disk has left; None: there is none, or it is not told."""
    notices: tuple[str, ...] = ()
    """What people should see coming."""
    devices: tuple[DeviceSnapshot, ...] = ()
    """Accelerators."""

    @property
    def uptime_s(self) -> float:
        """Seconds since the appliance started."""
        return (self.now_ns - self.started_ns) / 1e9


def _server_words(server: Mapping[str, Any]) -> str:
    """Its name and version, and what listens, where it tells."""
    words = f"{server['name']} {server['version']}"
    return f"{words} ({server['front_end']})" if server.get("front_end") else words


def _site_words(fleet: Mapping[str, Any]) -> str:
    device, group = fleet.get("device", ""), fleet.get("group", "")
    return f"{device}, group {group}" if group else device


def parse(document: bytes, url: str) -> Snapshot:
    """Read the document that came from ``url``; raises CommandFailed when it is not one of FORMAT."""
    return understood(document, url, _snapshot)


def understood(document: bytes, url: str, read: Callable[[Mapping[str, Any]], Read]) -> Read:
    """What ``read`` makes of the document that came from ``url``. Raises CommandFailed when it is not one of FORMAT,
    or lacks what is looked for."""
    try:
        fields = json.loads(document)
        if fields["format"] != FORMAT:
            raise CommandFailed(
                f"the server speaks status format {fields['format']}, this command {FORMAT}; use the command of the "
                "server's release"
            )
        return read(fields)
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise no_appliance(url, f"its status cannot be read: {error!r}") from error


def _snapshot(fields: Mapping[str, Any]) -> Snapshot:
    residency, slots = fields.get("residency", {}), fields.get("slots", ())
    store = fields.get("store") or {}
    energies = _energies(fields)
    found = _read(
        Snapshot,
        fields,
        server=_server_words(fields["server"]),
        site=_site_words(fields.get("fleet") or {}),
        slots=sum(each["count"] for each in slots),
        slots_used=sum(each["used"] for each in slots),
        workers=tuple(_read(WorkerSnapshot, each) for each in fields["workers"]),
        models=tuple(_model(each, energies) for each in fields["models"]),
        devices=tuple(_read(DeviceSnapshot, each) for each in fields.get("devices", ())),
        trouble=store.get("trouble", ""),
        store_taken_bytes=store.get("taken_bytes", 0),
        store_quota_bytes=store.get("quota_bytes", 0),
        store_free_bytes=store.get("free_bytes"),
        models_used_bytes=residency.get("used_bytes", 0),
        models_budget_bytes=residency.get("budget_bytes", 0),
        problems=tuple(residency.get("problems", ())),
        over_quota={
            each["label"]: each["rate"] + each["in_flight"]
            for each in (fields.get("quotas") or {}).get("refused", ())
        },
    )
    if any(len(model.total.counts) > len(found.bounds_us) + 1 for model in found.models):
        raise ValueError("more counts than there are buckets")
    return found


def _energies(fields: Mapping[str, Any]) -> Mapping[tuple[str, str], Mapping[str, Any]]:
    """What versions use, by what they run on and by NAME/VERSION."""
    told = [(f"{device['kind']}:{device['index']}", device) for device in fields.get("devices", ())]
    told.append((CPU.kind.value, fields.get("processor") or {}))
    return {
        (called, name): used
        for called, device in told
        for name, used in device.get("energy", {}).get("models", {}).items()
    }


def _model(fields: Mapping[str, Any], energies: Mapping[tuple[str, str], Mapping[str, Any]]) -> ModelSnapshot:
    used = energies.get((fields.get("device", CPU.kind.value), f"{fields['name']}/{fields['version']}"), {})
    return _read(
        ModelSnapshot,
        fields,
        total=_read(HistogramSnapshot, fields["stages"]["total"]),
        trial=_trial(fields.get("trial"), fields["version"]),
        loading=_loading(fields.get("loading")),
        joules_per_inference=used.get("joules_per_inference"),
        cost_per_million_inferences=used.get("cost_per_million_inferences"),
    )


def _read(kind: type[Read], fields: Mapping[str, Any], **made: object) -> Read:
    """A value of ``kind`` from what the document says under the names of its fields, and from what was ``made`` of it.
    Raises TypeError where that is not all, or not of its kind."""
    there = [
        each.name for each in dataclass_fields(cast(Any, kind)) if each.name in fields.keys() - made.keys()
    ]
    said = {name: tuple(fields[name]) if isinstance(fields[name], list) else fields[name] for name in there}
    hints = _hints(cast(Any, kind))
    for name, value in {**said, **made}.items():
        if not _fits(value, hints[name]):
            raise TypeError(f"{name} is a {type(value).__name__}")
    return kind(**said, **made)


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _fits(value: object, hint: Any) -> bool:
    """Whether it is of a field's type. Numbers have bounds: they are divided and shown."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return any(_fits(value, each) for each in inner)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(each, inner[0]) for each in value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(_fits(each, inner[1]) for each in value.values())
    if hint in (int, float):
        kinds = (int,) if hint is int else (int, float)
        return type(value) in kinds and abs(cast(float, value)) <= INT64_MAX
    return isinstance(value, hint)


def _loading(fields: Mapping[str, Any] | None) -> str:
    """How far a load is, in words."""
    if fields is None:
        return ""
    total = fields["total_bytes"]
    share = f", {fields['done_bytes'] / total:.0%} read" if fields["stage"] == "reading" and total else ""
    return f"{fields['stage']}{share}"


def _trial(fields: Mapping[str, Any] | None, version: int) -> str:
    """The trial of ``version`` in words. What was there before it may be the same version, from other files or without
    its packed form."""
    if fields is None or is_plain_watch(fields):
        return ""
    said, number = str(fields["stage"]), fields["before"]
    before = "what it was before" if number == version else f"version {number}"
    if said == WATCH:
        said = f"watched since it went live; {before} is kept to go back to"
    elif number:
        said += f", after {before}"
    return ", ".join((said, *trial_words(fields)))


def is_plain_watch(trial: Mapping[str, Any]) -> bool:
    """Whether a version is watched in whose place no other could serve: nobody asked for a trial of it."""
    return bool(trial["stage"] == WATCH and not trial["before"])


def trial_words(fields: Mapping[str, Any]) -> Iterator[str]:
    """A version's ``trial`` in words: which requests are its own, what was seen of it so far."""
    if fields["percent"]:
        header = str(fields.get("header", ""))
        share, of = f"{fields['percent']:g} %", f"clients by {header}" if header else "requests"
        yield f"requests with {header}" if ":" in header else f"{share} of the {of}"
    wanted = fields.get("wanted", 0)  # an appliance of an earlier release does not say it
    of = f" of {wanted}" if wanted else ""
    if fields["compared"]:
        yield f"{fields['compared']}{of} answers compared, {fields['differing']} different"
    if fields["stage"] == "shadow":
        of = ""  # what it answers goes to nobody
    if fields["answered"] or fields["failed"]:
        yield f"{fields['answered']}{of} answered, {fields['failed']} failed"
