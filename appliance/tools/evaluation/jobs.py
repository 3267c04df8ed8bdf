"""Jobs of evaluation and their results: values, and their form between the two processes, which is JSON.

Every job has the ``repository`` settings by which its source may be served.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

from appliance.config.repository import SettledRepository
from appliance.domain.binding import bind
from appliance.domain.device import DeviceKind
from appliance.domain.golden import EXACT, Tolerance
from appliance.domain.manifest import LatencyPromise

METHODS: Final[Mapping[str, str]] = {
    "int8-dynamic": "weights as INT8, activations quantised while it runs",
    "int8-static": "weights and activations as INT8 (QDQ), calibrated on the golden set",
    "fp16": "half precision inside, inputs and outputs as they were",
}
"""How variants are made, by name."""
ORIGINAL: Final = "original"
TENSORRT: Final = "tensorrt"
"""The backend whose models are tried with ONNX Runtime, and whose variants are such that it builds engines of them."""
PRECISIONS: Final[Mapping[str, str]] = {
    "fp32": ORIGINAL,
    "fp16": "fp16",
    "int8": "int8-static",
    "fp8": "fp8",
    "int4": "int4",
}
"""How a model comes by each precision: the name of a method; the original has its own."""

NS_PER_S: Final = 1_000_000_000
T = TypeVar("T")
Progress = Callable[[int, int, str], None]
"""Told how far a job is: steps done, steps in all, what is done next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureJob:
    """Load a version and run it. ``rows`` are batch sizes (empty: 1, 2, 4 ... up to the largest). ``shapes`` give
    sizes to inputs with free dimensions, without the batch. ``device`` "": that of the version."""

    source: str
    rows: tuple[int, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    budget_ms: int = 1_000
    threads: int = 1
    device: str = ""
    repository: SettledRepository = field(default_factory=SettledRepository)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Runs of one batch size, in nanoseconds."""

    rows: int
    runs: int
    best_ns: int
    p50_ns: int
    p99_ns: int

    @property
    def rows_per_s(self) -> float:
        """Rows that median runs, one after the other, would answer: what else the machine did meanwhile, as in a sum of
        all runs, is no figure of the model."""
        return self.rows * NS_PER_S / max(self.p50_ns, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a version costs: making the session, the first answer counted from before that, private memory that it
    took in all, and its runs. ``inputs`` says what it was run on, ``accelerator`` which one ("": the processor).
    ``rows_mix``: its rows change one another's answers, so that a box does not merge its requests."""

    load_ns: int
    first_answer_ns: int
    memory_bytes: int
    inputs: str
    speeds: tuple[Speed, ...]
    accelerator: str = ""
    rows_mix: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenJob:
    """Answer the cases in the folder ``cases`` (the form of a golden set, where inputs stand in for outputs), or
    ``random`` ones of ``rows`` rows, and write the set into ``folder``; or write the set at ``keep`` again, cases and
    answers as they are, with other ``tolerances`` or ``promise``. ``promise``: None for none, 0 us for what is measured
    times ``margin_percent`` / 100. ``device`` "": that of the version. ``file``: the bare model file that the set is
    of ("": it is a version's, or of whichever it lies beside)."""

    source: str
    folder: str
    file: str = ""
    keep: str = ""
    cases: str = ""
    random: int = 0
    seed: int = 0
    rows: int = 1
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    default: Tolerance = EXACT
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)
    promise: LatencyPromise | None = None
    device: str = ""
    margin_percent: int = 200
    budget_ms: int = 1_000
    repository: SettledRepository = field(default_factory=SettledRepository)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenMade:
    """A golden set that was written. ``kept`` of its cases were there before, with their answers."""

    path: str
    cases: int
    tensors_bytes: int
    kept: int = 0
    promise: LatencyPromise | None = None
    measured: Speed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertJob:
    """Write a variant of the version into the file ``target``, calibrated on the golden set ``golden`` ("": the
    version's own). Where the version is TensorRT's, it is one of which that can build an engine."""

    source: str
    method: str
    target: str
    golden: str = ""
    repository: SettledRepository = field(default_factory=SettledRepository)


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A variant that was written."""

    file_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareJob:
    """Hold model files (by method; the original is ``source`` itself) against the golden set of the version.
    ``budget_ms`` 0: speed is not measured."""

    source: str
    files: Mapping[str, str]
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    budget_ms: int = 2_000
    repository: SettledRepository = field(default_factory=SettledRepository)


@dataclass(frozen=True, slots=True, kw_only=True)
class EquivalenceJob:
    """Hold the model file ``packed`` against ``source``, of which it is another form, and against its golden set.
    ``device`` "": that of the version."""

    source: str
    packed: str
    device: str = ""
    repository: SettledRepository = field(default_factory=SettledRepository)


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """``rounds`` requests gave equal answers, random ones or such of its golden set (``asked``); 0 where nothing could
    be compared, because it is ``unproven``.
    ``differs``: why it is another model, or none at all ("": nothing speaks for that). ``cases`` of its golden set it
    answered as that says; ``refusal``: why a box would refuse it for that set ("": it would not). It was run on
    ``device`` ("": nowhere), and is ``configured`` for that or another one. ``mixes``: its rows change one another's
    answers, and nobody but the graph says that they do not."""

    rounds: int = 0
    asked: str = "random"
    device: str = ""
    configured: str = ""
    unproven: str = ""
    differs: str = ""
    cases: int = 0
    refusal: str = ""
    mixes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputAccuracy:
    """How far an output is from the golden answers over all cases. ``same_top`` of ``tops`` rows have the same best
    class; 0 of 0 where an output has no classes. ``of_limit`` is the largest distance as a multiple of what is allowed
    there (``allowed_absolute`` + ``allowed_relative`` x |right|): above 1 is outside; ``off_by`` is that distance.
    ``reason`` is that of the case with the largest of those that left it."""

    output: str
    values: int
    outside: int
    absolute: float
    relative: float
    same_top: int = 0
    tops: int = 0
    of_limit: float = 0.0
    off_by: float = 0.0
    allowed_absolute: float = 0.0
    allowed_relative: float = 0.0
    reason: str = ""

    @property
    def merely_other(self) -> bool:
        """Whether values are other that have to be the same, as integers and texts have, which are off by nothing."""
        return bool(self.reason) and not (self.off_by or self.absolute)

    @property
    def limit(self) -> str:
        """What its tolerance allows, in words."""
        relative = f"{self.allowed_relative:g} x |right|" if self.allowed_relative else ""
        absolute = f"{self.allowed_absolute:g}" if self.allowed_absolute else ""
        return " + ".join(filter(None, (absolute, relative))) or "none, answers must be the same"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The original or a variant of it. ``problem``: why it does not run; nothing else counts then."""

    method: str
    file_bytes: int = 0
    load_ns: int = 0
    problem: str = ""
    accuracy: tuple[OutputAccuracy, ...] = ()
    speeds: tuple[Speed, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether it runs and every output stayed within its tolerance."""
        return not self.problem and not any(each.reason for each in self.accuracy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All candidates, the original first."""

    cases: int
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialJob:
    """Load a model file (``file`` "": the version's own) on ``device``, have it answer the golden set ``golden``, and
    measure it: ``rows`` are batch sizes (empty: 1, 2, 4 ... up to the largest), each for ``budget_ms``."""

    source: str
    precision: str
    golden: str
    file: str = ""
    device: str = DeviceKind.CPU.value
    rows: tuple[int, ...] = ()
    budget_ms: int = 1_000
    threads: int = 1
    classes: tuple[str, ...] = ()
    repository: SettledRepository = field(default_factory=SettledRepository)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFigures:
    """Runs of one batch size, and the joules of a row with all that the package or the device drew meanwhile (None:
    nothing counts them, or not finely enough)."""

    speed: Speed
    row_joules: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a precision costs and what its answers are worth. ``problem``: why there are no figures; nothing else counts
    then. ``memory_bytes`` are private ones of the process, ``device_bytes`` those of the accelerator ``device_name``;
    ``meter`` is what counts joules ("": nothing does)."""

    precision: str
    problem: str = ""
    file_bytes: int = 0
    load_ns: int = 0
    memory_bytes: int = 0
    device_bytes: int | None = None
    device_name: str = ""
    meter: str = ""
    accuracy: tuple[OutputAccuracy, ...] = ()
    batches: tuple[BatchFigures, ...] = ()


def to_plain(value: Any) -> dict[str, object]:
    """A job or a result as plain values; what is None is left out."""
    return asdict(
        value, dict_factory=lambda pairs: {key: _plain(each) for key, each in pairs if each is not None}
    )


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else value


def from_plain(kind: type[T], document: Mapping[str, object]) -> T:
    """The value of class ``kind`` that ``document`` says. Raises ConfigInvalid."""
    return bind(kind, document, "job")
