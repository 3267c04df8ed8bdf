"""ONNX models through ONNX Runtime; the only file that knows it.

Inputs are read in place and, once the shapes of the outputs are known, outputs are written in place: bindings of
addresses are kept for shapes and places that come again. Every answer is bit for bit what ``InferenceSession.run``
gives. A session that was to run on another device than it really does is refused.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import cache, partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as native

from appliance.domain.errors import ApplianceError, InvalidRequest, LoadFailed, RunFailed
from appliance.domain.model import ModelVersion
from appliance.domain.regular_file import read_file
from appliance.domain.session_options import session_options
from appliance.domain.tensor import Datatype, aligned, element_count
from appliance.runtimes.arrays import decode_strings, encode_strings
from appliance.runtimes.onnx_reasons import load_reason, runtime_reason
from appliance.runtimes.relayout import relay
from appliance.runtimes.runtime import (
    Feed,
    Place,
    Port,
    Produced,
    Region,
    RuntimeSettings,
    Session,
)
from appliance.runtimes.weights import MappedWeights, find_mapped, mapped_now

MODEL_FILE: Final = "model.onnx"
GRAPH_BYTES_MAX: Final = (1 << 31) - 1
BINDINGS_MAX: Final = 256
FATAL_ONLY: Final = 4
CPU_PROVIDER: Final = "CPUExecutionProvider"
PROVIDERS: Final = MappingProxyType({"cpu": CPU_PROVIDER, "cuda": "CUDAExecutionProvider"})


class ElementType(NamedTuple):
    """An element type: what the wire calls it, its ONNX number, its numpy name ("" when numpy lacks it)."""

    datatype: Datatype
    number: int
    numpy: str


ELEMENT_TYPES: Final[Mapping[str, ElementType]] = MappingProxyType(
    {
        "tensor(float)": ElementType(Datatype.FP32, 1, "<f4"),
        "tensor(uint8)": ElementType(Datatype.UINT8, 2, "u1"),
        "tensor(int8)": ElementType(Datatype.INT8, 3, "i1"),
        "tensor(uint16)": ElementType(Datatype.UINT16, 4, "<u2"),
        "tensor(int16)": ElementType(Datatype.INT16, 5, "<i2"),
        "tensor(int32)": ElementType(Datatype.INT32, 6, "<i4"),
        "tensor(int64)": ElementType(Datatype.INT64, 7, "<i8"),
        "tensor(string)": ElementType(Datatype.BYTES, 8, "O"),
        "tensor(bool)": ElementType(Datatype.BOOL, 9, "?"),
        "tensor(float16)": ElementType(Datatype.FP16, 10, "<f2"),
        "tensor(double)": ElementType(Datatype.FP64, 11, "<f8"),
        "tensor(uint32)": ElementType(Datatype.UINT32, 12, "<u4"),
        "tensor(uint64)": ElementType(Datatype.UINT64, 13, "<u8"),
        "tensor(bfloat16)": ElementType(Datatype.BF16, 16, ""),
    }
)
SMALLEST_MODEL: Final = (
    b'\x08\x08:+\n\x10\n\x01x\x12\x01y"\x08Identity'  # IR version 8, one node: y = Identity(x)
    b"\x12\x01gZ\t\n\x01x\x12\x04\n\x02\x08\x01b\t\n\x01y\x12\x04\n\x02\x08\x01B\x02\x10\x11"  # opset 17
)
_BY_DATATYPE: Final[Mapping[Datatype, ElementType]] = MappingProxyType(
    {element.datatype: element for element in ELEMENT_TYPES.values()}
)


class OnnxRuntime:
    """The ``onnx`` runtime."""

    name = "onnx"

    def __init__(self) -> None:
        """Have the tables that all sessions share made once, for all workers that are forked after this: the first
        session of a process makes them, which takes it 1.3 MiB and a few milliseconds."""
        onnxruntime.InferenceSession(SMALLEST_MODEL, _threads(1), providers=[CPU_PROVIDER])

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        """A session for the version's file on the version's device."""
        others = () if version.weights is None else mapped_now(version.weights)
        session = _create_session(version, settings)
        try:
            inputs = _ports(session.inputs_meta, "input")
            inputs += _ports(session.overridable_initializers, "input", optional=True)
            outputs = _ports(session.outputs_meta, "output")
        except LoadFailed as problem:
            raise LoadFailed(f"{version.key}: {problem}") from problem
        weights = None if version.weights is None else find_mapped(version.weights, others)
        if any(port.datatype is Datatype.BYTES for port in inputs):
            return TextSession(session, version, inputs, outputs, weights)
        return BoundSession(session, version, inputs, outputs, weights)

    @property
    def identity(self) -> str:
        """Packed weights are laid out for the kernels of one release."""
        return f"onnxruntime {onnxruntime.__version__}"

    def pack(self, version: ModelVersion, settings: RuntimeSettings, graph: str, weights: str) -> None:
        """Let ONNX Runtime optimise the graph and save it with its packed weights, then bring those to the front."""
        saved, saved_weights = f"{graph}.saved", f"{weights}.saved"
        options = _options(settings, version)
        options.optimized_model_filepath = saved
        for key, value in (
            ("optimized_model_external_initializers_file_name", os.path.basename(saved_weights)),
            ("optimized_model_external_initializers_min_size_in_bytes", "1024"),
            ("save_external_prepacked_constant_initializers", "1"),
        ):
            options.add_session_config_entry(f"session.{key}", value)
        model = _model(version, options)
        try:
            onnxruntime.InferenceSession(model, options, providers=[CPU_PROVIDER])
        except Exception as problem:
            raise LoadFailed(
                f"{version.key}: {load_reason(_path(version), problem, onnxruntime.__version__)}"
            ) from problem
        relay(saved, saved_weights, graph, weights)
        for each in (saved, saved_weights):
            if os.path.exists(each):
                os.unlink(each)


def _path(version: ModelVersion) -> str:
    return os.path.join(version.path, MODEL_FILE) if os.path.isdir(version.path) else version.path


def _model(version: ModelVersion, options: Any) -> str | bytes:
    """What a session is made of: the graph's file or, where it is known what that must hold, the very bytes that were
    compared; what lies outside of the graph is beside the file all the same."""
    path = _path(version)
    digest = version.digests.get(path)
    if digest is None:
        return path
    folder, name = os.path.split(path)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    return read_file(path, GRAPH_BYTES_MAX, digest, f"{version.key}: {name}")


def _create_session(version: ModelVersion, settings: RuntimeSettings) -> Any:
    provider = PROVIDERS[version.device.kind.value]
    available = onnxruntime.get_available_providers()
    if provider not in available:
        raise LoadFailed(
            f"{version.key}: asks for device '{version.device}', but the installed onnxruntime has no {provider} "
            f"(it has {', '.join(available)}); install the build for that device or ask for device 'cpu'"
        )
    if not version.on_cpu:
        _bring_libraries()
    options = _options(settings, version)
    model = _model(version, options)
    try:
        wanted = _wanted_providers(provider, settings.device.index)
        session = onnxruntime.InferenceSession(model, options, wanted, enable_fallback=0)
    except Exception as problem:
        raise LoadFailed(
            f"{version.key}: {load_reason(_path(version), problem, onnxruntime.__version__)}"
        ) from problem
    _check_provider(version, provider, session.get_providers())
    return session._sess


@cache
def _bring_libraries() -> None:
    """Load CUDA's libraries from NVIDIA's packages; silently, as the session says what is not there."""
    with redirect_stdout(None):
        getattr(onnxruntime, "preload_dlls", bool)()


def _wanted_providers(provider: str, index: int) -> list[str | tuple[str, dict[str, int]]]:
    return [provider] if provider == CPU_PROVIDER else [(provider, {"device_id": index}), CPU_PROVIDER]


def _check_provider(version: ModelVersion, provider: str, real: Sequence[str]) -> None:
    if provider not in real:
        raise LoadFailed(
            f"{version.key}: asks for device '{version.device}', but its session silently runs on {', '.join(real)}; "
            f"check the driver and libraries that {provider} needs, or ask for device 'cpu'"
        )


def _threads(number: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = number
    options.inter_op_num_threads = 1
    options.log_severity_level = (
        FATAL_ONLY  # reasons travel in the answer; a bad request must not fill the log
    )
    return options


_GRAPH_LEVELS: Final = MappingProxyType(
    {
        -1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        0: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
        1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        2: onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    }
)


def _options(settings: RuntimeSettings, version: ModelVersion) -> Any:
    asked = session_options(version.parameters)
    most = max(
        settings.threads, len(os.sched_getaffinity(0))
    )  # a model's word alone starts no more than can run
    options = _threads(min(asked.threads, most) or settings.threads)
    options.graph_optimization_level = _GRAPH_LEVELS[version.graph_level]
    options.enable_cpu_mem_arena, options.enable_mem_pattern = asked.arena, asked.pattern
    if asked.parallel:
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = min(asked.across, most) or settings.threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    mapped = version.weights is not None and version.on_cpu
    if settings.packed or (settings.quick and mapped):
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if settings.quick and mapped and not settings.packed:
        options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def _ports(metas: Sequence[Any], kind: str, *, optional: bool = False) -> tuple[Port, ...]:
    ports = []
    for meta in metas:
        element = ELEMENT_TYPES.get(meta.type)
        if element is None:
            raise LoadFailed(
                f"{kind} '{meta.name}' is of type {meta.type}, which the protocol cannot carry; "
                f"export the model with plain tensors of {', '.join(Datatype.__members__)}"
            )
        # ONNX Runtime gives [] both for a scalar and for a rank it does not know
        shape = tuple(size if isinstance(size, int) else -1 for size in meta.shape) or None
        ports.append(Port(name=meta.name, datatype=element.datatype, shape=shape, optional=optional))
    return tuple(ports)


class _Bound(NamedTuple):
    """A binding of known addresses, what its run will have produced, how many bytes that takes."""

    binding: Any
    produced: Produced
    needed: int


class BoundSession:
    """A session whose inputs have fixed-size elements: they, and outputs where possible, are bound by address."""

    measurable = True

    def __init__(
        self,
        session: Any,
        version: ModelVersion,
        inputs: tuple[Port, ...],
        outputs: tuple[Port, ...],
        weights: MappedWeights | None,
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.weights = weights
        self._session = session
        self._run_options = onnxruntime.RunOptions()
        """As it would make them for each run that brings none, which costs a small model a quarter of its run."""
        self._inputs = tuple((spec.name, _BY_DATATYPE[spec.datatype].number) for spec in version.inputs)
        self._outputs = tuple((spec.name, _BY_DATATYPE[spec.datatype]) for spec in version.outputs)
        self._cpu = native.OrtDevice(native.OrtDevice.cpu(), native.OrtDevice.default_memory(), 0)
        self._bound: dict[object, _Bound] = {}
        self._known: dict[object, Produced] = {}
        self._in_place = all(spec.datatype is not Datatype.BYTES for spec in version.outputs)

    def run(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Produced:
        """In place when this run's output shapes are known and fit, else in memory of the runtime's own."""
        key = (source.address, feeds, wanted, place.region.address + place.offset)
        bound = self._bound.get(key)
        if bound is not None and bound.needed <= place.capacity:
            try:
                self._session.run_with_iobinding(bound.binding, self._run_options)
            except Exception:  # noqa: BLE001 - the run elsewhere tells what it was
                return self._run_unbound(source, feeds, wanted)
            return bound.produced
        known = self._known.get(_shapes_key(feeds, wanted)) if self._in_place else None
        if known is None or _needed(known.sizes) > place.capacity:
            return self._run_elsewhere(source, feeds, wanted)
        bound = self._bind(source, feeds, wanted, place, known)
        try:
            self._session.run_with_iobinding(bound.binding, self._run_options)
        except Exception:  # noqa: BLE001 - as above
            return self._run_unbound(source, feeds, wanted)
        if not self._obeys(bound, place):
            return self._run_unbound(source, feeds, wanted)
        self._keep(key, bound)
        return known

    def prepared(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Callable[[], None] | None:
        """The binding that ``run`` has kept: its addresses, types and shapes are checked once, and its run does nothing
        else. ONNX Runtime fails a run whose outputs have other shapes."""
        bound = self._bound.get((source.address, feeds, wanted, place.region.address + place.offset))
        if bound is None or bound.needed > place.capacity:
            return None
        return partial(self._session.run_with_iobinding, bound.binding, self._run_options)

    def memory(self) -> int:
        """Unknown: a session on the CPU is part of the process's memory."""
        return 0

    def close(self) -> None:
        """Drop the bindings, then the session, then the file of its weights."""
        self._bound.clear()
        self._session = None
        if self.weights is not None:
            self.weights.close()

    def _bind(
        self,
        source: Region,
        feeds: tuple[Feed | None, ...],
        wanted: tuple[int, ...],
        place: Place,
        known: Produced,
    ) -> _Bound:
        binding = self._bind_inputs(source, feeds)
        position = place.region.address + place.offset
        for index, shape, size in zip(wanted, known.shapes, known.sizes, strict=True):
            name, element = self._outputs[index]
            binding.bind_output(name, self._cpu, element.number, shape, position)
            position += aligned(size)
        return _Bound(binding, known, _needed(known.sizes))

    def _bind_inputs(self, source: Region, feeds: tuple[Feed | None, ...]) -> Any:
        binding = native.SessionIOBinding(self._session)
        for (name, number), feed in zip(self._inputs, feeds, strict=True):
            if feed is not None:
                binding.bind_input(name, self._cpu, number, feed.shape, source.address + feed.offset)
        return binding

    def _obeys(self, bound: _Bound, place: Place) -> bool:
        """Whether the runtime wrote where it was told; an output that is an input of the graph stays where that is."""
        position = place.region.address + place.offset
        for value, size in zip(bound.binding.get_outputs(), bound.produced.sizes, strict=True):
            if size and value.data_ptr() != position:
                return False
            position += aligned(size)
        return True

    def _keep(self, key: object, bound: _Bound) -> None:
        if len(self._bound) >= BINDINGS_MAX:
            self._bound.clear()
        self._bound[key] = bound

    def _run_unbound(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...]
    ) -> Produced:
        """After a run in place failed: when the same run elsewhere does not fail, its shapes depend on values, and this
        session never runs in place again."""
        produced = self._run_elsewhere(source, feeds, wanted)
        self._in_place = False
        self._bound.clear()
        return produced

    def _run_elsewhere(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...]
    ) -> Produced:
        try:
            binding = self._bind_inputs(source, feeds)
            for index in wanted:
                binding.bind_output(self._outputs[index][0], self._cpu)
            self._session.run_with_iobinding(binding, self._run_options)
            produced = self._collect(binding.get_outputs(), wanted)
        except Exception as problem:
            raise _run_error(problem) from problem
        if len(self._known) >= BINDINGS_MAX:
            self._known.clear()
        self._known[_shapes_key(feeds, wanted)] = Produced(produced.shapes, produced.sizes, None)
        return produced

    def _collect(self, values: Sequence[Any], wanted: tuple[int, ...]) -> Produced:
        shapes = tuple(tuple(value.shape()) for value in values)
        parts = tuple(
            _bytes_of(value, self._outputs[index][1].datatype, shape)
            for index, value, shape in zip(wanted, values, shapes, strict=True)
        )
        return Produced(shapes, tuple(map(len, parts)), parts, (values,))


def _bytes_of(value: Any, datatype: Datatype, shape: tuple[int, ...]) -> memoryview:
    """Raw wire bytes of a tensor, a view of the runtime's memory but for strings."""
    if datatype is Datatype.BYTES:
        return memoryview(encode_strings(value.numpy()))
    nbytes = element_count(shape) * datatype.size
    if nbytes == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * nbytes).from_address(value.data_ptr())).cast("B")


def _needed(sizes: Sequence[int]) -> int:
    return sum(map(aligned, sizes))


def _shapes_key(feeds: tuple[Feed | None, ...], wanted: tuple[int, ...]) -> object:
    return (tuple(None if feed is None else feed.shape for feed in feeds), wanted)


class TextSession:
    """A session with BYTES inputs, which ONNX Runtime takes from numpy arrays only."""

    measurable = True

    def __init__(
        self,
        session: Any,
        version: ModelVersion,
        inputs: tuple[Port, ...],
        outputs: tuple[Port, ...],
        weights: MappedWeights | None,
    ) -> None:
        elements = {spec.datatype for spec in (*version.inputs, *version.outputs)}
        if Datatype.BF16 in elements:
            raise LoadFailed(
                f"{version.key}: the installed onnxruntime cannot run BYTES inputs together with BF16 tensors; "
                f"export the model with FP16 or FP32 in place of BF16"
            )
        self.inputs = inputs
        self.outputs = outputs
        self.weights = weights
        self._session = session
        self._run_options = onnxruntime.RunOptions()
        self._inputs = tuple((spec.name, _BY_DATATYPE[spec.datatype]) for spec in version.inputs)
        self._outputs = tuple(spec.name for spec in version.outputs)

    def run(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Produced:
        """From arrays to arrays; never in place."""
        arrays = {
            name: _array(name, element, source, feed)
            for (name, element), feed in zip(self._inputs, feeds, strict=True)
            if feed is not None
        }
        try:
            results = self._session.run([self._outputs[index] for index in wanted], arrays, self._run_options)
        except Exception as problem:
            raise _run_error(problem) from problem
        parts = tuple(memoryview(_raw(result)) for result in results)
        return Produced(tuple(result.shape for result in results), tuple(map(len, parts)), parts)

    def prepared(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Callable[[], None] | None:
        """None: arrays of strings are made anew for every run."""
        return None

    def memory(self) -> int:
        """Unknown: a session on the CPU is part of the process's memory."""
        return 0

    def close(self) -> None:
        """Drop the session, then the file of its weights."""
        self._session = None
        if self.weights is not None:
            self.weights.close()


def _array(name: str, element: ElementType, source: Region, feed: Feed) -> Any:
    raw = source.view[feed.offset : feed.offset + feed.nbytes]
    if element.datatype is Datatype.BYTES:
        return decode_strings(name, raw, feed.shape)
    return np.frombuffer(raw, dtype=element.numpy).reshape(feed.shape)


def _raw(array: Any) -> bytes:
    if array.dtype == object:
        return encode_strings(array)
    raw: bytes = array.tobytes()
    return raw


def _run_error(problem: Exception) -> ApplianceError:
    """The runtime's own word decides whether the input is to blame or the model."""
    reason = runtime_reason(problem)
    return InvalidRequest(reason) if isinstance(problem, native.InvalidArgument) else RunFailed(reason)
