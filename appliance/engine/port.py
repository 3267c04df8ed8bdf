"""What the edges (gRPC door, HTTP) may ask of the engine. Edges depend on this port, never on the engine's inside.

All calls come from the event loop's thread and return at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from appliance.core.rollout.phase import Phase
from appliance.core.rollout.reasons import Outlook
from appliance.domain.errors import ApplianceError
from appliance.domain.inference import Outcome, RequestHead, RequestPlan
from appliance.domain.model import ModelVersion, VersionState
from appliance.telemetry.meter import VersionStatistics
from appliance.telemetry.trace import Trace

Buffer = bytes | memoryview
NEVER: Final = "never fits"
"""What a version waits for that memory has no room for as long as nothing else is configured."""
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class Submission(NamedTuple):
    """A request as a front end gives it to the engine, but for its tensors. ``deadline_ns`` is the transport's own
    deadline or NO_DEADLINE. ``on_done`` is called exactly once, later, never from inside ``submit``. ``attempts``: how
    often workers died with it already; ``client``: the caller, by its certificate (empty: that is not known);
    ``trace``: where to note how it goes; ``headers``: those of ``wanted_headers`` that it brought."""

    plan: RequestPlan
    request_id: str
    arrived_ns: int
    deadline_ns: int
    on_done: Callable[[Outcome], None]
    attempts: int = 0
    client: str = ""
    trace: Trace | None = None
    headers: Mapping[str, str] = NO_HEADERS


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """A version in the repository index. ``reason`` says, in words, why it is not READY, or what there is to say of it
    while it is; ``outlook`` and ``waiting`` say it to programs, see VersionStatus."""

    name: str
    version: str
    state: VersionState
    reason: str
    outlook: Outlook = Outlook.AS_WANTED
    waiting: str = ""


class LaneUse(NamedTuple):
    """Who gave a worker its requests. ``asked``: those that the engine gave it, ``granted``: those that were answered
    under grants; ``granted_now``: whether the door may give it requests by itself."""

    asked: int = 0
    granted: int = 0
    granted_now: bool = False


class SlotUse(NamedTuple):
    """The slots of one size that the door keeps for requests under grants."""

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
    and what was seen of it. With a ``header`` the share is of clients, told apart by it; as "NAME: VALUE" it is all the
    requests that bring this value."""

    stage: str
    before: int
    percent: float
    header: str
    answered: int
    failed: int
    compared: int
    differing: int


class LoadStatus(NamedTuple):
    """How far the load of a version is: what it is at, and how much of its file of weights is read (0 of 0: it has
    none)."""

    stage: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """A worker process. ``models`` are ``name/version``; ``memory_bytes`` is what it has in memory for itself
    (0: unknown)."""

    worker: int
    pid: int
    state: str
    models: tuple[str, ...]
    memory_bytes: int
    restarts: int
    use: LaneUse


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStatus:
    """A model version for people: state, queue, how it batches, where it runs, how it stands: ``tries_left`` before it
    is out for good unless nothing else of its model serves, ``next_try_ms`` when, by the wall clock, it is tried again
    because of that (0: it is not), ``run_p50_ns`` and ``run_p99_ns`` as assessed (0: it was not), ``fallen_back``
    requests that failed on it and that the version before has answered; ``trust`` is who vouches for its package (see
    ModelVersion), ``load_ns`` how long its last load took, ``loading`` how far the one is that is under way;
    ``phase`` how far its life has come, ``outlook`` what it is, while it serves, to what is wanted in its place;
    ``waiting`` what it waits for, or what is to serve in its place does ("memory", "trial", or NEVER; "": nothing);
    ``untried`` why it went live without the trial that is configured ("": it did not)."""

    name: str
    version: int
    state: VersionState
    reason: str
    queued: int
    running: int
    workers: tuple[int, ...]
    statistics: VersionStatistics
    residency: str = "resident"
    trial: TrialStatus | None = None
    tries_left: int = 0
    next_try_ms: int = 0
    run_p50_ns: int = 0
    run_p99_ns: int = 0
    fallen_back: int = 0
    untried: str = ""
    trust: str = ""
    load_ns: int = 0
    loading: LoadStatus | None = None
    outlook: Outlook = Outlook.AS_WANTED
    waiting: str = ""
    phase: Phase = Phase.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """Everything ``status`` and ``top`` show. Times are monotonic nanoseconds."""

    now_ns: int
    started_ns: int
    accepting: bool
    versions: tuple[VersionStatus, ...]
    workers: tuple[WorkerStatus, ...]
    queued_requests: int
    queued_bytes: int
    running_requests: int
    arena_used_bytes: int
    arena_limit_bytes: int
    slots: tuple[SlotUse, ...] = ()
    swaps: SwapFigures = NO_SWAPS
    residency: ResidencyFigures = NO_RESIDENCY


class EnginePort(Protocol):
    """The engine as the edges see it."""

    @property
    def generation(self) -> int:
        """Changes whenever ``resolve`` may answer differently: a cached plan is valid only for its generation."""

    @property
    def accepting(self) -> bool:
        """False while draining: new requests end as Stopping."""

    @property
    def ready(self) -> bool:
        """True once every model of the first load is READY or UNAVAILABLE, until draining begins."""

    @property
    def wanted_headers(self) -> tuple[str, ...]:
        """Headers (gRPC metadata) that ``submit`` is to be told of, in lower case; none but while versions are tried
        by them."""

    def epoch(self, model: ModelVersion) -> int:
        """A number that becomes another one whenever doors have to forget what they were taught of ``model``."""

    def now_ns(self) -> int:
        """The engine's monotonic clock."""

    def resolve(self, name: str, version: str) -> ModelVersion:
        """The version that serves ``name`` now (``version`` "" means the server's choice).

        Raises UnknownModel, NotReady, InvalidRequest (bad version string), with the texts clients match on.
        """

    def plan(self, head: RequestHead) -> RequestPlan:
        """The plan of a request for the version that serves its model now. Raises as ``resolve`` does, and what
        ``validation.plan_request`` raises."""

    def has_memory(self, plan: RequestPlan, tensors: Sequence[Buffer]) -> bool:
        """Whether there is memory now for the tensors of a request and of its answer, which ``submit`` would take. True
        also where that would refuse it for another reason."""

    def submit(self, submission: Submission, tensors: Sequence[Buffer]) -> int:
        """Take a request; ``tensors`` are raw bytes in the *request's* input order (sizes already checked against
        the plan), copied before this returns. Returns a handle.

        Raises what refuses the request at once, before its tensors are copied; ``on_done`` is then never called:
        NotReady (the plan's version is no longer the one that serves), Stopping, QueueFull, DeadlineUnreachable,
        DeadlineExpired.
        """

    def rejected(self, error: ApplianceError, request_id: str, client: str = "") -> None:
        """An edge refused a request before it got here: counted and logged like any other failure."""

    def cancel(self, handle: int) -> None:
        """Nobody waits any more; ``on_done`` will get Cancelled or, if it is too late, its answer (release it)."""

    def versions(self, name: str) -> tuple[ModelVersion, ...]:
        """Ready versions of ``name``, ascending; raises UnknownModel when there is no such model."""

    def is_ready(self, name: str, version: str) -> bool:
        """Whether ``resolve`` would succeed. Never raises."""

    def index(self, ready_only: bool) -> tuple[IndexEntry, ...]:
        """All versions known, by name and version."""

    def statistics(self, name: str, version: str) -> tuple[VersionStatistics, ...]:
        """Statistics per version; "" selects all. Raises UnknownModel."""

    def status(self) -> EngineStatus:
        """A snapshot for people."""

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` after each change of readiness of anything; returns what ends the watch."""
