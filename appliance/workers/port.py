"""The port between engine and workers: descriptors down, events up.

``WorkerPool`` is the real implementation; the simulation has one with scripted workers. Values are named tuples
because some are made for every request. Byte offsets are into the memory that a worker's group has.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple, Protocol

from appliance.domain.assessment import Assessment
from appliance.domain.exit_cause import ExitCause
from appliance.domain.load_wish import PLAIN_LOAD, LoadWish
from appliance.domain.model import ModelVersion
from appliance.domain.side_by_side import SideBySide
from appliance.workers.settings import WorkerSettings

Shape = tuple[int, ...]

REASON_CHARACTERS_MAX: Final = 8192
"""Of what a worker says about a model. It goes into statuses, records and the log as it is."""
ERROR_CHARACTERS_MAX: Final = 4096
"""Of what it says about one request."""
SEEDS_MAX: Final = 64


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
    BEYOND = 4

    @property
    def failed(self) -> bool:
        """Whether there are no outputs, only a reason."""
        return self in (ItemStatus.FAILED, ItemStatus.INVALID, ItemStatus.BEYOND)


class RunResult(NamedTuple):
    """One request's end: ``shapes`` and ``sizes`` of the wanted outputs in order. FAILED: ``error`` says why; INVALID:
    the same, and the input is to blame. BEYOND: the same, and the outputs are more than the worker may hold.
    TOO_LARGE: ``needed`` bytes (alignment included) and the worker holds the outputs until it is told Fetch."""

    ticket: int
    status: ItemStatus
    shapes: tuple[Shape, ...]
    sizes: tuple[int, ...]
    needed: int
    error: str


class LoadStage(Enum):
    """What a load is at, in the order in which it comes to it; what there is nothing of is left out."""

    READING = "reading"
    SESSION = "session"
    WARM_UP = "warm-up"
    GOLDEN = "golden"
    MEASURING = "measuring"
    BUILDING = "building"
    """Of a packed form, which is no load: parts of a hundred in the place of bytes."""


# --- events, given to the ``on_event`` callback in the order in which they happened


class WorkerStarted(NamedTuple):
    """``kept_from`` is what the worker's jail keeps it from, in one word each (see ``jail.support``)."""

    worker: int
    pid: int
    kept_from: tuple[str, ...] = ()


class ModelProgress(NamedTuple):
    """A load has come to ``stage``; of the file of weights ``done_bytes`` of ``total_bytes`` are read (0: it has
    none). Only of loads that were asked to tell, and of packed forms while they are built."""

    worker: int
    model: int
    stage: LoadStage
    done_bytes: int
    total_bytes: int


class ModelLoaded(NamedTuple):
    """``seeds`` are measured (rows, nanoseconds) pairs from warm-up. ``memory_bytes`` is the process's growth, which
    the pool believes as far as it sees it. ``assessment`` is None unless one was asked for. ``evictable_bytes`` is what
    evicting its weights gives back, 0 when that cannot be done. ``packed``: it runs from the packed form that was built
    on this box. ``device_bytes`` is what its session holds of a device with memory of its own (0: it has none, or the
    runtime does not know). ``note`` is what people are to know of how it runs, "" for nothing. ``mixes``: whether
    rows that ran together were seen to change one another's answers, None where nobody looked; not ``rows_tried``: the
    model took no rows to see it by, or not now."""

    worker: int
    model: int
    seeds: tuple[tuple[int, int], ...]
    load_ns: int
    memory_bytes: int
    assessment: Assessment | None = None
    evictable_bytes: int = 0
    packed: bool = False
    device_bytes: int = 0
    note: str = ""
    mixes: bool | None = None
    rows_tried: bool = True


class ModelRefused(NamedTuple):
    """The runtime refused the model, or it was ``assessed`` and failed, or files of it are ``not_as_stored``; the
    worker lives on. ``reason`` is for people. ``full``: its device had no memory, which says nothing of the model.
    ``unsupported``: the installed runtime does not know what it is made of, and will not by another try."""

    worker: int
    model: int
    reason: str
    assessed: bool = False
    not_as_stored: bool = False
    full: bool = False
    unsupported: bool = False


class WeightsEvicted(NamedTuple):
    """The weights of a model left memory; what is left of it is its session. Took ``ns``."""

    worker: int
    model: int
    ns: int


class WeightsPagedIn(NamedTuple):
    """The ``nbytes`` bytes of a model's weights are in memory (again). ``failure`` is for people, None when all
    went well; else the weights are not what they should be, and the model must not run."""

    worker: int
    model: int
    nbytes: int
    ns: int
    failure: str | None


class FormBuilt(NamedTuple):
    """A packed form of a version lies in the directory of forms under ``name`` and takes ``nbytes`` on disk; or none
    does, for the reason ``failure``, and it may be worth another try ``later``: there is no room for it now. An engine
    was ``compared`` with the version's session."""

    worker: int
    model: int
    name: str
    nbytes: int
    ns: int
    failure: str | None
    later: bool = False
    compared: tuple[SideBySide, ...] = ()


class FormVerdict(Enum):
    """What a worker says of a packed form: it was loaded after it had been built anew, could not be read, or answered
    wrongly."""

    PROVEN = "proven"
    DROPPED = "dropped"
    REFUSED = "refused"


class FormJudged(NamedTuple):
    """The packed form ``name`` of a model that is being loaded or built. The pool has left a mark of it on the disk."""

    worker: int
    model: int
    name: str
    verdict: FormVerdict
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


class WorkerExited(NamedTuple):
    """A worker is gone. ``batches`` were dispatched and unfinished, oldest (the running one) first; ``loading`` is the
    model it was loading, evicting, paging in or building a form of, maybe beside the batches, or -1. ``detail`` is for
    people, e.g. "killed by signal 11"."""

    worker: int
    cause: ExitCause
    batches: tuple[int, ...]
    loading: int
    detail: str

    @property
    def words(self) -> str:
        """How it ended, for people."""
        return f"{self.cause.value}, {self.detail}"


PoolEvent = (
    WorkerStarted
    | ModelProgress
    | ModelLoaded
    | ModelRefused
    | WeightsEvicted
    | WeightsPagedIn
    | FormBuilt
    | FormJudged
    | RunFinished
    | Fetched
    | WorkerExited
)


class PoolStatistics(NamedTuple):
    """``workers`` alive, ``in_flight`` answers awaited, zygote's process number (0: none) and restarts."""

    workers: int
    in_flight: int
    zygote_pid: int
    zygote_restarts: int


class LaneMemory(Protocol):
    """The memory that a worker and the native front end share; ``edge_appliance_native`` has the implementation."""

    def fileno(self) -> int:
        """The memory's descriptor, which stays this object's."""

    def doorbell(self) -> int:
        """The eventfd by which the worker wakes the front end; as above."""

    def mail(self) -> None:
        """Tell the worker that something was written to its socket."""


class WorkerPort(Protocol):
    """What the engine asks of workers. Calls never block; whatever happens comes back as events.

    A worker has a line and an aside. Foreground loads, batches and fetches are answered in the order in which they were
    asked; background loads, evict_weights, page_in and build_form in theirs, one at a time, beside the line. Any of
    them may end with WorkerExited instead.
    """

    def start(self, worker: int, group: int, settings: WorkerSettings) -> None:
        """Fork worker ``worker`` (an id never used before). It shares the memory of its tensors with the others of its
        ``group``, and with no worker else."""

    def load(self, worker: int, model: int, version: ModelVersion, wish: LoadWish = PLAIN_LOAD) -> None:
        """Load a version under the id ``model``: ModelLoaded or ModelRefused follows, after any ModelProgress. After an
        early one WeightsPagedIn does, too, aside. A model that was loaded early may be loaded once more, in the
        background: its session is exchanged when the new one is there, and stays when that one is refused."""

    def unload(self, worker: int, model: int) -> None:
        """Forget a loaded model; the caller sends no more batches for it."""

    def evict_weights(self, worker: int, model: int) -> None:
        """Let the weights of a loaded model leave memory: WeightsEvicted follows. The caller sends no batches for it
        until they have been paged in again; one that runs all the same is only slow."""

    def page_in(self, worker: int, model: int) -> None:
        """Bring the weights of a model back, in one sequential read: WeightsPagedIn follows. Each 4 MiB are held
        against their digest beside the reading, where there are digests: a disk that rots must not answer."""

    def build_form(self, worker: int, model: int, version: ModelVersion, room_bytes: int = 0) -> None:
        """Build the packed form of ``version`` in the directory ``version.forms`` in the background, under a ``model``
        id never used before: FormBuilt follows, and then the worker's end. To be asked of one that does nothing
        else. ``room_bytes``: see LoadWish."""

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
        """Whether workers share memory with the native front end."""

    def run_timeout_ns(self, version: ModelVersion) -> int:
        """How long a batch of ``version`` may run."""

    def memory(self, worker: int) -> LaneMemory | None:
        """What the worker shares with the native front end; None when it shares nothing or is gone."""

    def grown(self, worker: int) -> Mapping[int, int]:
        """What the models of a worker take of the machine's memory now, by their ids, where that is more than was told
        of them; else nothing."""

    def stop(self, worker: int) -> None:
        """End the worker after what it holds; WorkerExited(STOPPED) follows."""

    def kill(self, worker: int, cause: ExitCause) -> None:
        """End the worker now; WorkerExited(cause) follows."""
