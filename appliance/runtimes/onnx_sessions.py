"""Sessions of ONNX Runtime on the processor.

Inputs are read in place and, once the shapes of the outputs are known, outputs are written in place: bindings of
addresses are kept for shapes and places that come again. Every answer is bit for bit what ``InferenceSession.run``
gives.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as native

from appliance.devices.cuda import Cuda
from appliance.domain.errors import (
    ApplianceError,
    BeyondDeviceLimit,
    DeviceFull,
    InvalidRequest,
    LoadFailed,
    RunFailed,
)
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype, aligned, element_count
from appliance.runtimes.arrays import decode_strings, encode_strings
from appliance.runtimes.device_graphs import ran_short, whole_device
from appliance.runtimes.device_limit import DeviceLimit, memory_problem
from appliance.runtimes.lost_device import end_if_lost
from appliance.runtimes.onnx_elements import BY_DATATYPE, ElementType
from appliance.runtimes.onnx_reasons import runtime_reason
from appliance.runtimes.runtime import Feed, Place, Port, Produced, Region
from appliance.runtimes.weights import MappedWeights

BINDINGS_MAX: Final = 256


def run_error(problem: Exception, limit: DeviceLimit | None = None) -> ApplianceError:
    """The runtime's own word decides whether the input is to blame or the model, or memory of the device on which a
    session is held to ``limit``."""
    reason = runtime_reason(problem)
    if limit is not None and (full := memory_problem(limit, reason)):
        if isinstance(problem, LoadFailed):  # of a session that was to be made anew, which says it by itself
            full = reason
        return BeyondDeviceLimit(full) if limit.is_exceeded(reason) else DeviceFull(full)
    return InvalidRequest(reason) if isinstance(problem, native.InvalidArgument) else RunFailed(reason)


def device_error(cuda: Cuda, key: str, limit: DeviceLimit, problem: Exception) -> ApplianceError:
    """As ``run_error``, of a run on a device. One that is lost ends the process; one that is full is left alone by
    captures for a moment."""
    end_if_lost(cuda, key, problem)
    error = run_error(problem, limit)
    if isinstance(error, DeviceFull):
        ran_short(cuda)
    return error


class _Bound(NamedTuple):
    """A binding of known addresses, what its run will have produced, how many bytes that takes."""

    binding: Any
    produced: Produced
    needed: int


class _Session:
    """What both kinds of session have in common."""

    measurable = True
    note = ""
    enter: Callable[[], object] = bool
    """What a thread does before it runs there for the first time, where that is on a device."""
    told: Callable[[Exception], ApplianceError] = staticmethod(run_error)
    """What becomes of a run that failed."""

    def __init__(
        self, session: Any, inputs: tuple[Port, ...], outputs: tuple[Port, ...], weights: MappedWeights | None
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.weights = weights
        self._session = session
        self._run_options = onnxruntime.RunOptions()
        """As it would make them for each run that brings none, which costs a small model a quarter of its run."""

    def memory(self) -> int:
        """Unknown: a session on the CPU is part of the process's memory."""
        return 0

    def close(self) -> None:
        """Drop the session, then the file of its weights."""
        with suppress(OSError):  # a context that is lost; what is given back is gone with it
            self.enter()
        with whole_device():
            self._session = None
        if self.weights is not None:
            self.weights.close()


class BoundSession(_Session):
    """A session whose inputs have fixed-size elements: they, and outputs where possible, are bound by address."""

    def __init__(
        self,
        session: Any,
        version: ModelVersion,
        inputs: tuple[Port, ...],
        outputs: tuple[Port, ...],
        weights: MappedWeights | None,
    ) -> None:
        super().__init__(session, inputs, outputs, weights)
        self._inputs = tuple((spec.name, BY_DATATYPE[spec.datatype].number) for spec in version.inputs)
        self._outputs = tuple((spec.name, BY_DATATYPE[spec.datatype]) for spec in version.outputs)
        self._cpu = native.OrtDevice(native.OrtDevice.cpu(), native.OrtDevice.default_memory(), 0)
        self._bound: dict[object, _Bound] = {}
        self._known: dict[object, Produced] = {}
        self._in_place = all(spec.datatype is not Datatype.BYTES for spec in version.outputs)

    def run(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Produced:
        """In place when this run's output shapes are known and fit, else in memory of the runtime's own."""
        self.enter()
        key = (source.address, feeds, wanted, place.region.address + place.offset)
        bound = self._bound.get(key)
        if bound is not None and bound.needed <= place.capacity:
            try:
                self._session.run_with_iobinding(bound.binding, self._run_options)
            except Exception:  # noqa: BLE001 - the run elsewhere tells what it was
                return self._run_unbound(source, feeds, wanted)
            return bound.produced
        known = self._known.get(shapes_key(feeds, wanted)) if self._in_place else None
        if known is None or needed(known.sizes) > place.capacity:
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

    def close(self) -> None:
        """Drop the bindings, then the session, then the file of its weights."""
        self._bound.clear()
        super().close()

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
        return _Bound(binding, known, needed(known.sizes))

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
            raise self.told(problem) from problem
        if len(self._known) >= BINDINGS_MAX:
            self._known.clear()
        self._known[shapes_key(feeds, wanted)] = Produced(produced.shapes, produced.sizes, None)
        return produced

    def _collect(self, values: Sequence[Any], wanted: tuple[int, ...]) -> Produced:
        shapes = tuple(tuple(value.shape()) for value in values)
        parts = tuple(
            bytes_of(value, self._outputs[index][1].datatype, shape)
            for index, value, shape in zip(wanted, values, shapes, strict=True)
        )
        return Produced(shapes, tuple(map(len, parts)), parts, (values,))


def bytes_of(value: Any, datatype: Datatype, shape: tuple[int, ...]) -> memoryview:
    """Raw wire bytes of a tensor, a view of the runtime's memory but for strings."""
    if datatype is Datatype.BYTES:
        return memoryview(encode_strings(value.numpy()))
    nbytes = element_count(shape) * datatype.size
    if nbytes == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * nbytes).from_address(value.data_ptr())).cast("B")


def needed(sizes: Sequence[int]) -> int:
    return sum(map(aligned, sizes))


def shapes_key(feeds: tuple[Feed | None, ...], wanted: tuple[int, ...]) -> object:
    return (tuple(None if feed is None else feed.shape for feed in feeds), wanted)


class TextSession(_Session):
    """A session with BYTES inputs, which ONNX Runtime takes from numpy arrays only."""

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
        super().__init__(session, inputs, outputs, weights)
        self._inputs = tuple((spec.name, BY_DATATYPE[spec.datatype]) for spec in version.inputs)
        self._outputs = tuple(spec.name for spec in version.outputs)

    def run(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Produced:
        """From arrays to arrays; never in place."""
        self.enter()
        arrays = {
            name: _array(name, element, source, feed)
            for (name, element), feed in zip(self._inputs, feeds, strict=True)
            if feed is not None
        }
        try:
            results = self._session.run([self._outputs[index] for index in wanted], arrays, self._run_options)
        except Exception as problem:
            raise self.told(problem) from problem
        parts = tuple(memoryview(_raw(result)) for result in results)
        return Produced(tuple(result.shape for result in results), tuple(map(len, parts)), parts)

    def prepared(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Callable[[], None] | None:
        """None: arrays of strings are made anew for every run."""
        return None


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
