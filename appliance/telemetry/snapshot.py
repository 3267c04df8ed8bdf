"""Everything countable of an appliance at one moment, as one frozen value that all that shows figures renders, and the
one place where figures are read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from appliance.core.rollout.phase import Phase
from appliance.core.rollout.reasons import Outlook
from appliance.domain.device import CPU, DeviceName
from appliance.domain.device_reading import DeviceFigures, VersionEnergy
from appliance.domain.energy import InferenceEnergy, ProcessorEnergy, inference_energy
from appliance.domain.model import VersionState
from appliance.fleet.membership import Membership
from appliance.telemetry.exemplars import Buckets
from appliance.telemetry.meter import VersionStatistics

NO_ENERGY: Final[Mapping[str, VersionEnergy]] = MappingProxyType({})


class LaneUse(NamedTuple):
    """How a worker came by its requests. ``asked``: those that the engine gave it, ``leased``: those that were answered
    under leases; ``leased_now``: whether the front end may give it requests by itself."""

    asked: int = 0
    leased: int = 0
    leased_now: bool = False


class SlotUse(NamedTuple):
    """The slots of one size that the front end keeps for requests under leases."""

    size_bytes: int
    slots: int
    used: int


class SwapFigures(NamedTuple):
    """What became of versions on their way to serving: how often each ending came, loads and the time they took,
    assessments, requests that went to versions on trial, answers compared in the shadow; ``retries``: tries of versions
    that had been given up, because nothing else of their models served."""

    endings: Mapping[str, int] = MappingProxyType({})
    loads: int = 0
    load_ns: int = 0
    assessments: int = 0
    assessments_failed: int = 0
    canary_requests: int = 0
    shadow_requests: int = 0
    shadow_dropped: int = 0
    compared: int = 0
    differing: int = 0
    retries: int = 0


NO_SWAPS: Final = SwapFigures()


class ResidencyFigures(NamedTuple):
    """Models in and out of memory."""

    budget_bytes: int = 0
    """For all models and their workers."""
    used_bytes: int = 0
    weights_evicted_bytes: int = 0
    """The weights of models whose sessions are kept without."""
    misses: int = 0
    """Requests for models that were not in memory."""
    refused: int = 0
    """Those of them that did not wait."""
    waiting: int = 0
    """Requests that wait now, with ``waiting_bytes``."""
    waiting_bytes: int = 0
    loads: int = 0
    page_ins: int = 0
    """Models whose weights came back, of ``paged_in_bytes`` in all."""
    paged_in_bytes: int = 0
    evictions: int = 0
    """Models whose weights left."""
    unloads: int = 0
    verified: int = 0
    """Files of weights that were right as they came into memory, whenever that was, of ``verified_bytes`` in all."""
    verified_bytes: int = 0
    not_as_stored: int = 0
    """Files of weights that were not right."""
    problems: tuple[str, ...] = ()
    """What cannot be as it is configured."""


NO_RESIDENCY: Final = ResidencyFigures()


class TrialStatus(NamedTuple):
    """How far a version has come on its way: the stage, the version that it replaces (0: none), its share of requests
    and what was seen of it, of so many answers (as canary) or comparisons (in the shadow) as are ``wanted`` for that
    stage (0: it ends otherwise). With a ``header`` the share is of clients, told apart by it; as "NAME: VALUE" it is
    all the requests that bring this value."""

    stage: str
    before: int
    percent: float
    header: str
    answered: int
    failed: int
    compared: int
    differing: int
    wanted: int = 0


class LoadStatus(NamedTuple):
    """How far the load of a version is: what it is at, and how much of its file of weights is read (0 of 0: it has
    none)."""

    stage: str
    done_bytes: int
    total_bytes: int


class GoldenStatus(NamedTuple):
    """The ``cases`` of a golden set that a version was held to, and which promise it broke ("": none); how far off its
    answers were at most, over all outputs, ``relative`` to the right value too."""

    cases: int
    failure: str
    absolute: float = 0.0
    relative: float = 0.0


class InterfaceRow(NamedTuple):
    """What of an interface ``changed``, as it ``was`` and as it ``now`` is, in words."""

    changed: str
    was: str
    now: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """A worker process, by its number and by its ``place``: the lowest one that was free when it began, which its
    replacement gets. ``models`` are ``name/version``; ``memory_bytes`` is what it has in memory for itself
    (0: unknown), ``kept_from`` what its jail keeps it from."""

    worker: int
    pid: int
    state: str
    models: tuple[str, ...]
    memory_bytes: int
    restarts: int
    use: LaneUse
    kept_from: tuple[str, ...] = ()
    place: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStatus:
    """A model version for people: its state, its queue, how it batches, where it runs and how it stands."""

    name: str
    version: int
    state: VersionState
    reason: str
    queued: int
    running: int
    workers: tuple[int, ...]
    statistics: VersionStatistics
    device: DeviceName = CPU
    """What it runs on."""
    homeless: bool = False
    """Whether it runs on nothing, as no device was found for it."""
    residency: str = "resident"
    trial: TrialStatus | None = None
    tries_left: int = 0
    """Before it is out for good, unless nothing else of its model serves."""
    next_try_ms: int = 0
    """When, by the wall clock, it is tried again because of that; 0: it is not."""
    run_p50_ns: int = 0
    """As assessed, like ``run_p99_ns``; 0: it was not."""
    run_p99_ns: int = 0
    fallen_back: int = 0
    """Requests that failed on it and that the version before has answered."""
    untried: str = ""
    """Why it went live without the trial that is configured; "": it did not."""
    notes: tuple[str, ...] = ()
    """What of its configuration has no effect."""
    memory_bytes: int = 0
    """What it takes in memory now, with its processes."""
    weights_bytes: int = 0
    """Those of its weights among them."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """How often a worker that held it was started again, by why the one before had ended."""
    packed: bool = False
    """Whether it runs from a packed form."""
    golden: GoldenStatus | None = None
    """What its golden set showed; None: it has none, or was not assessed."""
    interface: tuple[InterfaceRow, ...] = ()
    """What keeps clients of the version that serves from talking to it, for which it is held back."""
    trust: str = ""
    """Who vouches for its package: see ModelVersion."""
    load_ns: int = 0
    """How long its last load took."""
    loading: LoadStatus | None = None
    """How far the load is that is under way."""
    outlook: Outlook = Outlook.AS_WANTED
    """What it is, while it serves, to what is wanted in its place."""
    waiting: str = ""
    """What it waits for, or what is to serve in its place does: "memory", "trial", or NEVER; "": nothing."""
    phase: Phase = Phase.FAILED
    """How far its life has come."""
    held_clients: int = 0
    """Clients of which it takes no requests for a while, because theirs have ended its workers."""

    @property
    def placed(self) -> str:
        """The device, or the kind alone where it has none."""
        return self.device.kind.value if self.homeless else str(self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """Everything ``status`` and ``top`` show. Times are monotonic nanoseconds. ``batch_keys`` are shapes of requests
    whose times are learned."""

    now_ns: int
    started_ns: int
    accepting: bool
    versions: tuple[VersionStatus, ...]
    workers: tuple[WorkerStatus, ...]
    queued_requests: int
    queued_bytes: int
    batch_keys: int
    running_requests: int
    arena_used_bytes: int
    arena_limit_bytes: int
    slots: tuple[SlotUse, ...] = ()
    swaps: SwapFigures = NO_SWAPS
    residency: ResidencyFigures = NO_RESIDENCY


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEndFigures:
    """What a front end counted since it opened and has open now. ``kind`` is its name; ``counts`` are by the names of
    FAMILIES and empty where it does not know; ``limits`` says how often each bound was enforced, by its setting."""

    kind: str
    counts: Mapping[str, int]
    limits: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArtifact:
    """What lies in the store of a version: its ``kind``, "package" or "packed form", and since when (seconds since
    1970)."""

    name: str
    version: int
    kind: str
    made_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFigures:
    """What a store holds, how sound that is, and what it takes of its disk."""

    versions: int
    """Those that are installed."""
    wanted: int
    """Those of them that shall be served."""
    unsigned: int
    """Those of them without a trusted signature."""
    bytes: int
    """Of the blobs of installed versions."""
    damaged: int
    """Blobs that are not what their name says."""
    passes: int
    """Of the scrub that ended, since the start."""
    failures: int
    """Of the scrub that failed, since the start."""
    scrubbed_at_s: float
    """When the last whole pass ended, in seconds since 1970; 0: never."""
    generation: int
    """That of the catalog that is served."""
    trouble: str
    """Why the catalog cannot be read at present; "": it can."""
    taken_bytes: int = 0
    """What blobs and packed forms take."""
    quota_bytes: int = 0
    """What these may take; 0: all there is."""
    free_bytes: int = 0
    """What the disk has left."""
    free_floor_bytes: int = 0
    """What of that is not to be used."""
    artifacts: tuple[StoredArtifact, ...] = ()
    """Those of versions that shall be served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFigures:
    """Traces since the start: ``written`` to the file, ``left_out`` because there were too many in a second, and
    ``lost`` because the file was slower or could not be written. ``exemplars`` stand for buckets of the latencies of
    versions, by name and number."""

    written: int
    left_out: int
    lost: int
    exemplars: Mapping[tuple[str, int], Buckets] = field(default_factory=dict)


class Refusals(NamedTuple):
    """How often clients with one label were refused, by reason."""

    label: str
    rate: int
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaFigures:
    """What quotas did since the start: how many clients are told apart now (0: no client is bounded), and how often
    which were refused."""

    clients: int
    refusals: tuple[Refusals, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpStatistics:
    """The figures of HTTP: answers by status code, what is open now, and TLS handshakes that came to nothing by why
    (none: that is not known)."""

    answers: tuple[tuple[int, int], ...]
    connections: int
    refused_connections: int
    in_flight: int
    body_bytes: int
    answer_bytes: int
    refused_answers: int
    handshakes: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """An appliance at one moment."""

    engine: EngineStatus
    front_end: FrontEndFigures
    http: HttpStatistics
    store: StoreFigures | None = None
    """The store that is served from; None: a directory is."""
    quotas: QuotaFigures | None = None
    """What clients were refused; None: no client is bounded."""
    traces: TraceFigures | None = None
    """What became of them; None: there are none."""
    certificates: Mapping[str, int] = field(default_factory=dict)
    """When the server's certificate ends (seconds since 1970), of ports that speak TLS."""
    wall_s: float = 0.0
    """The wall clock now."""
    pid: int = 0
    """Its process; 0: not told."""
    addresses: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Where it listens, by protocol."""
    devices: tuple[DeviceFigures, ...] = ()
    """The accelerators that a driver tells of."""
    devices_problem: str = ""
    """Why no driver tells of any."""
    unused_gpus: str = ""
    """Why models of KIND_AUTO use none of the sound GPUs; "": they do, or there is none."""
    processor: ProcessorEnergy | None = None
    """What versions on the processor used; None: nothing tells."""
    kwh_price: float = 0.0
    """What a kWh costs; 0: not known."""
    membership: Membership | None = None
    """Who the box is in its fleet; None: it belongs to none, or that cannot be read."""

    def inference_energy(self, version: VersionStatus) -> InferenceEnergy | None:
        """Of a row of ``version`` on the device that it runs on now; None where it is not known."""
        on = {each.device.called: each.energy for each in self.devices}
        if self.processor is not None:
            on[CPU] = self.processor.versions
        used = on.get(version.device, NO_ENERGY).get(f"{version.name}/{version.version}")
        return inference_energy(used, self.kwh_price)


class MeteredEngine(Protocol):
    """As far as it is asked."""

    def status(self) -> EngineStatus:
        """Its figures, and those of all versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meters:
    """What counts, each by how it is asked; None: there is no such thing here. Asked on the event loop's thread."""

    engine: MeteredEngine
    front_end: Callable[[], FrontEndFigures]
    http: Callable[[], HttpStatistics]
    store: Callable[[], StoreFigures] | None = None
    quotas: Callable[[], QuotaFigures] | None = None
    traces: Callable[[], TraceFigures] | None = None
    addresses: Callable[[], Mapping[str, Sequence[str]]] = dict
    certificates: Callable[[], Mapping[str, int]] = dict
    wall_ms: Callable[[], int] = int
    devices: Callable[[EngineStatus], tuple[DeviceFigures, ...]] = lambda _: ()
    devices_problem: str = ""
    unused_gpus: str = ""
    processor: Callable[[EngineStatus], ProcessorEnergy | None] = lambda _: None
    kwh_price: float = 0.0
    membership: Callable[[], Membership | None] = lambda: None

    def read(self) -> Snapshot:
        """Everything, as of now."""
        engine = self.engine.status()
        return Snapshot(
            engine=engine,
            front_end=self.front_end(),
            http=self.http(),
            store=None if self.store is None else self.store(),
            quotas=None if self.quotas is None else self.quotas(),
            traces=None if self.traces is None else self.traces(),
            certificates=self.certificates(),
            wall_s=self.wall_ms() / 1_000,
            pid=os.getpid(),
            addresses=self.addresses(),
            devices=self.devices(engine),
            devices_problem=self.devices_problem,
            unused_gpus=self.unused_gpus,
            processor=self.processor(engine),
            kwh_price=self.kwh_price,
            membership=self.membership(),
        )
