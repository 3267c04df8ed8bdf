"""The port between engine and workers: descriptors down, events up.

``WorkerPool`` is the real implementation; the simulation has one with scripted workers. Values are named tuples
because some are made for every request. Byte offsets are into the arena.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from appliance.model import ModelVersion

Shape = tuple[int, ...]


class RunItem(NamedTuple):
    """One request of a batch.

    Its inputs lie back to back from ``offset``, each at the next multiple of ``arena.ALIGNMENT``; ``shapes`` (full,
    with the batch dimension) and ``sizes`` (bytes) are in the model's input order, None and 0 for an optional input
    that is left out. ``outputs`` are the indexes of the wanted outputs, ascending. Its outputs go back to back, aligned
    alike, in that order, from ``out_offset``, at most ``out_capacity`` bytes.
    """

    ticket: int
    rows: int
    shapes: tuple[Shape | None, ...]
    sizes: tuple[int, ...]
    offset: int
    outputs: tuple[int, ...]
    out_offset: int
    out_capacity: int


class Run(NamedTuple):
    """A batch for one model of a worker. The items' shapes are equal but for the batch dimension."""

    batch: int
    model: int
    items: tuple[RunItem, ...]


class Fetch(NamedTuple):
    """Store the outputs that did not fit at this larger place. ``out_capacity`` 0: forget them."""

    ticket: int
    out_offset: int
    out_capacity: int


class Learn(NamedTuple):
    """What requests of plan ``plan`` are, of which tensors alone will come, through the lane's memory.

    ``shapes``, ``sizes``, and the order of ``wanted`` are those of a RunItem of ``rows`` rows. ``out_shapes`` and
    ``out_sizes`` are what its outputs must be, exactly. Plans of one ``kind`` may share a batch of at most ``max_rows``
    rows; their tensors differ in the batch dimension only.
    """

    plan: int
    model: int
    kind: int
    rows: int
    max_rows: int
    shapes: tuple[Shape | None, ...]
    sizes: tuple[int, ...]
    wanted: tuple[int, ...]
    out_shapes: tuple[Shape, ...]
    out_sizes: tuple[int, ...]


class ItemStatus(Enum):
    """How one request of a batch ended inside the worker."""

    OK = 0
    FAILED = 1
    TOO_LARGE = 2
    INVALID = 3

    @property
    def failed(self) -> bool:
        """Whether there are no outputs, only a reason."""
        return self in (ItemStatus.FAILED, ItemStatus.INVALID)


class RunResult(NamedTuple):
    """One request's end: ``shapes`` and ``sizes`` of the wanted outputs in order. FAILED: ``error`` says why; INVALID:
    the same, and the input is to blame.
    TOO_LARGE: ``needed`` bytes (alignment included) and the worker holds the outputs until it is told Fetch."""

    ticket: int
    status: ItemStatus
    shapes: tuple[Shape, ...]
    sizes: tuple[int, ...]
    needed: int
    error: str


# --- events, given to the ``on_event`` callback in the order in which they happened


class WorkerStarted(NamedTuple):
    worker: int
    pid: int


class ModelLoaded(NamedTuple):
    """``seeds`` are measured (rows, nanoseconds) pairs from warm-up. ``memory_bytes`` is the process's growth."""

    worker: int
    model: int
    seeds: tuple[tuple[int, int], ...]
    load_ns: int
    memory_bytes: int


class ModelRefused(NamedTuple):
    """The runtime refused the model; the worker lives on. ``reason`` is for people."""

    worker: int
    model: int
    reason: str


class RunFinished(NamedTuple):
    """A batch came back. Stage times are the worker's own monotonic measurements in nanoseconds."""

    worker: int
    batch: int
    results: tuple[RunResult, ...]
    gather_ns: int
    run_ns: int
    scatter_ns: int


class Fetched(NamedTuple):
    worker: int
    result: RunResult


class ExitCause(Enum):
    """Why a worker ended."""

    STOPPED = "stopped"
    DIED = "died"
    HUNG = "hung"
    NONSENSE = "answered nonsense"
    SUPERVISOR = "worker supervisor died"


class WorkerExited(NamedTuple):
    """A worker is gone. ``batches`` were dispatched and unfinished, oldest (the running one) first; ``loading`` is the
    model it was loading or -1. ``detail`` is for people, e.g. "killed by signal 11"."""

    worker: int
    cause: ExitCause
    batches: tuple[int, ...]
    loading: int
    detail: str


PoolEvent = WorkerStarted | ModelLoaded | ModelRefused | RunFinished | Fetched | WorkerExited


class WorkerSettings(NamedTuple):
    """How one worker process runs. ``cpus`` empty: no affinity. ``memory_limit_bytes`` 0: none."""

    threads: int
    cpus: tuple[int, ...]
    memory_limit_bytes: int


class LaneMemory(Protocol):
    """The memory that a worker and the native door share; ``edge_appliance_door`` has the implementation."""

    def fileno(self) -> int:
        """The memory's descriptor, which stays this object's."""

    def doorbell(self) -> int:
        """The eventfd by which the worker wakes the door; as above."""

    def mail(self) -> None:
        """Tell the worker that something was written to its socket."""


class WorkerPort(Protocol):
    """What the engine asks of workers. Calls never block; whatever happens comes back as events."""

    def start(self, worker: int, settings: WorkerSettings) -> None:
        """Fork worker ``worker`` (an id never used before)."""

    def load(self, worker: int, model: int, version: ModelVersion) -> None:
        """Load a version under the id ``model``; loads of one worker happen in order."""

    def unload(self, worker: int, model: int) -> None:
        """Forget a loaded model; the caller sends no more batches for it."""

    def dispatch(self, worker: int, run: Run) -> None:
        """Give a batch to the worker; batches of one worker run in order."""

    def fetch(self, worker: int, fetch: Fetch) -> None:
        """Answer a TOO_LARGE result."""

    def learn(self, worker: int, learn: Learn) -> None:
        """Let the worker know a plan before requests of it come through its memory. A worker without memory of that
        kind does not mind."""

    def forget(self, worker: int, plans: tuple[int, ...]) -> None:
        """No more requests of these plans will come."""

    @property
    def rings(self) -> bool:
        """Whether workers share memory with the native door."""

    def run_timeout_ns(self, version: ModelVersion) -> int:
        """How long a batch of ``version`` may run."""

    def memory(self, worker: int) -> LaneMemory | None:
        """What the worker shares with the native door; None when it shares nothing or is gone."""

    def stop(self, worker: int) -> None:
        """End the worker after what it holds; WorkerExited(STOPPED) follows."""

    def kill(self, worker: int, cause: ExitCause) -> None:
        """End the worker now; WorkerExited(cause) follows."""
