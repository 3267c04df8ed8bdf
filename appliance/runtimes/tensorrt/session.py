"""Run an engine: a context for each profile, and memory for the largest request that any of them takes.

All memory of tensors is taken when the session is made. Copies go as ``device_copies`` says, on the stream on which the
engine runs, so that a run is a copy in, the engine, a copy out and one wait. Batches are filled up to one of a few
sizes. A request outside of all profiles is refused with their limits.

Shapes that come again are captured as a CUDA graph, by a context of their own: TensorRT forbids to change one from
which a graph was captured. All contexts compute in the same memory, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from appliance.devices.cuda import Cuda, CudaFailed
from appliance.domain.errors import ApplianceError, InvalidRequest, LoadFailed, RunFailed
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import FREE, Datatype, element_count
from appliance.runtimes.buckets import bucket, cut, rows_of
from appliance.runtimes.device_copies import DeviceCopies, layout
from appliance.runtimes.device_graphs import (
    CAPTURE_AFTER,
    GRAPHS_MAX,
    SPOILT,
    alike,
    tell_without_graphs,
)
from appliance.runtimes.lost_device import end_if_lost
from appliance.runtimes.onnx_elements import BY_DATATYPE
from appliance.runtimes.runtime import Feed, Place, Port, Produced, Region
from appliance.runtimes.tensorrt.blocks import Block, close_all
from appliance.runtimes.tensorrt.profiles import Profile, Shape, first_that_holds

SETTINGS_MAX: Final = 64
"""Shapes that are known, with what they need."""
PLANS_MAX: Final = 256
"""Requests that are known by their shapes and the outputs that they want."""


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
    def context(self, profile: int, stream: int, scratch: int, nbytes: int) -> Context: ...
    def context_bytes(self, profile: int) -> int: ...


@dataclass(slots=True, eq=False)
class _Setting:
    """What a context is told before it runs these shapes: ``inputs`` by name, and where all tensors lie. ``produced``
    are all outputs, of ``out_bytes`` in all. ``graph`` is that of the run, 0: none, captured from ``context``, which
    has to stay as it is."""

    profile: int
    inputs: Mapping[str, Shape]
    addresses: Mapping[str, int]
    produced: Produced
    out_bytes: int
    runs: int = 0
    graph: int = 0
    context: Context | None = None


class _Plan(NamedTuple):
    """A request: of ``rows`` rows in a batch of ``size``, 0 of each where it is taken as it is. Its inputs go to
    ``offsets`` of their block; of its outputs at ``addresses`` ``produced`` is wanted."""

    setting: _Setting
    rows: int
    size: int
    offsets: tuple[int, ...]
    addresses: tuple[int, ...]
    produced: Produced


class EngineSession:
    """A loaded engine. Closes whatever came before."""

    measurable = True
    weights = None

    def __init__(
        self, engine: Engine, engine_bytes: int, version: ModelVersion, cuda: Cuda, *, graphs: bool = True
    ) -> None:
        """Take all memory that runs need. Raises LoadFailed."""
        self.inputs, self.outputs = _ports(engine, is_input=True), _ports(engine, is_input=False)
        self._version = version
        self._cuda = cuda
        self._engine = engine
        self._engine_bytes = engine_bytes
        try:
            self._copies = DeviceCopies(cuda)
        except CudaFailed as problem:
            raise LoadFailed(f"{version.key}: its engine cannot be made ready: {problem}") from problem
        self._blocks: list[Block] = []
        self._contexts: list[Context] = []
        self._set: dict[int, _Setting] = {}
        """What the context of a profile was told last."""
        self._settings: dict[object, _Setting] = {}
        self._plans: dict[object, _Plan] = {}
        self._captured: list[_Setting] = []
        self._graphs = graphs
        self._batch_max = 0 if version.batching is None else version.max_batch_size
        """What batches are filled up to at most; 0: they are not, as in ``onnx_cuda``."""
        try:
            self._take_memory()
        except Exception as problem:
            self.close()
            raise LoadFailed(f"{version.key}: its engine cannot be made ready: {problem}") from problem

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The sizes that batches are filled up to."""
        return tuple(sorted({bucket(rows, self._batch_max) for rows in range(1, self._batch_max + 1)}))

    def pin(self, nbytes: int) -> Region:
        """Memory that the device copies from and to by itself. Raises RunFailed."""
        return self._copies.pin(nbytes)

    def run(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Produced:
        """In place where the outputs fit, else in pinned memory until the next run."""
        self._enter()
        key = _key(feeds, wanted)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plan(feeds, wanted)
            if len(self._plans) >= PLANS_MAX:
                self._plans.clear()
            self._plans[key] = plan
        return self._go(plan, source, feeds, place)

    def prepared(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Callable[[], None] | None:
        """The plan that ``run`` has kept: shapes of outputs follow from those of the inputs."""
        plan = self._plans.get(_key(feeds, wanted))
        if plan is None or layout(plan.produced.sizes)[1] > place.capacity:
            return None
        return partial(self._again, plan, source, feeds, place)

    def memory(self) -> int:
        """The engine, what its contexts compute in, and the tensors."""
        return self._engine_bytes + sum(block.nbytes for block in self._blocks)

    def close(self) -> None:
        """Wait for what may still run, then give back graphs, contexts, memory and engine, in this order."""
        self._settle()
        self._drop_graphs()
        self._plans.clear()
        self._settings.clear()
        self._set.clear()
        self._contexts.clear()
        close_all(self._blocks)
        self._blocks.clear()
        self._copies.close()
        del self._engine

    # --- memory

    def _take_memory(self) -> None:
        """A context for each profile, and for each tensor as much as its largest shape in any of them takes."""
        numbers = range(len(self._engine.profiles))
        self._scratch = self._block({"": max(map(self._engine.context_bytes, numbers))})
        self._contexts += map(self._context, numbers)
        spec = {each.name: place for place, each in enumerate(self._version.inputs)}
        inputs = [tensor for tensor in self._engine.tensors if tensor.is_input]
        inputs.sort(key=lambda tensor: spec.get(tensor.name, len(spec)))  # as they lie in requests
        most = [
            {name: limits.most for name, limits in profile.inputs.items()}
            for profile in self._engine.profiles
        ]
        self._in = self._block(
            {each.name: max(_nbytes(each.datatype, shapes[each.name]) for shapes in most) for each in inputs}
        )
        largest = [self._output_sizes(number, most[number]) for number in numbers]
        self._out = self._block({name: max(sizes[name] for sizes in largest) for name in largest[0]})
        for block in (self._in, self._out):  # which takes the pinned memory, too, that fills up and fetches
            self._copies.fill(block.address, block.nbytes, 0)
        self._cuda.finish(self._copies.stream)

    def _block(self, largest: Mapping[str, int]) -> Block:
        self._blocks.append(Block(self._cuda, largest))
        return self._blocks[-1]

    def _context(self, profile: int) -> Context:
        return self._engine.context(profile, self._copies.stream, self._scratch.address, self._scratch.nbytes)

    def _output_shapes(self, number: int, inputs: Mapping[str, Shape]) -> dict[str, Shape]:
        """The shapes of all outputs. Leaves the context with shapes that it has no addresses for."""
        self._set.pop(number, None)
        context = self._contexts[number]
        for name, shape in inputs.items():
            context.set_input_shape(name, shape)
        found = {port.name: context.output_shape(port.name) for port in self.outputs}
        for name, shape in found.items():
            if FREE in shape:
                raise RunFailed(
                    f"the shape of output '{name}' depends on values, which engines are not run with here; the model "
                    f"stays with ONNX Runtime"
                )
        return found

    def _output_sizes(self, number: int, inputs: Mapping[str, Shape]) -> dict[str, int]:
        shapes = self._output_shapes(number, inputs)
        return {port.name: _nbytes(port.datatype, shapes[port.name]) for port in self.outputs}

    # --- what a request needs

    def _plan(self, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], *, fill: bool = True) -> _Plan:
        """What a run does, in a batch that is filled up if it may be. Raises InvalidRequest where no profile holds its
        shapes."""
        given = {
            spec.name: feed
            for spec, feed in zip(self._version.inputs, feeds, strict=True)
            if feed is not None
        }
        rows = rows_of(feeds) if fill and self._batch_max else 0
        size = bucket(rows, self._batch_max) if rows else 0
        shapes = {
            name: (size, *feed.shape[1:]) if size > rows else feed.shape for name, feed in given.items()
        }
        setting = self._setting(shapes, {name: feed.shape for name, feed in given.items()})
        whole = setting.produced
        names = [port.name for port in self.outputs]
        at = [names.index(self._version.outputs[index].name) for index in wanted]
        produced = Produced(
            tuple(whole.shapes[each] for each in at), tuple(whole.sizes[each] for each in at), None
        )
        if size > rows and any(shape[:1] != (size,) for shape in produced.shapes):
            return self._plan(feeds, wanted, fill=False)  # some output has no row for each row
        return _Plan(
            setting,
            rows,
            size,
            tuple(setting.addresses[name] - self._in.address for name in given),
            tuple(setting.addresses[names[each]] for each in at),
            cut(produced, size, rows) if size > rows else produced,
        )

    def _setting(self, shapes: Mapping[str, Shape], asked: Mapping[str, Shape]) -> _Setting:
        """Of a batch with ``shapes``, for one that was ``asked`` for."""
        key = tuple(shapes.items())
        if (known := self._settings.get(key)) is not None:
            return known
        number = first_that_holds(self._engine.profiles, shapes)
        if number is None or len(shapes) < len(self.inputs):
            raise InvalidRequest(
                f"the engine of {self._version.key} takes {self._engine.profiles[-1].text}, not "
                + ", ".join(f"'{name}' {list(shape)}" for name, shape in asked.items())
            )
        found = self._output_shapes(number, shapes)
        types = {port.name: port.datatype for port in (*self.inputs, *self.outputs)}
        sizes = {name: _nbytes(types[name], shape) for name, shape in found.items()}
        inside = self._in.lay({name: _nbytes(types[name], shape) for name, shape in shapes.items()})
        outside = self._out.lay(sizes)
        addresses = {name: self._in.address + offset for name, offset in inside.offsets.items()}
        addresses |= {name: self._out.address + offset for name, offset in outside.offsets.items()}
        produced = Produced(tuple(found.values()), tuple(sizes.values()), None)
        if len(self._settings) >= SETTINGS_MAX:
            self._forget_one()
        self._settings[key] = _Setting(number, dict(shapes), addresses, produced, outside.nbytes)
        return self._settings[key]

    def _forget_one(self) -> None:
        """Make room for other shapes: of GRAPHS_MAX settings at most is there a graph."""
        self._settings.pop(next(key for key, each in self._settings.items() if not each.graph))
        self._plans.clear()

    # --- a run

    def _enter(self) -> None:
        """Have this thread use the device."""
        try:
            self._cuda.enter()
        except CudaFailed as problem:
            raise RunFailed(f"the device failed this run: {problem}") from problem

    def _again(self, plan: _Plan, source: Region, feeds: tuple[Feed | None, ...], place: Place) -> None:
        self._enter()
        self._go(plan, source, feeds, place)

    def _go(self, plan: _Plan, source: Region, feeds: tuple[Feed | None, ...], place: Place) -> Produced:
        """Do it, and wait for its end; what failed on the way has ended, too."""
        try:
            return self._do(plan, source, feeds, place)
        except Exception as problem:
            self._settle()
            end_if_lost(self._cuda, self._version.key, problem)
            if isinstance(problem, ApplianceError):
                raise
            raise RunFailed(f"the device failed this run: {problem}") from problem

    def _do(self, plan: _Plan, source: Region, feeds: tuple[Feed | None, ...], place: Place) -> Produced:
        setting = plan.setting
        self._clear(plan, feeds)
        self._copies.bring(source, feeds, self._in.address, plan.offsets)
        if setting.graph:
            self._cuda.launch(setting.graph, self._copies.stream)
            return self._copies.fetch(plan.addresses, plan.produced, place)
        context = self._contexts[setting.profile]
        if self._set.get(setting.profile) is not setting:
            self._set.pop(setting.profile, None)
            _tell(context, setting)
            self._set[setting.profile] = setting
        context.run(self._copies.stream)
        produced = self._copies.fetch(plan.addresses, plan.produced, place)
        setting.runs += 1
        if self._graphs and setting.runs >= CAPTURE_AFTER and len(self._captured) < GRAPHS_MAX:
            produced = _kept(produced)
            self._capture(setting)
        return produced

    def _clear(self, plan: _Plan, feeds: tuple[Feed | None, ...]) -> None:
        """Have zeros in the rows that fill a batch up, whatever ran in this memory before."""
        if plan.rows < plan.size:
            given = (feed for feed in feeds if feed is not None)
            for feed, offset in zip(given, plan.offsets, strict=True):
                row = feed.nbytes // plan.rows
                start = self._in.address + offset + feed.nbytes
                self._copies.fill(start, (plan.size - plan.rows) * row, 0)

    # --- graphs

    def _capture(self, setting: _Setting) -> None:
        """Capture the run of these shapes, whose inputs lie on the device, and hold what a replay gives against what
        the run before it left there."""
        graph = 0
        try:
            given = self._answers(setting)
            context = self._context(setting.profile)
            _tell(context, setting)
            context.run(self._copies.stream)  # the first run of a context does what cannot be captured
            self._cuda.finish(self._copies.stream)
            graph = self._cuda.capture(self._copies.stream, partial(context.run, self._copies.stream))
            self._copies.fill(self._out.address, setting.out_bytes, SPOILT)
            self._cuda.launch(graph, self._copies.stream)
            replayed = self._answers(setting)
        except Exception as problem:  # noqa: BLE001 - whatever it is, it goes without
            self._settle()
            end_if_lost(self._cuda, self._version.key, problem)
            if graph:
                self._cuda.end_graph(graph)
            self._without_graphs(str(problem))
            self._copies.renew()  # who knows what the capture has left in the other one
            return
        elements = [BY_DATATYPE[port.datatype] for port in self.outputs]
        if alike(given, [memoryview(each) for each in replayed], elements):
            setting.graph, setting.context = graph, context
            self._captured.append(setting)
        else:
            self._cuda.end_graph(graph)
            self._without_graphs("a graph gave another answer than the run before it")

    def _answers(self, setting: _Setting) -> list[bytes]:
        """All outputs as they lie on the device, once the stream is done."""
        addresses = [setting.addresses[port.name] for port in self.outputs]
        fetched = self._copies.fetch(addresses, setting.produced, None)
        return [bytes(part) for part in fetched.parts or ()]

    def _without_graphs(self, reason: str) -> None:
        self._graphs = False
        self._drop_graphs()
        tell_without_graphs(self._version.key, reason)

    def _drop_graphs(self) -> None:
        for setting in self._captured:
            self._cuda.end_graph(setting.graph)
            setting.graph, setting.context = 0, None
        self._captured.clear()

    def _settle(self) -> None:
        """Nothing writes into memory any more that the next run uses; a device that failed has nothing more to wait
        for."""
        with suppress(Exception):
            self._cuda.finish(self._copies.stream)


def _tell(context: Context, setting: _Setting) -> None:
    for name, shape in setting.inputs.items():
        context.set_input_shape(name, shape)
    for name, address in setting.addresses.items():
        context.set_address(name, address)


def _kept(produced: Produced) -> Produced:
    """The outputs where later copies leave them."""
    if produced.parts is None:
        return produced
    return produced._replace(parts=tuple(memoryview(bytes(part)) for part in produced.parts), owner=None)


def _key(feeds: tuple[Feed | None, ...], wanted: tuple[int, ...]) -> object:
    return (tuple(feed and feed.shape for feed in feeds), wanted)


def _nbytes(datatype: Datatype, shape: Shape) -> int:
    return element_count(shape) * datatype.size


def _ports(engine: Engine, *, is_input: bool) -> tuple[Port, ...]:
    return tuple(
        Port(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        for tensor in engine.tensors
        if tensor.is_input is is_input
    )
