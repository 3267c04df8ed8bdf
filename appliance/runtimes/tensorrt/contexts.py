"""The execution contexts of one engine: one for each profile, which is told other shapes as they come, and those from
which graphs were captured. All compute in the same memory of the device, and all tensors lie in two blocks of it, taken
for the largest shapes that any profile has: so all runs are one after the other, on one stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from appliance.devices.cuda import Cuda
from appliance.domain.errors import InvalidRequest, LoadFailed, RunFailed
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import FREE, Datatype, element_count
from appliance.runtimes.runtime import Port, Produced
from appliance.runtimes.tensorrt.blocks import Block, lay
from appliance.runtimes.tensorrt.profiles import Profile, Shape, first_that_holds

SETTINGS_MAX: Final = 64
"""Shapes that are known, with what they need."""


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
class Setting:
    """What a context is told before it runs these shapes: ``inputs`` by name, and where all tensors lie. ``produced``
    are all outputs, which take ``out_bytes`` of their block. ``graph`` is that of the run, 0: none, captured from
    ``context``, which has to stay as it is; ``runs`` counts those without."""

    profile: int
    inputs: Mapping[str, Shape]
    addresses: Mapping[str, int]
    produced: Produced
    out_bytes: int
    runs: int = 0
    graph: int = 0
    context: Context | None = None


class Contexts:
    """Of ``engine``, on a device, of which they may take ``room_bytes`` (0: what there is); ``close`` ends what was
    made, also where making failed."""

    def __init__(self, engine: Engine, version: ModelVersion, cuda: Cuda, room_bytes: int = 0) -> None:
        self.inputs, self.outputs = _ports(engine, is_input=True), _ports(engine, is_input=False)
        self._engine = engine
        self._version = version
        self._cuda = cuda
        self._room_bytes = room_bytes
        self._blocks: list[Block] = []
        self._contexts: list[Context] = []
        self._told: dict[int, Setting] = {}
        """What the context of a profile was told last."""
        self._settings: dict[object, Setting] = {}

    @property
    def nbytes(self) -> int:
        """Of the device, for what contexts compute in and for tensors."""
        return sum(block.nbytes for block in self._blocks)

    @property
    def limits(self) -> str:
        """The shapes that the widest profile holds, for people."""
        return self._engine.profiles[-1].text

    def holds(self, shapes: Mapping[str, Shape]) -> bool:
        """Whether there is a profile for a request with ``shapes``."""
        whole = len(shapes) == len(self.inputs)
        return whole and first_that_holds(self._engine.profiles, shapes) is not None

    @property
    def block_in(self) -> Block:
        """Where inputs lie."""
        return self._blocks[1]

    @property
    def block_out(self) -> Block:
        """Where outputs lie."""
        return self._blocks[2]

    def open(self, stream: int) -> None:
        """Make one for each profile, and take the memory of its largest shapes. Raises LoadFailed, RunFailed and
        CudaFailed."""
        numbers = range(len(self._engine.profiles))
        self._take({"": max(map(self._engine.context_bytes, numbers))})
        for number in numbers:
            self._contexts.append(self.another(number, stream))
        position = {spec.name: place for place, spec in enumerate(self._version.inputs)}
        # As in requests.
        inputs = sorted(self.inputs, key=lambda port: position.get(port.name, len(position)))
        most = [
            {name: limits.most for name, limits in profile.inputs.items()}
            for profile in self._engine.profiles
        ]
        self._take({port.name: max(nbytes_of(port, shapes[port.name]) for shapes in most) for port in inputs})
        largest = [self._output_shapes(number, most[number]) for number in numbers]
        self._take(
            {
                port.name: max(nbytes_of(port, shapes[port.name]) for shapes in largest)
                for port in self.outputs
            }
        )

    def another(self, profile: int, stream: int) -> Context:
        """A context of its own, for whom no other one may change it. Raises LoadFailed."""
        return self._engine.context(profile, stream, self._blocks[0].address, self._blocks[0].nbytes)

    def setting(self, shapes: Mapping[str, Shape], asked: Mapping[str, Shape]) -> Setting:
        """For a batch with ``shapes``, in whose place other ones were ``asked`` for. Raises InvalidRequest where no
        profile holds it."""
        key = tuple(shapes.items())
        if (known := self._settings.get(key)) is not None:
            return known
        number = first_that_holds(self._engine.profiles, shapes)
        if number is None or len(shapes) < len(self.inputs):
            raise InvalidRequest(
                f"the engine of {self._version.key} takes {self.limits}, not "
                + ", ".join(f"'{name}' {list(shape)}" for name, shape in asked.items())
            )
        found = self._output_shapes(number, shapes)
        sizes = {port.name: nbytes_of(port, found[port.name]) for port in self.outputs}
        ports = {port.name: port for port in self.inputs}
        inside = self.block_in.lay({name: nbytes_of(ports[name], shape) for name, shape in shapes.items()})
        outside = self.block_out.lay(sizes)
        addresses = {name: self.block_in.address + offset for name, offset in inside.offsets.items()}
        addresses |= {name: self.block_out.address + offset for name, offset in outside.offsets.items()}
        if len(self._settings) >= SETTINGS_MAX:
            self._settings.pop(next(key for key, each in self._settings.items() if not each.graph))
        produced = Produced(tuple(found.values()), tuple(sizes.values()), None)
        self._settings[key] = Setting(number, dict(shapes), addresses, produced, outside.nbytes)
        return self._settings[key]

    def run(self, setting: Setting, stream: int) -> None:
        """Put a run into the stream. Raises RunFailed."""
        context = self._contexts[setting.profile]
        if self._told.get(setting.profile) is not setting:
            self._told.pop(setting.profile, None)
            tell(context, setting)
            self._told[setting.profile] = setting
        context.run(stream)

    def close(self) -> None:
        """Give contexts, memory and engine back, in this order. Nothing of it may run any more."""
        self._settings.clear()
        self._told.clear()
        self._contexts.clear()
        for block in self._blocks:
            block.close()
        self._blocks.clear()
        del self._engine

    def _take(self, largest: Mapping[str, int]) -> None:
        nbytes = self.nbytes + lay(largest).nbytes
        if 0 < self._room_bytes < nbytes:  # before it is taken from what serves there
            raise LoadFailed(
                f"its engine takes at least {nbytes} bytes of its GPU for the largest shapes that it was built for, "
                f"more than the {self._room_bytes} that other versions left"
            )
        self._blocks.append(Block(self._cuda, largest))

    def _output_shapes(self, number: int, inputs: Mapping[str, Shape]) -> dict[str, Shape]:
        """The shapes of all outputs. Leaves the context with shapes for which it has no addresses."""
        self._told.pop(number, None)
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


def tell(context: Context, setting: Setting) -> None:
    """Have the next run of a context be of these shapes. Raises RunFailed."""
    for name, shape in setting.inputs.items():
        context.set_input_shape(name, shape)
    for name, address in setting.addresses.items():
        context.set_address(name, address)


def nbytes_of(port: Port, shape: Shape) -> int:
    """What a tensor takes."""
    return element_count(shape) * port.datatype.size


def _ports(engine: Engine, *, is_input: bool) -> tuple[Port, ...]:
    return tuple(
        Port(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        for tensor in engine.tensors
        if tensor.is_input is is_input
    )
