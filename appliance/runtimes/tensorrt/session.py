"""Run an engine: a context for each profile, and memory for the largest request that any of them takes.

All memory is taken when the session is made, so that a request takes none. Inputs go through pinned memory to the
device and outputs back the same way, in one stream. A request outside of all profiles is refused with their limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, Protocol

from appliance.domain.errors import ApplianceError, InvalidRequest, LoadFailed, RunFailed
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import FREE, Datatype, aligned, element_count
from appliance.runtimes.runtime import Feed, Place, Port, Produced, Region
from appliance.runtimes.tensorrt.device_memory import DeviceMemory, PinnedMemory
from appliance.runtimes.tensorrt.profiles import Profile, Shape, first_that_holds

PLANS_MAX: Final = 256
"""Runs that are known by their shapes and places."""


class Tensor(Protocol):
    """An input or output of an engine."""

    @property
    def name(self) -> str: ...
    @property
    def is_input(self) -> bool: ...
    @property
    def datatype(self) -> Datatype: ...
    @property
    def shape(self) -> Shape: ...


class Context(Protocol):
    """Runs shapes of one profile. All raise RunFailed."""

    def set_input_shape(self, name: str, shape: Shape) -> None: ...
    def output_shape(self, name: str) -> Shape: ...
    def set_address(self, name: str, address: int) -> None: ...
    def run(self, stream: int) -> None: ...


class Engine(Protocol):
    """An engine in the device's memory; see ``vendor``."""

    @property
    def tensors(self) -> tuple[Tensor, ...]: ...
    @property
    def profiles(self) -> tuple[Profile, ...]: ...
    def context(self, profile: int, stream: int) -> Context: ...
    def context_bytes(self, profile: int) -> int: ...


class _Buffer(NamedTuple):
    """Where a tensor lies: on the device, and from ``offset`` in pinned memory; ``nbytes`` at most."""

    device: int
    offset: int
    nbytes: int


class _Copy(NamedTuple):
    """Bytes of one tensor of one run: where in the source or the place, and where it lies between."""

    offset: int
    nbytes: int
    buffer: _Buffer


class _Plan(NamedTuple):
    """All that runs of these shapes at these places do, wherever the memory is."""

    profile: int
    shapes: Mapping[str, Shape]
    inputs: tuple[_Copy, ...]
    outputs: tuple[_Copy, ...]
    produced: Produced


class EngineSession:
    """A loaded engine. Closes whatever came before."""

    measurable = True
    weights = None

    def __init__(
        self, engine: Engine, engine_bytes: int, version: ModelVersion, device: DeviceMemory
    ) -> None:
        """Take all memory that runs need. Raises LoadFailed."""
        self.inputs, self.outputs = _ports(engine, is_input=True), _ports(engine, is_input=False)
        self._version = version
        self._device = device
        self._engine = engine
        self._stream = device.stream()
        self._contexts = [engine.context(number, self._stream) for number in range(len(engine.profiles))]
        self._shapes: list[Mapping[str, Shape]] = [{} for _ in self._contexts]
        """What the inputs of each context are set to."""
        self._buffers: dict[str, _Buffer] = {}
        self._pinned: PinnedMemory | None = None
        self._plans: dict[object, _Plan] = {}
        self._engine_bytes = engine_bytes + sum(map(engine.context_bytes, range(len(self._contexts))))
        try:
            self._take_memory()
        except Exception as problem:
            self.close()
            raise LoadFailed(f"{version.key}: its engine cannot be made ready: {problem}") from problem

    def run(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Produced:
        """In place where the outputs fit, else in pinned memory until the next run."""
        key = (feeds, wanted, place.offset, place.capacity)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plan(feeds, wanted, place)
            if len(self._plans) >= PLANS_MAX:
                self._plans.clear()
            self._plans[key] = plan
        self._go(plan, source, place)
        if plan.produced.parts is None:
            return plan.produced
        assert self._pinned is not None
        view = self._pinned.view
        parts = tuple(view[copy.buffer.offset : copy.buffer.offset + copy.nbytes] for copy in plan.outputs)
        return plan.produced._replace(parts=parts, owner=self._pinned)

    def prepared(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Callable[[], None] | None:
        """The plan that ``run`` has kept: shapes of outputs follow from those of the inputs."""
        plan = self._plans.get((feeds, wanted, place.offset, place.capacity))
        if plan is None or plan.produced.parts is not None:
            return None
        return partial(self._go, plan, source, place)

    def memory(self) -> int:
        """The engine, its contexts and the tensors."""
        return self._engine_bytes + sum(buffer.nbytes for buffer in self._buffers.values())

    def close(self) -> None:
        """Wait for what may still run, then give back contexts, memory and engine, in this order."""
        with suppress(Exception):  # a device that failed has nothing more to wait for
            self._device.finish(self._stream)
        self._plans.clear()
        self._contexts.clear()
        for buffer in self._buffers.values():
            with suppress(Exception):
                self._device.free(buffer.device)
        self._buffers.clear()
        self._pinned = None
        del self._engine

    # --- memory

    def _take_memory(self) -> None:
        """For each tensor as much as its largest shape in any profile takes, and tell the contexts where."""
        offset = 0
        for tensor in self._engine.tensors:
            nbytes = max(self._largest(tensor, number) for number in range(len(self._contexts)))
            self._buffers[tensor.name] = _Buffer(self._device.allocate(max(nbytes, 1)), offset, nbytes)
            offset += aligned(nbytes)
        self._pinned = self._device.pin(max(offset, 1))
        for context in self._contexts:
            for name, buffer in self._buffers.items():
                context.set_address(name, buffer.device)

    def _largest(self, tensor: Tensor, number: int) -> int:
        profile = self._engine.profiles[number]
        most = {name: limits.most for name, limits in profile.inputs.items()}
        shape = most[tensor.name] if tensor.is_input else self._output_shape(number, most, tensor.name)
        return element_count(shape) * tensor.datatype.size

    def _output_shape(self, number: int, inputs: Mapping[str, Shape], name: str) -> Shape:
        self._set_shapes(number, inputs)
        shape = self._contexts[number].output_shape(name)
        if FREE in shape:
            raise RunFailed(
                f"the shape of output '{name}' depends on values, which engines are not run with here; the model "
                f"stays with ONNX Runtime"
            )
        return shape

    def _set_shapes(self, number: int, inputs: Mapping[str, Shape]) -> None:
        known, self._shapes[number] = self._shapes[number], {}
        for name, shape in inputs.items():
            if known.get(name) != shape:
                self._contexts[number].set_input_shape(name, shape)
        self._shapes[number] = inputs

    # --- runs

    def _plan(self, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place) -> _Plan:
        """What a run does. Raises InvalidRequest where no profile holds its shapes."""
        given = [(spec.name, feed) for spec, feed in zip(self._version.inputs, feeds, strict=True) if feed]
        shapes = {name: feed.shape for name, feed in given}
        number = first_that_holds(self._engine.profiles, shapes)
        if number is None or len(shapes) < len(self.inputs):
            raise InvalidRequest(
                f"the engine of {self._version.key} takes {self._engine.profiles[-1].text}, not "
                + ", ".join(f"'{name}' {list(shape)}" for name, shape in shapes.items())
            )
        inputs = tuple(_Copy(feed.offset, feed.nbytes, self._room(name, feed.nbytes)) for name, feed in given)
        found, position, outputs = [], place.offset, []
        for index in wanted:
            spec = self._version.outputs[index]
            found.append(self._output_shape(number, shapes, spec.name))
            nbytes = element_count(found[-1]) * spec.datatype.size
            outputs.append(_Copy(position, nbytes, self._room(spec.name, nbytes)))
            position += aligned(nbytes)
        in_place = position - place.offset <= place.capacity
        sizes = tuple(copy.nbytes for copy in outputs)
        produced = Produced(tuple(found), sizes, None if in_place else ())
        return _Plan(number, shapes, inputs, tuple(outputs), produced)

    def _room(self, name: str, nbytes: int) -> _Buffer:
        """The memory of a tensor, which was taken for the largest inputs. Raises RunFailed where an output is larger
        for smaller ones."""
        buffer = self._buffers[name]
        if nbytes > buffer.nbytes:
            raise RunFailed(
                f"'{name}' takes {nbytes} bytes for these shapes, more than the {buffer.nbytes} for the largest ones; "
                f"the engine is not run with them"
            )
        return buffer

    def _go(self, plan: _Plan, source: Region, place: Place) -> None:
        """Do it, and wait for its end; what failed on the way has ended, too."""
        try:
            self._set_shapes(plan.profile, plan.shapes)
            self._send(plan, source)
        except ApplianceError:
            self._settle()
            raise
        except Exception as problem:
            self._settle()
            raise RunFailed(f"the device failed this run: {problem}") from problem
        if plan.produced.parts is None:
            assert self._pinned is not None
            for offset, nbytes, buffer in plan.outputs:
                answer = self._pinned.view[buffer.offset : buffer.offset + nbytes]
                place.region.view[offset : offset + nbytes] = answer

    def _send(self, plan: _Plan, source: Region) -> None:
        assert self._pinned is not None
        view, address = self._pinned.view, self._pinned.address
        for offset, nbytes, buffer in plan.inputs:
            view[buffer.offset : buffer.offset + nbytes] = source.view[offset : offset + nbytes]
            self._device.copy_in(buffer.device, address + buffer.offset, nbytes, self._stream)
        self._contexts[plan.profile].run(self._stream)
        for _, nbytes, buffer in plan.outputs:
            self._device.copy_out(address + buffer.offset, buffer.device, nbytes, self._stream)
        self._device.finish(self._stream)

    def _settle(self) -> None:
        """Nothing writes into memory any more that the next run uses."""
        with suppress(Exception):
            self._device.finish(self._stream)


def _ports(engine: Engine, *, is_input: bool) -> tuple[Port, ...]:
    return tuple(
        Port(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        for tensor in engine.tensors
        if tensor.is_input is is_input
    )
