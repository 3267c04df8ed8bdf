"""The runtime port: what a worker asks of an inference runtime, and where runtimes are found by name.

A runtime never sees the engine, messages or slots: it is given memory regions, where its inputs lie in them and where
its outputs may go. Third parties add runtimes through the entry-point group ``appliance.runtimes``; an entry point is a
callable without arguments that gives a Runtime.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from os.path import normpath
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, cast, runtime_checkable

from appliance.domain.device import CPU, DeviceName
from appliance.domain.errors import ConfigInvalid, LoadFailed, Problem
from appliance.domain.free_sizes import is_open_ended
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import FREE, Datatype, TensorSpec

ENTRY_POINT_GROUP: Final = "appliance.runtimes"
DEVICES: Final = "/dev/"

Shape = tuple[int, ...]

_BUILT_IN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "onnx": "appliance.runtimes.onnx:OnnxRuntime",
        "tensorrt": "appliance.runtimes.tensorrt.runtime:TensorrtRuntime",
    }
)
_ONNX_MODULE: Final = "onnxruntime"
"""Others are built upon it."""
_NEEDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "onnx": "onnxruntime, or onnxruntime-gpu (docs/GPU.md)",
        "tensorrt": "TensorRT 11 with its Python bindings, for an NVIDIA GPU (docs/TENSORRT.md)",
    }
)
READ_ONNX: Final = frozenset({"onnx", "tensorrt"})
"""Runtimes whose models are ONNX files, which are read and judged before a runtime sees them."""
GRAPH_FILE: Final = "graph.onnx"
ENGINE_FILE: Final = "engine.plan"
KEPT_FILE: Final = "timing.cache"
"""What building a form has learned, for the next time that one is built of the version."""
KEPT_BYTES_MAX: Final = 64 << 20
"""Of it: TensorRT's timing cache has the code of kernels that were compiled for the model as well, where there are any,
so that its size has no bound that could be known. The daemon takes up no more."""
LIKE_FILE: Final = "like"
"""What two versions have in common if the form of one can be made from that of the other, as a few characters."""
LIKE_BYTES_MAX: Final = 256


class Offer(NamedTuple):
    """A runtime by ``name``, made by what is at ``place``; ``package`` is whose it is, "" for our own."""

    name: str
    place: str
    package: str


class Region(NamedTuple):
    """Memory of this process: ``view`` is all of it as writable bytes, ``address`` where it starts. ``pinned`` is what
    holds it where a device copies from and to it by itself; None: it is ordinary memory."""

    view: memoryview
    address: int
    pinned: object = None


class Feed(NamedTuple):
    """One input: full shape; its raw wire bytes start in the source region at ``offset``, a multiple of ALIGNMENT."""

    shape: Shape
    offset: int
    nbytes: int


class Place(NamedTuple):
    """Where outputs may be written: ``capacity`` bytes from ``offset`` (a multiple of ALIGNMENT)."""

    region: Region
    offset: int
    capacity: int


class Produced(NamedTuple):
    """The outputs of a run, in the order they were asked for: full shapes, and bytes of each in raw wire form.

    ``parts`` None: they already lie in the place, back to back, each at the next multiple of ALIGNMENT. Otherwise
    ``parts`` are their bytes, valid as long as this value lives and until the session's next run; they may be views of
    the inputs.
    """

    shapes: tuple[Shape, ...]
    sizes: tuple[int, ...]
    parts: tuple[memoryview, ...] | None
    owner: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """An input or output of a loaded session as the runtime sees it: full ``shape`` with -1 for free dimensions, or
    None when the runtime cannot tell its rank. ``optional`` inputs have a default inside the model."""

    name: str
    datatype: Datatype
    shape: Shape | None
    optional: bool = False


class Donor(NamedTuple):
    """The form of another version of the model from which one may be made: its graph at ``path`` with that ``digest``,
    and what was left in LIKE_FILE when it was built."""

    path: str
    digest: str
    like: str


def _say_nothing(done: int, total: int) -> None:
    """How far a form is concerns nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSettings:
    """How a version is to be loaded, or its form built."""

    threads: int = 1
    """What a session may compute with; 1: on the calling thread."""
    quick: bool = False
    """Weights stay as they are in their file and the graph as it is, for a session that is ready at once."""
    packed: bool = False
    """The graph is a packed form (see Packer), to be run as it is."""
    device: DeviceName = CPU
    """Which was chosen of those that the version asks for, by the driver's count, in the order of the bus."""
    room_bytes: int = 0
    """What a session may take of the device's memory; 0: what there is."""
    original: ModelVersion | None = None
    """The version with its own files, verified, where ``packed`` may be asked for more than that can run."""
    kept: bytes = b""
    """To build a form: what was kept when one of the version was built before, as it was written then."""
    donors: tuple[Donor, ...] = ()
    """To build a form: those of other versions that it may be made from."""
    progress: Callable[[int, int], None] = _say_nothing
    """Takes the parts of a form that are done, and of how many; what it raises is to end the building."""


@runtime_checkable
class OverlappedRun(Protocol):
    """A prepared run that a device does by itself: another one of the session may be begun before it has ended, with a
    source and a place of its own. They end in the order in which they began. All may raise, anything."""

    def __call__(self) -> None:
        """Begin it and wait for it."""

    def begin(self) -> None:
        """Begin it; source and place are the device's until it has ended."""

    def ended(self) -> bool:
        """Whether waiting would be over at once."""

    def finish(self) -> None:
        """Wait for the outputs."""


class Weights(Protocol):
    """Weights of a session that can leave memory and come back. Not called while the session runs."""

    @property
    def nbytes(self) -> int:
        """Bytes that ``evict_weights`` gives back."""

    def evict_weights(self) -> None:
        """Let them leave memory. A run without them is slow, not wrong."""

    def page_in(self, *, verify: bool) -> None:
        """Bring them back, as fast as the disk can; ``verify``: hold them against their digests. Raises LoadFailed."""


class Session(Protocol):
    """One loaded model version. Used by one thread."""

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Real inputs, optional ones included, in any order."""

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Real outputs in any order."""

    @property
    def measurable(self) -> bool:
        """Whether running it on zeros before it serves does no harm and tells what runs cost."""

    @property
    def weights(self) -> Weights | None:
        """What of it can leave memory while it stays; None when nothing can."""

    def run(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Produced:
        """Run once. ``feeds`` are in the order of the version's inputs, None for an optional input that is left out;
        ``wanted`` are indexes into the version's outputs, ascending, at least one.

        Raises InvalidRequest when the input is to blame, else RunFailed, with the runtime's reason."""

    def prepared(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Callable[[], None] | None:
        """What ``run`` did last with these same arguments, made ready to be done again and again, on what lies at the
        source then, with all outputs in place; None when this session cannot. An OverlappedRun where a device does it.

        The outputs have the shapes of that run, or calling it raises, anything; it is not called again then. The
        caller keeps both regions as they are while it keeps this, and drops it before ``close``."""

    def memory(self) -> int:
        """Bytes the session holds on its device as far as the runtime knows; 0 when it does not."""

    def close(self) -> None:
        """Give everything back; no call follows."""


class Runtime(Protocol):
    """A vendor's runtime. Making one imports the vendor's library and leaves no thread and no session behind."""

    @property
    def name(self) -> str:
        """What ModelVersion.runtime calls it."""

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        """Load a version. Raises LoadFailed with the reason and what to do."""


@runtime_checkable
class Packer(Protocol):
    """A runtime that can write a version in a form which this machine runs at full speed.

    It may have ``form_file``, what the form's graph is called (GRAPH_FILE, or ENGINE_FILE for what is no graph any
    more), and ``sealed``, True where what reads a form would believe whatever lies in it: then one is only loaded when
    this box has sealed it, for the same ``identity``."""

    @property
    def identity(self) -> str:
        """What a packed form depends on beside the version and the processor: the runtime and its release, and the
        driver and the device where it is tied to them. For people as well."""

    def pack(self, version: ModelVersion, settings: RuntimeSettings, graph: str, weights: str) -> None:
        """Write the packed form of ``version`` into the new files ``graph`` and ``weights``, which are in one
        directory, what runs touch first in ``weights``, which may stay away. May write KEPT_FILE and LIKE_FILE beside
        them. Raises LoadFailed."""


def check_signature(version: ModelVersion, session: Session) -> None:
    """Raise LoadFailed with every difference in names, datatypes, ranks and fixed dimensions."""
    batch = (FREE,) if version.max_batch_size > 0 else ()
    differences = [
        *_differences("input", _own(version.inputs, version.input_reshapes), session.inputs, batch),
        *_differences("output", _own(version.outputs, version.output_reshapes), session.outputs, batch),
        *_left_out(version, session.inputs),
    ]
    if differences:
        raise LoadFailed(f"{version.key}: is not what the model says: {'; '.join(differences)}")


def _own(specs: Iterable[TensorSpec], reshapes: Mapping[str, Shape]) -> list[TensorSpec]:
    """The tensors as the model has them."""
    return [replace(spec, shape=reshapes.get(spec.name, spec.shape)) for spec in specs]


def _differences(kind: str, specs: Iterable[TensorSpec], ports: Iterable[Port], batch: Shape) -> list[str]:
    real = {port.name: port for port in ports}
    found = []
    for spec in specs:
        port = real.get(spec.name)
        if port is None:
            names = ", ".join(f"'{name}'" for name in real)
            found.append(f"{kind} '{spec.name}' does not exist, the model has {names or 'none'}")
        elif port.datatype is not spec.datatype:
            found.append(
                f"{kind} '{spec.name}' is said to be {spec.datatype.wire}, the model has {port.datatype.wire}"
            )
        elif port.shape is not None and not _compatible(batch + spec.shape, port.shape):
            found.append(
                f"{kind} '{spec.name}' is said to have shape {list(batch + spec.shape)}, "
                f"the model has {list(port.shape)}"
            )
    return found


def _compatible(said: tuple[int, ...], real: tuple[int, ...]) -> bool:
    if len(said) != len(real):
        return False
    return all(one == other or FREE in (one, other) for one, other in zip(said, real, strict=True))


def _left_out(version: ModelVersion, ports: Iterable[Port]) -> list[str]:
    said = {spec.name for spec in version.inputs if not spec.optional}
    known = {spec.name for spec in version.inputs}
    found = []
    for port in ports:
        if port.optional or port.name in said:
            continue
        reason = (
            "is required by the model, but said to be optional" if port.name in known else "is not mentioned"
        )
        found.append(f"input '{port.name}' ({port.datatype.wire}) {reason}")
    return found


def extra_files(runtime: Runtime) -> tuple[str, ...]:
    """Files and directories that a runtime reads beside its package and the models: its ``reads``, if it has any."""
    return tuple(getattr(runtime, "reads", ()))


def extra_devices(runtime: Runtime) -> tuple[str, ...]:
    """Patterns of device files that a runtime drives, such as "/dev/accel*": its ``devices``, if it has any. Those of
    graphics processors are known. Only workers of models with KIND_GPU get them."""
    return tuple(getattr(runtime, "devices", ()))


def lacking(runtime: Runtime) -> str:
    """Why a runtime runs no model with KIND_GPU here, in words: its ``lacking``, if it has any. It is asked of the
    library as it is installed, not of a device, so what is not told may be lacking as well."""
    return str(getattr(runtime, "lacking", ""))


def region_maker(session: Session) -> Callable[[int], Region] | None:
    """What gives memory of so many bytes that the session's device copies from and to by itself: its ``pin``, if it has
    one. The caller lets go of it before the process ends; the session may go first."""
    return cast("Callable[[int], Region] | None", getattr(session, "pin", None))


def batch_sizes(session: Session) -> tuple[int, ...]:
    """Sizes of batches each of whose first runs are dear, so that they are better done before it serves: its
    ``batch_sizes``, if it has any."""
    return tuple(getattr(session, "batch_sizes", ()))


def note_of(session: Session) -> str:
    """What people are to know of how it runs, in a sentence: its ``note``, if it has one; "" for nothing."""
    return str(getattr(session, "note", ""))


def is_for_requests(version: ModelVersion) -> bool:
    """Whether its form has to be built for the shapes that requests bring, and may be asked for others: then its own
    files are there for those."""
    return version.has_engine and is_open_ended(version)


def left_beside(settings: RuntimeSettings, *sessions: Session) -> RuntimeSettings:
    """What there is for another session beside these: something, as 0 says that nothing bounds it."""
    room_bytes = settings.room_bytes
    taken = sum(session.memory() for session in sessions)
    return replace(settings, room_bytes=max(room_bytes - taken, 1)) if room_bytes else settings


def form_file(runtime: Packer) -> str:
    """What the graph of the runtime's packed forms is called: its ``form_file``, if it has one."""
    return str(getattr(runtime, "form_file", GRAPH_FILE))


def is_sealed(runtime: Packer) -> bool:
    """Whether a packed form is only loaded when this box has sealed it: its ``sealed``, if it has that."""
    return bool(getattr(runtime, "sealed", False))


class AbsentRuntime:
    """Stands for a runtime that is known here and cannot be had: it refuses each model with the ``reason``."""

    def __init__(self, name: str, problem: ImportError | AttributeError) -> None:
        self.name = name
        self.reason = str(problem)
        needs = "onnx" if problem.name == _ONNX_MODULE else name
        self.remedy = f"install {_NEEDS.get(needs, 'what it needs (docs/RUNTIMES.md)')}"

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        """Raise LoadFailed."""
        raise LoadFailed(
            f"{version.key}: runtime '{self.name}' cannot be had here: {self.reason}; {self.remedy} "
            "and start the appliance anew"
        )


def open_runtimes(names: Iterable[str]) -> dict[str, Runtime]:
    """The named runtimes, imported and ready. One that is known here and cannot be imported is an AbsentRuntime, so
    that the models of the others serve. Raises ConfigInvalid naming those that nothing offers, or all where none can
    be had."""
    runtimes: dict[str, Runtime] = {}
    problems: list[Problem] = []
    for name in names:
        try:
            runtime = runtimes[name] = _factory(name)()
            if stray := [each for each in extra_devices(runtime) if not normpath(each).startswith(DEVICES)]:
                raise LookupError(f"its devices {', '.join(stray)} are not below {DEVICES}")
        except (ImportError, AttributeError) as problem:
            runtimes[name] = AbsentRuntime(name, problem)
        except LookupError as problem:
            problems.append(_unavailable(name, f"{problem}; known here: {', '.join(known_runtimes())}"))
    absent = [each for each in runtimes.values() if isinstance(each, AbsentRuntime)]
    if len(absent) == len(runtimes):
        problems += [_unavailable(each.name, f"{each.reason}; {each.remedy}") for each in absent]
    if problems:
        raise ConfigInvalid(problems)
    return runtimes


def _unavailable(name: str, reason: str) -> Problem:
    text = f"runtime '{name}' is not available: {reason}"
    return Problem(file="configuration", key="repository.runtimes", text=text)


def known_runtimes() -> tuple[str, ...]:
    """Names that ``open_runtimes`` can look up; what they name need not be importable."""
    return tuple(sorted({offer.name for offer in offers()}))


def offers() -> tuple[Offer, ...]:
    """Everything that can be looked up, by name; of those with one name the first is taken."""
    built_in = (Offer(name, place, "") for name, place in _BUILT_IN.items())
    points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    found = (Offer(point.name, point.value, _package(point)) for point in points)
    return tuple(sorted((*built_in, *found), key=lambda offer: offer.name))


def _package(point: importlib.metadata.EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "unknown"


def _factory(name: str) -> Callable[[], Runtime]:
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        return cast(Callable[[], Runtime], getattr(importlib.import_module(module), attribute))
    points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP, name=name)
    for point in points:
        return cast(Callable[[], Runtime], point.load())
    raise LookupError("no installed package offers it")
