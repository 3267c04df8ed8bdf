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
    """Models in and out of memory. ``budget_bytes`` is for all of them and their workers, ``used_bytes`` are taken;
    ``weights_evicted_bytes`` are the weights of models whose sessions are kept without. Counts: ``misses`` requests for
    models that were not in memory, of which ``refused`` did not wait; what was loaded, paged in (and its bytes),
    evicted (its weights) and unloaded; weights that were ``verified`` as they came into memory, whenever that was,
    their bytes, and those that were ``not_as_stored``. ``waiting`` requests hold ``waiting_bytes`` now. ``problems``
    are what cannot be as it is configured."""

    budget_bytes: int = 0
    used_bytes: int = 0
    weights_evicted_bytes: int = 0
    misses: int = 0
    refused: int = 0
    waiting: int = 0
    waiting_bytes: int = 0
    loads: int = 0
    page_ins: int = 0
    paged_in_bytes: int = 0
    evictions: int = 0
    unloads: int = 0
    verified: int = 0
    verified_bytes: int = 0
    not_as_stored: int = 0
    problems: tuple[str, ...] = ()


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
    """The ``cases`` of a golden set that a version was held to, and which promise it broke ("": none)."""

    cases: int
    failure: str


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
    """A model version for people: state, queue, how it batches, where it runs, how it stands: ``tries_left`` before it
    is out for good unless nothing else of its model serves, ``next_try_ms`` when, by the wall clock, it is tried again
    because of that (0: it is not), ``run_p50_ns`` and ``run_p99_ns`` as assessed (0: it was not), ``fallen_back``
    requests that failed on it and that the version before has answered; ``trust`` is who vouches for its package (see
    ModelVersion), ``load_ns`` how long its last load took, ``loading`` how far the one is that is under way;
    ``phase`` how far its life has come, ``outlook`` what it is, while it serves, to what is wanted in its place;
    ``waiting`` what it waits for, or what is to serve in its place does ("memory", "trial", or NEVER; "": nothing);
    ``untried`` why it went live without the trial that is configured ("": it did not); ``notes`` what of its
    configuration has no effect; ``held_clients`` those of which it takes no requests for a while, because theirs have
    ended its workers; ``memory_bytes`` what it takes in memory now with its processes, ``weights_bytes`` those of its
    weights among them; ``restarts`` how often a worker that held it was started again, by why the one before had ended;
    ``packed``: it runs from a packed form; ``golden`` what its golden set showed (None: it has none, or was not
    assessed); ``interface`` what keeps clients of the version that serves from talking to it, for which it is held
    back; ``device`` is what it runs on; ``homeless``: nothing, as none was found for it."""

    name: str
    version: int
    state: VersionState
    reason: str
    queued: int
    running: int
    workers: tuple[int, ...]
    statistics: VersionStatistics
    device: DeviceName = CPU
    residency: str = "resident"
    trial: TrialStatus | None = None
    tries_left: int = 0
    next_try_ms: int = 0
    run_p50_ns: int = 0
    run_p99_ns: int = 0
    fallen_back: int = 0
    untried: str = ""
    notes: tuple[str, ...] = ()
    memory_bytes: int = 0
    weights_bytes: int = 0
    restarts: Mapping[str, int] = field(default_factory=dict)
    packed: bool = False
    golden: GoldenStatus | None = None
    interface: tuple[InterfaceRow, ...] = ()
    trust: str = ""
    load_ns: int = 0
    loading: LoadStatus | None = None
    outlook: Outlook = Outlook.AS_WANTED
    waiting: str = ""
    phase: Phase = Phase.FAILED
    held_clients: int = 0
    homeless: bool = False

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
    """``versions`` that are installed and the ``bytes`` of their blobs; ``wanted`` of them shall be served;
    ``unsigned`` have no trusted signature. ``damaged`` blobs, ``passes`` of the scrub since the start and ``failures``
    of it, and when the last whole one ended (seconds since 1970; 0: never). ``generation`` is that of the catalog that
    is served, ``trouble`` why it cannot be read at present ("": it can). Blobs and packed forms take ``taken_bytes`` of
    ``quota_bytes`` (0: of all there is), and the disk has ``free_bytes`` left, of which ``free_floor_bytes`` are not to
    be used; ``artifacts`` are those of versions that shall be served."""

    versions: int
    wanted: int
    unsigned: int
    bytes: int
    damaged: int
    passes: int
    failures: int
    scrubbed_at_s: float
    generation: int
    trouble: str
    taken_bytes: int = 0
    quota_bytes: int = 0
    free_bytes: int = 0
    free_floor_bytes: int = 0
    artifacts: tuple[StoredArtifact, ...] = ()


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
    """An appliance at one moment. ``front_end`` and ``http`` are what its front end did, ``store`` the store that is
    served from (None: a directory is), ``quotas`` what clients were refused (None: no client is bounded), ``traces``
    what became of them (None: there are none); ``certificates`` says of ports that speak TLS when the server's
    certificate ends (seconds since 1970), on the wall clock that says ``wall_s`` now; ``pid`` is its process (0: not
    told), ``addresses`` where it listens by protocol; ``devices`` are the accelerators that a driver tells of,
    ``devices_problem`` why none does, ``unused_gpus`` why models of KIND_AUTO use none of the sound ones
    (""); ``processor`` is what versions on the processor used (None: nothing tells);
    ``kwh_price`` is what a kWh costs (0: not known)."""

    engine: EngineStatus
    front_end: FrontEndFigures
    http: HttpStatistics
    store: StoreFigures | None = None
    quotas: QuotaFigures | None = None
    traces: TraceFigures | None = None
    certificates: Mapping[str, int] = field(default_factory=dict)
    wall_s: float = 0.0
    pid: int = 0
    addresses: Mapping[str, Sequence[str]] = field(default_factory=dict)
    devices: tuple[DeviceFigures, ...] = ()
    devices_problem: str = ""
    unused_gpus: str = ""
    processor: ProcessorEnergy | None = None
    kwh_price: float = 0.0

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
        )
