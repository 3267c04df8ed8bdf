"""Models through OpenVINO, on the CPU: a version directory with ``model.xml`` and its ``model.bin``, or ``model.onnx``.

Inputs are read where they lie. Outputs are handed over as views of OpenVINO's memory, and the worker copies them: it
only knows how large they are once they are there. Computes in the model's own precision, never in less.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from appliance.domain.errors import InvalidRequest, LoadFailed, RunFailed
from appliance.domain.model import ModelVersion
from appliance.domain.session_options import session_options
from appliance.domain.tensor import FREE, Datatype, TensorSpec, aligned
from appliance.runtimes.runtime import Feed, Place, Port, Produced, Region, RuntimeSettings, Session

# Importing OpenVINO makes a thread that reports the import to its makers. A box calls nobody, and a thread would not
# live in workers, which are forked after this: without that module OpenVINO does without.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

import openvino  # noqa: E402 - after the line above

FILES: Final = ("model.xml", "model.onnx")
REASON_CHARACTERS_MAX: Final = 1000
DATATYPES: Final[Mapping[str, Datatype]] = MappingProxyType(
    {
        "boolean": Datatype.BOOL,
        "u8": Datatype.UINT8,
        "u16": Datatype.UINT16,
        "u32": Datatype.UINT32,
        "u64": Datatype.UINT64,
        "i8": Datatype.INT8,
        "i16": Datatype.INT16,
        "i32": Datatype.INT32,
        "i64": Datatype.INT64,
        "f16": Datatype.FP16,
        "f32": Datatype.FP32,
        "f64": Datatype.FP64,
    }
)
"""Those that numpy has as well; strings and BF16 are refused."""
NUMPY: Final[Mapping[Datatype, str]] = MappingProxyType(
    {
        datatype: f"<{'f' if name[0] == 'f' else name[0]}{datatype.size}"
        for name, datatype in DATATYPES.items()
        if datatype is not Datatype.BOOL
    }
    | {Datatype.BOOL: "?"}
)


class OpenVinoRuntime:
    """The ``openvino`` runtime. Made in the process that forks the workers, so it makes nothing but the import."""

    name = "openvino"
    lacking = "this package runs OpenVINO on the CPU alone"

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        """Compile the version's model for the CPU, in the worker that will run it."""
        if not version.on_cpu:
            raise LoadFailed(
                f"{version.key}: device '{version.device}' is not offered by this runtime; use KIND_CPU"
            )
        path = _model_file(version)
        threads = session_options(version.parameters).threads or settings.threads
        try:
            compiled = openvino.Core().compile_model(path, "CPU", _options(threads))
            devices = compiled.get_property("EXECUTION_DEVICES")
        except Exception as problem:
            raise LoadFailed(f"{version.key}: OpenVINO cannot load {path}: {_reason(problem)}") from problem
        if devices != ["CPU"]:
            raise LoadFailed(f"{version.key}: asked for the CPU, OpenVINO runs it on {', '.join(devices)}")
        try:
            return OpenVinoSession(compiled, version)
        except KeyError as problem:
            raise LoadFailed(f"{version.key}: the model has no tensor {problem}") from problem


class OpenVinoSession:
    """One compiled model and its one request: a worker runs one batch at a time."""

    measurable = True
    weights = None
    """They are in OpenVINO's memory, and leave it when the session is closed."""

    def __init__(self, compiled: Any, version: ModelVersion) -> None:
        self.inputs = _ports(compiled.inputs, version, "input")
        self.outputs = _ports(compiled.outputs, version, "output")
        # Tensors are numbered as the version has them, ports as the model has them.
        self._inputs = _places(version.inputs, self.inputs)
        self._outputs = _places(version.outputs, self.outputs)
        self._request: Any = compiled.create_infer_request()

    def run(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Produced:
        """Run on what lies at the feeds; never in place."""
        self._feed(source, feeds)
        return self._run(wanted)

    def prepared(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Callable[[], None] | None:
        """The same without making anything but the outputs' copies; None where these do not fit."""
        known = self._collect(wanted)
        if sum(map(aligned, known.sizes)) > place.capacity:
            return None
        tensors = self._tensors(source, feeds)
        return partial(self._run_in_place, tensors, wanted, place, known.shapes)

    def memory(self) -> int:
        """Unknown: a model on the CPU is part of the process's memory."""
        return 0

    def close(self) -> None:
        """Drop the request, and with it the model."""
        self._request = None

    def _tensors(self, source: Region, feeds: tuple[Feed | None, ...]) -> list[tuple[int, Any]]:
        """The inputs' tensors over the memory of ``source``, with the number of the port of each."""
        return [
            (port, openvino.Tensor(_array(source, feed, datatype), shared_memory=True))
            for feed, (port, datatype) in zip(feeds, self._inputs, strict=True)
            if feed is not None
        ]

    def _feed(self, source: Region, feeds: tuple[Feed | None, ...]) -> None:
        try:
            for port, tensor in self._tensors(source, feeds):
                self._request.set_input_tensor(port, tensor)
        except Exception as problem:
            raise InvalidRequest(f"OpenVINO takes no input of this shape: {_reason(problem)}") from problem

    def _run(self, wanted: tuple[int, ...]) -> Produced:
        try:
            self._request.infer(share_outputs=True)
        except Exception as problem:
            raise RunFailed(f"OpenVINO: {_reason(problem)}") from problem
        return self._collect(wanted)

    def _collect(self, wanted: tuple[int, ...]) -> Produced:
        """The outputs of the last run, which live until the next one."""
        arrays = [self._request.get_output_tensor(self._outputs[index].port).data for index in wanted]
        parts = tuple(_bytes_of(array) for array in arrays)
        return Produced(tuple(array.shape for array in arrays), tuple(map(len, parts)), parts, arrays)

    def _run_in_place(
        self,
        tensors: list[tuple[int, Any]],
        wanted: tuple[int, ...],
        place: Place,
        shapes: tuple[tuple[int, ...], ...],
    ) -> None:
        for port, tensor in tensors:
            self._request.set_input_tensor(port, tensor)
        produced = self._run(wanted)
        if produced.shapes != shapes:
            raise RunFailed(
                f"outputs have shapes {produced.shapes}; they had {shapes} for such inputs before"
            )
        position = place.offset
        for part in produced.parts or ():
            place.region.view[position : position + len(part)] = part
            position += aligned(len(part))


class _Place(NamedTuple):
    """Where a tensor of the version is among the model's ports."""

    port: int
    datatype: Datatype


def _model_file(version: ModelVersion) -> str:
    """The daemon gives other runtimes than its own the version's directory."""
    for name in FILES:
        path = os.path.join(version.path, name)
        if os.path.exists(path):
            return path
    raise LoadFailed(
        f"{version.key}: {version.path} holds none of {', '.join(FILES)}; put the model there "
        f"(openvino.save_model writes model.xml with model.bin)"
    )


def _options(threads: int) -> dict[str, object]:
    return {
        "NUM_STREAMS": 1,  # one run at a time, on the calling thread where it is the only one
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": False,  # the appliance gives workers their processors
        "INFERENCE_PRECISION_HINT": openvino.Type.dynamic,  # as the model says; else BF16 where the CPU has it
    }


def _ports(found: Iterable[Any], version: ModelVersion, kind: str) -> tuple[Port, ...]:
    """A port has several names where tensors of the model are one; that of the version counts."""
    wanted = {spec.name for spec in (version.inputs if kind == "input" else version.outputs)}
    ports = []
    for each in found:
        element, names = each.get_element_type().get_type_name(), each.get_names()
        name = min(names & wanted or names or {""})
        datatype = DATATYPES.get(element)
        if datatype is None:
            raise LoadFailed(
                f"{version.key}: {kind} '{name}' is of type {element}, which this runtime does not carry; "
                f"convert the model so that it has one of {', '.join(DATATYPES)}"
            )
        ports.append(Port(name=name, datatype=datatype, shape=_shape(each.get_partial_shape())))
    return tuple(ports)


def _shape(partial_shape: Any) -> tuple[int, ...] | None:
    if partial_shape.rank.is_dynamic:
        return None
    return tuple(FREE if size.is_dynamic else size.get_length() for size in partial_shape)


def _places(specs: Iterable[TensorSpec], ports: Sequence[Port]) -> tuple[_Place, ...]:
    """Raises KeyError for a tensor that no port is."""
    numbers = {port.name: number for number, port in enumerate(ports)}
    return tuple(_Place(numbers[spec.name], ports[numbers[spec.name]].datatype) for spec in specs)


def _array(source: Region, feed: Feed, datatype: Datatype) -> NDArray[Any]:
    """The input where it lies."""
    count = feed.nbytes // datatype.size
    return np.frombuffer(source.view, NUMPY[datatype], count, feed.offset).reshape(feed.shape)


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def _reason(problem: Exception) -> str:
    """OpenVINO's words begin with places in its source."""
    lines = [line.strip() for line in str(problem).splitlines()]
    told = [line for line in lines if line and not line.startswith("Exception from")]
    return " ".join(told)[:REASON_CHARACTERS_MAX] or type(problem).__name__
