"""NVIDIA's TensorRT; the only file that knows it. Every call that can say no is looked at.

TensorRT's ``Runtime`` crashes the process where there is no driver: whoever comes here has asked for one before. Values
of its enumerations differ between releases, so that they are named and never kept. What it says is kept for whoever
tells why something failed.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from appliance.domain.errors import ApplianceError, DeviceFull, DeviceHasNoRoom, LoadFailed, RunFailed
from appliance.domain.tensor import Datatype
from appliance.runtimes.device_limit import full_text
from appliance.runtimes.tensorrt.build_progress import WHOLE, BuildProgress
from appliance.runtimes.tensorrt.profiles import Limits, Profile, Shape

WORDS_MAX: Final = 8
"""Of what it complained about last."""
ERRORS_MAX: Final = 3
"""Of a graph that are told."""
_DEVICE_FULL: Final = re.compile(
    r"(?:\d+: )?(?:\[[^\]\n]{0,500}\] |[\w:~]{1,300}: )?"
    r"Error Code \d+: (?:Cuda Runtime \(out of memory\)|OutOfMemory \()"
)
"""Its words where the device has no memory, behind where in its source, or in which of its functions."""
_WHERE_FULL: Final = {LoadFailed: DeviceHasNoRoom, RunFailed: DeviceFull}
SILENT: Final = "it does not say why"
DATATYPES: Final = {
    "FLOAT": Datatype.FP32,
    "HALF": Datatype.FP16,
    "BF16": Datatype.BF16,
    "INT8": Datatype.INT8,
    "UINT8": Datatype.UINT8,
    "INT32": Datatype.INT32,
    "INT64": Datatype.INT64,
    "BOOL": Datatype.BOOL,
}
"""What the protocol can carry of what an engine takes."""


class Built(NamedTuple):
    """An engine, and what its builder learned by measuring. ``anew``: it was given what was learned before, and took
    none of it."""

    engine: bytes
    cache: bytes
    anew: bool = False


class EngineTensor(NamedTuple):
    """An input or output of an engine; free dimensions are -1."""

    name: str
    is_input: bool
    datatype: Datatype
    shape: Shape


def import_tensorrt() -> Library:
    """TensorRT as it is installed. Raises ImportError."""
    import tensorrt

    return Library(tensorrt)


class Library:
    """TensorRT by its module, or one that is like it."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.release = f"TensorRT {module.__version__}"

    def build(
        self,
        graph: bytes,
        path: str,
        profiles: Sequence[Profile],
        *,
        workspace_bytes: int,
        cache: bytes,
        streams: bool,
        refits: bool,
        progress: Callable[[int, int], None],
    ) -> Built:
        """An engine of ``graph``, an ONNX model whose other files lie beside ``path``. ``cache`` is that of an earlier
        build, b"" for none; one that TensorRT does not take is left alone. ``streams``: it can run with weights that
        are not on the device; ``refits``: it can take other weights. What ``progress`` raises ends the build, and is
        raised. Raises LoadFailed with the node that is to blame, where one is."""
        words = _words(self._module)
        builder = _made(lambda: self._module.Builder(words), "builder", words)
        network = _made(lambda: builder.create_network(0), "network", words)
        parser = _made(lambda: self._module.OnnxParser(network, words), "parser", words)
        if not parser.parse(graph, path):
            raise LoadFailed(_parser_text(parser, words))
        config = _made(builder.create_builder_config, "configuration", words)
        config.set_memory_pool_limit(self._module.MemoryPoolType.WORKSPACE, workspace_bytes)
        flags = self._module.BuilderFlag
        for wanted, flag in ((streams, flags.WEIGHT_STREAMING), (refits, flags.REFIT)):
            if wanted:
                config.set_flag(flag)
        monitor = _monitor(self._module, progress)
        config.progress_monitor = monitor
        for profile in profiles:
            self._add_profile(builder, config, profile, words)
        taken = _take_cache(config, cache)
        engine = builder.build_serialized_network(network, config)
        if monitor.problem is not None:
            raise monitor.problem
        if engine is None:
            raise LoadFailed(f"TensorRT cannot build an engine: {_last(words)}")
        learned = config.get_timing_cache()
        return Built(bytes(engine), b"" if learned is None else bytes(learned.serialize()), not taken)

    def _add_profile(self, builder: Any, config: Any, profile: Profile, words: Any) -> None:
        added = builder.create_optimization_profile()
        shaped = all(_takes(added.set_shape, name, *limits) for name, limits in profile.inputs.items())
        if not shaped or config.add_optimization_profile(added) < 0:
            raise LoadFailed(f"TensorRT takes no engine for {profile.text}: {_last(words)}")

    def refit(self, engine: bytes, graph: bytes, path: str) -> bytes:
        """An engine like one that can take other weights, with those of ``graph``; for bytes and where ``open`` may be
        called. Raises LoadFailed."""
        opened = self.open(engine)
        return opened.refitted(graph, path)

    def open(self, engine: bytes) -> Engine:
        """An engine that was built here, ready for contexts. Only for bytes that this box has sealed, and where a
        driver has answered. Raises LoadFailed, DeviceHasNoRoom."""
        words = _words(self._module)
        runtime = _made(lambda: self._module.Runtime(words), "runtime", words)
        runtime.engine_host_code_allowed = False
        mark = words.said
        opened = runtime.deserialize_cuda_engine(engine)
        if opened is None:
            raise _problem(LoadFailed, words, mark, "TensorRT does not take its own engine")
        return Engine(self._module, runtime, opened, words)


class Engine:
    """An engine in the device's memory."""

    def __init__(self, module: Any, runtime: Any, engine: Any, words: Any) -> None:
        self._module = module
        self._runtime = runtime  # it has to outlive the engine
        self._engine = engine
        self._words = words
        self.tensors = tuple(self._tensor(engine.get_tensor_name(i)) for i in range(engine.num_io_tensors))
        self.profiles = tuple(map(self._profile, range(engine.num_optimization_profiles)))

    def limit_weights(self, most: int) -> int:
        """Keep at most so many bytes on the device of those weights that can be elsewhere, before there are contexts;
        gives how many are elsewhere then. Raises LoadFailed, DeviceHasNoRoom."""
        can, mark = max(int(self._engine.streamable_weights_size), 0), self._words.said
        if can <= most:
            return 0
        if not _sets(self._engine, "weight_streaming_budget_v2", most):
            text = "TensorRT keeps no part of the weights off the device"
            raise _problem(LoadFailed, self._words, mark, text)
        return can - most

    def refitted(self, graph: bytes, path: str) -> bytes:
        """Its bytes once it took the weights of ``graph``, of which it is no engine any more where it would not. Raises
        LoadFailed."""
        words = self._words
        refitter = _made(lambda: self._module.Refitter(self._engine, words), "refitter", words)
        parser = _made(
            lambda: self._module.OnnxParserRefitter(refitter, words), "parser of other weights", words
        )
        if not parser.refit_from_bytes(graph, path):
            raise LoadFailed(_parser_text(parser, words))
        if not refitter.refit_cuda_engine():
            raise LoadFailed(f"TensorRT takes no other weights into this engine: {_last(words)}")
        config = _made(self._engine.create_serialization_config, "configuration", words)
        config.set_flag(self._module.SerializationFlag.INCLUDE_REFIT)
        written = _made(lambda: self._engine.serialize_with_config(config), "copy of the engine", words)
        return bytes(written)

    def context(self, profile: int, stream: int, scratch: int, nbytes: int) -> Context:
        """What runs shapes of one profile, and computes in the device's memory from ``scratch`` on, which others of
        this engine may have, too, that never run at once. Raises LoadFailed, DeviceHasNoRoom."""
        mark = self._words.said
        strategy = self._module.ExecutionContextAllocationStrategy.USER_MANAGED
        made = _made(
            lambda: self._engine.create_execution_context(strategy), "execution context", self._words
        )
        if not _takes(made.set_optimization_profile_async, profile, stream):
            raise _problem(LoadFailed, self._words, mark, f"TensorRT takes no profile {profile}")
        if not _takes(made.set_device_memory, scratch, nbytes):
            raise _problem(LoadFailed, self._words, mark, "TensorRT takes no memory to compute in")
        return Context(made, self._words)

    def context_bytes(self, profile: int) -> int:
        """What a context of a profile takes of the device's memory."""
        return int(self._engine.get_device_memory_size_for_profile_v2(profile))

    def _tensor(self, name: str) -> EngineTensor:
        engine, trt = self._engine, self._module
        datatype = DATATYPES.get(engine.get_tensor_dtype(name).name)
        if datatype is None:
            raise LoadFailed(
                f"tensor '{name}' is {engine.get_tensor_dtype(name).name}, which no request can carry"
            )
        if engine.get_tensor_location(name) != trt.TensorLocation.DEVICE or engine.is_shape_inference_io(
            name
        ):
            raise LoadFailed(
                f"tensor '{name}' is used on the processor, to learn shapes; that is not offered"
            )
        is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        return EngineTensor(name, is_input, datatype, tuple(engine.get_tensor_shape(name)))

    def _profile(self, number: int) -> Profile:
        inputs = [tensor.name for tensor in self.tensors if tensor.is_input]
        shapes = {name: self._engine.get_tensor_profile_shape(name, number) for name in inputs}
        return Profile(inputs={name: Limits(*map(tuple, found)) for name, found in shapes.items()})


class Context:
    """One execution context. Raises RunFailed, with TensorRT's words, wherever it says no; DeviceFull where it
    has no memory."""

    def __init__(self, context: Any, words: Any) -> None:
        self._context = context
        self._words = words

    def set_input_shape(self, name: str, shape: Shape) -> None:
        """Say what shape an input of the next run has."""
        mark = self._words.said
        if not _takes(self._context.set_input_shape, name, shape):
            text = f"TensorRT does not take the shape {list(shape)} of '{name}'"
            raise _problem(RunFailed, self._words, mark, text)

    def output_shape(self, name: str) -> Shape:
        """The shape of an output with the inputs as they were set; -1 where it depends on values."""
        return tuple(self._context.get_tensor_shape(name))

    def set_address(self, name: str, address: int) -> None:
        """Say where on the device a tensor lies."""
        mark = self._words.said
        if not _takes(self._context.set_tensor_address, name, address):
            text = f"TensorRT does not take the address of '{name}'"
            raise _problem(RunFailed, self._words, mark, text)

    def run(self, stream: int) -> None:
        """Put a run into a stream."""
        mark = self._words.said
        if not _takes(self._context.execute_async_v3, stream):
            raise _problem(RunFailed, self._words, mark, "TensorRT cannot run this")


def _words(module: Any) -> Any:
    """The logger of this process, with nothing of what was said before."""
    words = _logger(module)
    words.kept.clear()
    return words


@cache
def _logger(module: Any) -> Any:
    """A logger that keeps complaints. One for all that TensorRT makes, and for as long as the process lives: TensorRT
    keeps the first for whatever is no object's own, as plug-ins are, and crashes where that is gone. Its own plug-ins
    are there from then on: some of ONNX's operators, as RoiAlign, are those."""

    class Words(module.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            module.ILogger.__init__(self)
            self.kept: deque[str] = deque(maxlen=WORDS_MAX)
            self.said = 0

        def log(self, severity: Any, text: str) -> None:
            if severity in (module.ILogger.INTERNAL_ERROR, module.ILogger.ERROR):
                self.kept.append(text.strip())
                self.said += 1

    words = Words()
    module.init_libnvinfer_plugins(words, "")
    return words


def _monitor(module: Any, progress: Callable[[int, int], None]) -> Any:
    """What TensorRT tells how far it is, and asks whether to go on."""

    class Monitor(module.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            module.IProgressMonitor.__init__(self)
            self.phases = BuildProgress()
            self.problem: Exception | None = None

        def phase_start(self, name: str, parent: str | None, steps: int) -> None:
            self.phases.begin(name, parent, steps)

        def phase_finish(self, name: str) -> None:
            self.phases.end(name)

        def step_complete(self, name: str, step: int) -> bool:
            try:
                progress(self.phases.step(name, step), WHOLE)
            except Exception as problem:  # noqa: BLE001 - raised again when TensorRT has given up
                self.problem = problem
            return self.problem is None

    return Monitor()


def _take_cache(config: Any, data: bytes) -> bool:
    """Have a build start from a timing cache, or from an empty one where TensorRT refuses it, as that of another device
    or release; gives whether it took what there was."""
    for content in (data, b"") if data else (b"",):
        cache = config.create_timing_cache(content)
        if cache is not None and _takes(config.set_timing_cache, cache, False):
            return content == data
    return not data


def _takes(call: Callable[..., Any], *arguments: Any) -> bool:
    """Whether TensorRT does as it is told. Its bindings say no by what they give, or raise it."""
    try:
        return call(*arguments) is not False
    except (RuntimeError, ValueError):
        return False


def _sets(of: Any, name: str, value: int) -> bool:
    """Whether TensorRT takes a value."""
    try:
        setattr(of, name, value)
    except (RuntimeError, ValueError):
        return False
    return bool(getattr(of, name) == value)


def _made(make: Callable[[], Any], what: str, words: Any) -> Any:
    """What ``make`` gives. A constructor whose library gives nothing raises TypeError."""
    mark = words.said
    try:
        value = make()
    except TypeError as problem:
        raise _problem(LoadFailed, words, mark, f"TensorRT makes no {what}") from problem
    if value is None:
        raise _problem(LoadFailed, words, mark, f"TensorRT makes no {what}")
    return value


def _problem(kind: type[LoadFailed | RunFailed], words: Any, mark: int, text: str) -> ApplianceError:
    """That TensorRT says no, in its words since it had said ``mark`` of them: others may be of another session, or of a
    failure that is long over."""
    heard = list(words.kept)[mark - words.said :] if words.said > mark else []
    reason = f"{text}: {'; '.join(heard) or SILENT}"
    if any(map(_DEVICE_FULL.match, heard)):
        return _WHERE_FULL[kind](full_text(reason))
    return kind(reason)


def _last(words: Any) -> str:
    return "; ".join(words.kept) or SILENT


def _parser_text(parser: Any, words: Any) -> str:
    """Which nodes TensorRT does not take, and why."""
    found = []
    for number in range(min(parser.num_errors, ERRORS_MAX)):
        error = parser.get_error(number)
        node = (
            f"node '{error.node_name()}' ({error.node_operator()})" if error.node_operator() else "the graph"
        )
        kind = error.code().name.lower().replace("_", " ")
        found.append(f"{node}: {kind}: {error.desc()}")
    return f"TensorRT does not take {'; '.join(found) or f'the graph: {_last(words)}'}"
