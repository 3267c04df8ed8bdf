"""ONNX models through ONNX Runtime: sessions are made here, and run in ``onnx_sessions`` and ``onnx_cuda``.

A session that was to run on another device than it really does is refused: where its provider is not there, and where
that got no node to run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from functools import cache, partial
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

import onnxruntime

from appliance.devices.cuda import Cuda, CudaFailed, NoDevice
from appliance.domain.errors import (
    ArtefactError,
    DeviceHasNoRoom,
    DeviceMissing,
    LoadFailed,
    UnsupportedModel,
)
from appliance.domain.model import ModelVersion
from appliance.domain.regular_file import read_file
from appliance.domain.session_options import session_options
from appliance.domain.tensor import Datatype
from appliance.domain.varint import encode_varint
from appliance.runtimes.device_graphs import let_go, whole_device
from appliance.runtimes.device_limit import (
    DeviceLimit,
    folded_bytes,
    is_full,
    memory_problem,
    taken_problem,
    weights_problem,
)
from appliance.runtimes.distributions import cuda_remedy
from appliance.runtimes.free_rows import with_free_rows
from appliance.runtimes.onnx_cuda import CudaSession, Made
from appliance.runtimes.onnx_elements import ports_of
from appliance.runtimes.onnx_placement import RECORD, placement
from appliance.runtimes.onnx_reasons import load_reason, unsupported_reason
from appliance.runtimes.onnx_sessions import BoundSession, TextSession, device_error
from appliance.runtimes.relayout import message_field, relay
from appliance.runtimes.runtime import Port, RuntimeSettings, Session
from appliance.runtimes.unread import unread
from appliance.runtimes.weights import find_mapped, mapped_now

MODEL_FILE: Final = "model.onnx"
GRAPH_BYTES_MAX: Final = (1 << 31) - 1
FATAL_ONLY: Final = 4
ERRORS: Final = 3
"""Of what is no session's: it warns of each CUDA session that it is not of a plug-in."""
CPU_PROVIDER: Final = "CPUExecutionProvider"
PROVIDERS: Final = MappingProxyType({"cpu": CPU_PROVIDER, "cuda": "CUDAExecutionProvider"})
CUDA_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # what is asked for, not the next power of two: the rest of the device is for other models
        "arena_extend_strategy": "kSameAsRequested",
        # the exhaustive search runs every algorithm for every new shape, which is a second in the midst of serving
        "cudnn_conv_algo_search": "HEURISTIC",
        # what tensor cores compute with: a fifth to a third more of a ResNet-50 (docs/BENCHMARKS.md)
        "prefer_nhwc": "1",
    }
)
FOLDED_MAX: Final = "optimization.constant_folding_max_output_size_in_bytes"
"""Of what each node with constants alone gives; older releases know no such bound."""
GRAPH_REFUSED: Final = "graph capture"
ON_THE_PROCESSOR: Final = (
    "have it run on the processor (kind: KIND_CPU, or KIND_AUTO: on a GPU where there is one)"
)
"""In ONNX Runtime's word where nodes of a graph are not on the device."""
SMALLEST_GRAPH: Final = (
    b':+\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01g'  # one node: y = Identity(x)
    b"Z\t\n\x01x\x12\x04\n\x02\x08\x01b\t\n\x01y\x12\x04\n\x02\x08\x01"
)
OLD_FORMAT: Final = 8
OLD_OPERATORS: Final = 17
"""An ``ir_version``, and a set of the standard operators, that every release that may be installed reads."""
DOMAINS_MAX: Final = 64
UINT64_MAX: Final = (1 << 64) - 1


class OnnxRuntime:
    """The ``onnx`` runtime."""

    name = "onnx"

    def __init__(self) -> None:
        """Have the tables that all sessions share made once, for all workers that are forked after this: the first
        session of a process makes them, which takes it 1.3 MiB and a few milliseconds."""
        onnxruntime.set_default_logger_severity(ERRORS)
        onnxruntime.InferenceSession(_smallest(), _threads(1), providers=[CPU_PROVIDER])

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        """A session for the version's file on the version's device."""
        if not version.on_cpu and _all_of_fixed_size(version):
            return _load_on_cuda(version, settings)
        cuda = None if version.on_cpu else _entered(version, settings)
        with whole_device():
            made = _made(version, settings)
        if cuda is not None:
            made.enter = cuda.enter
            made.told = partial(device_error, cuda, version.key, _limit_of(version, settings))
        return made

    @property
    def lacking(self) -> str:
        """Why it runs no model on a GPU here."""
        return _without(PROVIDERS["cuda"])

    @property
    def identity(self) -> str:
        """Packed weights are laid out for the kernels of one release."""
        return f"onnxruntime {onnxruntime.__version__}"

    def too_new(self, ir_version: int, opsets: Mapping[str, int]) -> Iterator[str]:
        """Why this release reads no model of such a format, nor of one of those sets of operators (``opsets`` by their
        domains, "" the standard one; the first 64), each with what to do. The release itself is asked, with a model of
        one node; that it knows the operators of a model is not looked at."""
        asked = [_smallest(ir_version)]
        asked += [
            _smallest(domain=domain, opset=opset) for domain, opset in islice(opsets.items(), DOMAINS_MAX)
        ]
        for model in asked:
            try:
                onnxruntime.InferenceSession(model, _threads(1), providers=[CPU_PROVIDER])
            except Exception as problem:  # noqa: BLE001 - of many types
                if reason := unsupported_reason(problem, onnxruntime.__version__):
                    yield reason

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


def _smallest(ir_version: int = OLD_FORMAT, domain: str = "", opset: int = OLD_OPERATORS) -> bytes:
    """A model of one node as an ONNX file, of that format and with that set of operators."""
    sets = {"": OLD_OPERATORS, domain: opset}
    written = (
        message_field(
            8, message_field(1, each.encode(errors="replace")) + b"\x10" + encode_varint(number & UINT64_MAX)
        )
        for each, number in sets.items()
    )
    return b"\x08" + encode_varint(ir_version & UINT64_MAX) + SMALLEST_GRAPH + b"".join(written)


def _made(version: ModelVersion, settings: RuntimeSettings) -> BoundSession | TextSession:
    """A session that takes its inputs from memory of the process, as those on the processor do, and of a GPU those with
    texts."""
    others = () if version.weights is None else mapped_now(version.weights)
    session = _create_session(version, settings)
    note = "" if version.on_cpu else _note(version, session)
    inputs, outputs = _ports(version, session)
    weights = None if version.weights is None else find_mapped(version.weights, others)
    text = any(port.datatype is Datatype.BYTES for port in inputs)
    made = (TextSession if text else BoundSession)(session, version, inputs, outputs, weights)
    made.note = note
    return made


def _entered(version: ModelVersion, settings: RuntimeSettings) -> Cuda:
    """The device of a session that brings none of its own; this thread may use it. Raises LoadFailed."""
    _provider_of(version)
    bring_libraries()
    try:
        cuda = _cuda(settings.device.index)
        cuda.enter()
    except CudaFailed as problem:
        raise device_problem(version, problem) from problem
    return cuda


def _path(version: ModelVersion) -> str:
    return os.path.join(version.path, MODEL_FILE) if os.path.isdir(version.path) else version.path


def _model(version: ModelVersion, options: Any) -> str | bytes:
    """What a session is made of: the graph's file or, where it is known what that must hold, the very bytes that were
    compared; what lies outside of the graph is beside the file all the same."""
    path = _path(version)
    return path if version.digests.get(path) is None else _graph(version, options)


def _graph(version: ModelVersion, options: Any) -> bytes:
    """The bytes of the graph's file, compared with what it must hold where that is known."""
    path = _path(version)
    folder, name = os.path.split(path)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    return read_file(path, GRAPH_BYTES_MAX, version.digests.get(path, ""), f"{version.key}: {name}")


def _ports(version: ModelVersion, session: Any) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    try:
        inputs = ports_of(session.inputs_meta, "input")
        inputs += ports_of(session.overridable_initializers, "input", optional=True)
        return inputs, ports_of(session.outputs_meta, "output")
    except LoadFailed as problem:
        raise LoadFailed(f"{version.key}: {problem}") from problem


def _all_of_fixed_size(version: ModelVersion) -> bool:
    return all(spec.datatype is not Datatype.BYTES for spec in (*version.inputs, *version.outputs))


def _load_on_cuda(version: ModelVersion, settings: RuntimeSettings) -> CudaSession:
    """A session of tensors of fixed size on a CUDA device."""
    _provider_of(version)
    bring_libraries()

    def make(stream: int, graphs: bool) -> Made:
        if graphs:
            try:
                return Made(_create_session(version, settings, stream=stream, graphs=True), graphs=True)
            except LoadFailed as problem:
                if GRAPH_REFUSED not in str(problem):
                    raise
        return Made(_create_session(version, settings, stream=stream), graphs=False)

    limit = _limit_of(version, settings)
    try:
        session = CudaSession(
            version,
            _cuda(settings.device.index),
            make,
            graphs=version.cuda_graphs,
            unread=partial(_unread, version),
            limit=limit,
        )
    except CudaFailed as problem:
        raise device_problem(version, problem) from problem
    try:
        if too_much := taken_problem(limit, session.memory()):
            raise DeviceHasNoRoom(f"{version.key}: {too_much}")
        session.inputs, session.outputs = _ports(version, session.metas)
        session.note = _note(version, session.metas)
    except BaseException as problem:
        let_go(problem)
        session.close()
        raise
    return session


def _unread(version: ModelVersion, names: Sequence[str]) -> tuple[str, ...]:
    """Those of its inputs that no node reads, as far as that is known: it serves without it."""
    path = _path(version)
    with suppress(ArtefactError, LoadFailed, MemoryError):
        called = f"{version.key}: {os.path.basename(path)}"
        return unread(read_file(path, GRAPH_BYTES_MAX, version.digests.get(path, ""), called), names)
    return ()


@cache
def _cuda(index: int) -> Cuda:
    """The device for all sessions of the process. Raises CudaFailed, which is not remembered."""
    return Cuda(index)


def _provider_of(version: ModelVersion) -> str:
    """Its name. Raises LoadFailed where it is not to be had."""
    provider = PROVIDERS[version.device.kind.value]
    if lacking := _without(provider):
        raise LoadFailed(
            f"{version.key}: asks for device '{version.device}', but {lacking}, or {ON_THE_PROCESSOR}"
        )
    return provider


def device_problem(version: ModelVersion, problem: CudaFailed) -> LoadFailed:
    """That a version cannot have its device, and what to do."""
    if isinstance(problem, NoDevice):
        return DeviceMissing(
            f"{version.key}: asks for device '{version.device}', but {problem}; docs/GPU.md says what it takes, or "
            f"{ON_THE_PROCESSOR}"
        )
    if full := memory_problem(DeviceLimit(), str(problem)):
        return DeviceHasNoRoom(f"{version.key}: {full}")
    return LoadFailed(
        f"{version.key}: asks for device '{version.device}': {problem}; look at the driver (nvidia-smi), or "
        f"{ON_THE_PROCESSOR}"
    )


def _without(provider: str) -> str:
    """That the library has no such provider, and what to do; "" where it has it."""
    available = onnxruntime.get_available_providers()
    if provider in available:
        return ""
    return f"the installed onnxruntime has no {provider} (it has {', '.join(available)}); {cuda_remedy()}"


def _create_session(
    version: ModelVersion,
    settings: RuntimeSettings,
    *,
    stream: int = 0,
    graphs: bool = False,
    change: Callable[[bytes], bytes] | None = None,
) -> Any:
    """``stream`` is CUDA's on which it is to run, where that is not its own business; ``graphs``: it can capture;
    ``change``: what is made of the graph before."""
    provider = _provider_of(version)
    options = _options(settings, version)
    providers: list[Any] = [CPU_PROVIDER]
    told: Callable[[str], str] = str
    if not version.on_cpu:
        bring_libraries()
        limit = _limit_of(version, settings)
        told = limit.told
        providers = [(provider, _cuda_options(limit, settings.device.index, stream, graphs)), CPU_PROVIDER]
        options.add_session_config_entry(RECORD, "1")
        if folded := folded_bytes(limit, version.weight_bytes, version.graph.nodes):
            options.add_session_config_entry(FOLDED_MAX, str(folded))
    model = _model(version, options) if change is None else change(_graph(version, options))
    try:
        session = onnxruntime.InferenceSession(model, options, providers, enable_fallback=0)
    except Exception as problem:
        _check_device(version, settings)
        if unsupported := unsupported_reason(problem, onnxruntime.__version__):
            raise UnsupportedModel(f"{version.key}: {unsupported}") from problem
        reason = load_reason(_path(version), problem, onnxruntime.__version__)
        failed = DeviceHasNoRoom if not version.on_cpu and is_full(reason) else LoadFailed
        raise failed(f"{version.key}: {told(reason)}") from problem
    if provider not in (real := session.get_providers()):
        _check_device(version, settings)
        raise _fell_back(version, provider, real)
    if change is None and _has_fixed_rows(version, session._sess):
        del session
        return _create_session(version, settings, stream=stream, graphs=graphs, change=with_free_rows)
    return session._sess


def _has_fixed_rows(version: ModelVersion, session: Any) -> bool:
    """Whether the graph says how many rows an output has, of a version that answers as many as it is asked."""
    batched = version.max_batch_size > 0
    return batched and any(each.shape and isinstance(each.shape[0], int) for each in session.outputs_meta)


def _limit_of(version: ModelVersion, settings: RuntimeSettings) -> DeviceLimit:
    """What its session may take of its GPU. Raises LoadFailed where its weights alone are more."""
    limit = DeviceLimit(session_options(version.parameters).device_bytes, settings.room_bytes)
    if problem := weights_problem(limit, version.weight_bytes):
        raise LoadFailed(f"{version.key}: {problem}")
    return limit


def _note(version: ModelVersion, session: Any) -> str:
    """What of it runs on the processor. Raises LoadFailed where all does. Older releases of ONNX Runtime do not tell;
    of those, and of one that cannot tell, it is only known that the provider is there."""
    provider = PROVIDERS[version.device.kind.value]
    try:
        found = placement(session.get_provider_graph_assignment_info(), provider)
    except Exception:  # noqa: BLE001 - a session is not refused for what is not known of it
        return ""
    if found.nowhere:
        raise LoadFailed(
            f"{version.key}: asks for device '{version.device}', but its session runs all of its {found.nodes} nodes "
            f"on the processor: onnxruntime {onnxruntime.__version__} has nothing of {provider} for {found.told}; "
            "export the model with other operators, or say kind: KIND_CPU"
        )
    return found.note


def _cuda_options(limit: DeviceLimit, index: int, stream: int, graphs: bool) -> dict[str, str]:
    options = {"device_id": str(index), **CUDA_OPTIONS}
    if limit.bytes:
        options["gpu_mem_limit"] = str(limit.bytes)
    if stream:
        options["user_compute_stream"] = str(stream)
    if graphs:
        options["enable_cuda_graph"] = "1"
    return options


@cache
def bring_libraries() -> None:
    """Load CUDA's libraries from NVIDIA's packages, where the loader does not look by itself; silently, as the session
    says what is not there."""
    with redirect_stdout(None):
        getattr(onnxruntime, "preload_dlls", bool)()


def _check_device(version: ModelVersion, settings: RuntimeSettings) -> None:
    """Say why there is no session in plainer words than ONNX Runtime's, where it is for want of a device. Raises
    DeviceMissing."""
    if version.on_cpu:
        return
    try:
        _cuda(settings.device.index)
    except NoDevice as problem:
        raise device_problem(version, problem) from problem
    except CudaFailed:
        return


def _fell_back(version: ModelVersion, provider: str, real: Sequence[str]) -> LoadFailed:
    return LoadFailed(
        f"{version.key}: asks for device '{version.device}', but its session silently runs on {', '.join(real)}; "
        f"check the driver and libraries that {provider} needs (docs/GPU.md), or {ON_THE_PROCESSOR}"
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
    # A model's word alone starts no more than can run.
    most = max(settings.threads, len(os.sched_getaffinity(0)))
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
