"""What a servable model version is: its tensors, how it batches, which limits its queue has. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from appliance.domain.device import DeviceKind
from appliance.domain.device_wish import ON_CPU, DeviceWish
from appliance.domain.flag import is_true
from appliance.domain.tensor import TensorSpec

RUN_TIMEOUT_PARAMETER = "run_timeout_ms"
"""The parameter that says how long a run may take."""
RUN_TIMEOUT_MS_MAX = 3_600_000
"""The longest that a model may ask for: an hour, after which a run counts as hanging whatever its package says."""


def run_timeout_ms(said: str) -> int | None:
    """The milliseconds that ``said``, a parameter of a model, allows a run; None when it is no number from 1 to
    RUN_TIMEOUT_MS_MAX."""
    if not (said.isascii() and said.isdecimal()) or len(said) > len(str(RUN_TIMEOUT_MS_MAX)):
        return None
    return int(said) if 1 <= int(said) <= RUN_TIMEOUT_MS_MAX else None


def run_timeout_problem(said: str) -> str:
    """What is wrong with ``said`` as the value of RUN_TIMEOUT_PARAMETER; "" when nothing is."""
    if run_timeout_ms(said) is not None:
        return ""
    return f"{RUN_TIMEOUT_PARAMETER} must be milliseconds above 0 and at most {RUN_TIMEOUT_MS_MAX}, not '{said[:40]}'"


ENGINE_RUNTIMES = frozenset({"tensorrt"})
"""Runtimes that have a packed form of any version, not of those alone that have a file of weights: an engine."""
MIXED_ROWS = (
    "its requests are not merged: rows that run together change one another's answers, so that the free first "
    "dimension is no batch; where that is so, max_batch_size: 0 in config.pbtxt says it"
)
"""Why requests run one by one that the graph alone says may be merged."""
OWN_WORKER_PARAMETER = "own_worker"
"""The parameter by which a version shares its worker processes with no other."""


class TimeoutAction(Enum):
    """What happens to a request whose queue time-out passed: refuse it, or serve it after all others."""

    REJECT = 0
    DELAY = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """Bounds of one priority level's queue. 0 means unbounded / no time-out of its own."""

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_us: int = 0
    allow_timeout_override: bool = True
    max_queue_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Dynamic batching of one model. ``max_queue_delay_us`` is how long an idle lane may wait to fill a batch."""

    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = QueuePolicy()
    priority_queue_policy: Mapping[int, QueuePolicy] = field(default_factory=dict)

    def policy_of(self, level: int) -> QueuePolicy:
        """The queue policy of priority ``level`` (1 is the most urgent; 0 when the model has no levels)."""
        return self.priority_queue_policy.get(level, self.default_queue_policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupInput:
    """One input of a warm-up request: zeros, random values, or the raw bytes of ``file`` (absolute path)."""

    spec: TensorSpec
    random: bool = False
    file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmup:
    """A request that a worker runs before the version becomes ready."""

    name: str
    batch_size: int
    count: int
    inputs: tuple[WarmupInput, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsFile:
    """The one file beside a graph that holds its large tensors. ``digest`` is the lower-case hex of its blake3-256,
    ``pieces`` those of each 4 MiB of it in order; "" and empty where they are not known, so that it cannot be
    verified."""

    path: str
    size: int
    digest: str = ""
    pieces: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What it is called where clients read of it."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSize:
    """What a runtime makes of a graph, with every function expanded and sparse tensors dense: the bytes of its tensors
    in memory, however few the file has for them, and its nodes. No nodes: that is not known."""

    tensor_bytes: int = 0
    nodes: int = 0


class VersionChoice(Enum):
    """How a model's versions are picked from those that are there."""

    LATEST = "latest"
    ALL = "all"
    SPECIFIC = "specific"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPolicy:
    """Which versions of a model are served: the ``count`` highest (LATEST), every one (ALL), or ``numbers``, whether
    they are there or not (SPECIFIC). A choice leaves the other choices' fields alone."""

    choice: VersionChoice = VersionChoice.LATEST
    count: int = 1
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FormRoom:
    """What packed forms may take: with the blobs of the store in the state directory ``state`` no more than
    ``quota_bytes`` (0: as many as fit), and ``free_floor_bytes`` stay free on the disk while one is built."""

    state: str = ""
    quota_bytes: int = 0
    free_floor_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVersion:
    """One version of one model as it is served.

    ``inputs`` and ``outputs`` are in graph order, without the batch dimension when ``max_batch_size`` > 0.
    ``batching`` is None when requests are never merged; ``rows_assumed``: that they may be is read off the graph's
    dimensions, and nobody said it. ``device`` is what it asks for. ``labels`` maps an output name
    to its class labels, ``label_files`` to the file they come from. ``input_reshapes`` and ``output_reshapes`` map the
    name of a tensor to the model's own shape where clients see another, ``formats`` that of an input to how pictures
    lie in it. ``noted`` is the JSON of what is shown to clients alone, ``notes`` tell what of the configuration has no
    effect. ``graph_level`` is how far the graph is optimised, as in Triton; 0: as far as possible. ``graph`` is
    what it comes to in memory. ``cuda_graphs``: runs of shapes that come again are captured where it runs on a CUDA
    device. ``file_bytes`` is the size of the model file with its external data, ``model_file`` its name ("" where the
    runtime is given the directory). ``policy`` is the model's. ``golden`` is the absolute path of the version's golden
    set (``set.json``), "" when it has none. Names of other files are as the configuration writes them.

    ``weights`` is None where the tensors lie in the model file itself, or in several files. ``digest`` names the
    package that the version came in, "" for a plain directory. ``forms`` is the directory where packed forms built on
    this box lie (``workers/forms``), "" to load without one; ``form_room`` is what they may take. ``trust`` is who
    vouches for the package: "key KEYID", "unsigned", or "" for a plain directory. ``digests`` are those of the files
    that a worker reads, by their paths, but for the weights: it uses no others than these bytes. None are known of a
    plain directory's. ``sealed`` are the digests of the documents of those of its forms that this box has sealed.
    ``kin`` are the names of forms of other versions of the model, for whom the same vouches, that its own may be made
    from while it is built; they are among those that are looked at for ``sealed``. ``free_sizes`` are the largest that
    requests had of the free dimensions of its inputs (``domain/free_sizes``), while a form is built for them.
    """

    name: str
    version: int
    platform: str
    backend: str
    runtime: str
    path: str
    file_bytes: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int = 0
    batching: Batching | None = None
    rows_assumed: bool = False
    instance_count: int = 1
    device: DeviceWish = ON_CPU
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    label_files: Mapping[str, str] = field(default_factory=dict)
    input_reshapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    output_reshapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    formats: Mapping[str, str] = field(default_factory=dict)
    noted: str = "{}"
    notes: tuple[str, ...] = ()
    graph_level: int = 0
    graph: GraphSize = GraphSize()
    cuda_graphs: bool = True
    model_file: str = ""
    policy: VersionPolicy = VersionPolicy()
    warmups: tuple[Warmup, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    weights: WeightsFile | None = None
    golden: str = ""
    digest: str = ""
    forms: str = ""
    form_room: FormRoom = FormRoom()
    trust: str = ""
    digests: Mapping[str, str] = field(default_factory=dict)
    sealed: tuple[str, ...] = ()
    kin: tuple[str, ...] = ()
    free_sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """``name/version``, for people and logs."""
        return f"{self.name}/{self.version}"

    @property
    def on_cpu(self) -> bool:
        """Whether it runs on the processor."""
        return self.device.kind is DeviceKind.CPU

    @property
    def has_engine(self) -> bool:
        """Whether its packed form is an engine, which is there to be faster."""
        return self.runtime in ENGINE_RUNTIMES

    @property
    def weight_bytes(self) -> int:
        """What its weights take of a device's memory at least."""
        return max(self.file_bytes, self.graph.tensor_bytes)

    @property
    def own_worker(self) -> bool:
        """Whether it is to share its worker processes with no other version."""
        return is_true(self.parameters.get(OWN_WORKER_PARAMETER, ""))


class VersionState(Enum):
    """State of a version as RepositoryIndex reports it."""

    UNKNOWN = "UNKNOWN"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"


def interchangeable(one: ModelVersion, other: ModelVersion) -> bool:
    """Whether a request for either can be answered by the other, its tensors lying where they lie."""
    return unlike(one, other) is None


class Unlike(Enum):
    """What keeps requests for one version from being answered by another."""

    INPUTS = "inputs"
    OUTPUTS = "outputs"
    BATCHING = "batch dimensions"


def unlike(one: ModelVersion, other: ModelVersion) -> Unlike | None:
    """What keeps requests for one from being answered by the other; None: nothing does."""
    if one.inputs != other.inputs:
        return Unlike.INPUTS
    outputs = [[(spec.name, spec.datatype) for spec in each.outputs] for each in (one, other)]
    if outputs[0] != outputs[1]:
        return Unlike.OUTPUTS
    return Unlike.BATCHING if (one.max_batch_size > 0) != (other.max_batch_size > 0) else None
