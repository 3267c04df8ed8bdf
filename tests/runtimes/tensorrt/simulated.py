"""A simulated TensorRT and a simulated device, for where there is neither: nothing here is NVIDIA's.

An engine is the graph with its profiles in front, and where its weights lie, which no real one needs to know; ONNX
Runtime computes. The device's memory is this process's, and what is put into a stream is not done before somebody waits
for it, so that a session that forgets to gets old bytes.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnxruntime

from appliance.domain.device import ON_CPU
from appliance.domain.errors import LoadFailed, RunFailed
from appliance.domain.model import ModelVersion
from appliance.runtimes.onnx import OnnxRuntime
from appliance.runtimes.onnx_elements import ELEMENT_TYPES
from appliance.runtimes.runtime import RuntimeSettings, Session
from appliance.runtimes.tensorrt.profiles import Limits, Profile, Shape
from appliance.runtimes.tensorrt.runtime import TensorrtRuntime
from appliance.runtimes.tensorrt.tie import Driver
from appliance.runtimes.tensorrt.vendor import Built, EngineTensor

DRIVER = Driver(release="580.1", devices=("Simulated H200 GPU-1",))
GIBIBYTE = 1 << 30


class HostPinned:
    def __init__(self, nbytes: int) -> None:
        self._memory = (ctypes.c_ubyte * nbytes)()
        self.view = memoryview(self._memory).cast("B")
        self.address = ctypes.addressof(self._memory)


class HostDevice:
    """A simulated device of ``free`` bytes; ``fails`` is what copies and runs raise."""

    def __init__(self, free: int = GIBIBYTE) -> None:
        self.taken: dict[int, Any] = {}
        self.left = free
        self.fails: Exception | None = None
        self.waits = 0
        self._queued: list[Callable[[], object]] = []

    def allocate(self, nbytes: int) -> int:
        if nbytes > self.left:
            raise OSError("out of memory")
        memory = (ctypes.c_ubyte * nbytes)()
        self.left -= nbytes
        self.taken[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def free(self, address: int) -> None:
        self.left += len(self.taken.pop(address))

    def pin(self, nbytes: int) -> HostPinned:
        return HostPinned(nbytes)

    def put(self, do: Callable[[], object]) -> None:
        """Into the stream."""
        self._queued.append(do)

    def copy_in(self, device_address: int, host_address: int, nbytes: int, stream: int) -> None:
        self._copy(device_address, host_address, nbytes, device_address)

    def copy_out(self, host_address: int, device_address: int, nbytes: int, stream: int) -> None:
        self._copy(host_address, device_address, nbytes, device_address)

    def _copy(self, to: int, start: int, nbytes: int, there: int) -> None:
        if self.fails is not None:
            raise self.fails
        assert nbytes <= len(self.taken[there]), "beyond what was taken"
        self.put(lambda: ctypes.memmove(to, start, nbytes))

    def stream(self) -> int:
        return 7

    def finish(self, stream: int) -> None:
        assert stream == 7
        self.waits += 1
        queued, self._queued = self._queued, []
        for do in queued:
            do()

    def memory(self) -> tuple[int, int]:
        return self.left, GIBIBYTE


@dataclass
class Asked:
    """What a builder was asked for."""

    profiles: tuple[Profile, ...]
    workspace_bytes: int
    cache: bytes


class SimulatedLibrary:
    """``refuses`` is the text of what a build fails with."""

    def __init__(
        self, device: HostDevice, release: str = "TensorRT 11.4 (simulated)", refuses: str = ""
    ) -> None:
        self.release = release
        self.device = device
        self.refuses = refuses
        self.asked: list[Asked] = []
        self.opened = 0

    def build(
        self,
        graph: bytes,
        path: str,
        profiles: tuple[Profile, ...],
        *,
        workspace_bytes: int,
        cache: bytes,
        progress: Callable[[int, int], None],
    ) -> Built:
        if self.refuses:
            raise LoadFailed(self.refuses)
        self.asked.append(Asked(profiles, workspace_bytes, cache))
        for done in range(0, 1001, 10):
            progress(done, 1000)
        limits = [{name: list(each) for name, each in profile.inputs.items()} for profile in profiles]
        header = {"profiles": limits, "weights": os.path.dirname(path)}
        return Built(json.dumps(header).encode() + b"\n" + graph, b"learned")

    def open(self, engine: bytes) -> SimulatedEngine:
        self.opened += 1
        line, _, graph = engine.partition(b"\n")
        header = json.loads(line)
        profiles = tuple(
            Profile(inputs={name: Limits(*map(tuple, each)) for name, each in inputs.items()})
            for inputs in header["profiles"]
        )
        return SimulatedEngine(profiles, graph, header["weights"], self.device)


class SimulatedEngine:
    def __init__(self, profiles: tuple[Profile, ...], graph: bytes, weights: str, device: HostDevice) -> None:
        self.profiles = profiles
        self.device = device
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", weights)
        self.session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        self.types = {
            each.name: ELEMENT_TYPES[each.type]
            for each in (*self.session.get_inputs(), *self.session.get_outputs())
        }
        self.tensors = tuple(
            EngineTensor(
                each.name,
                is_input,
                self.types[each.name].datatype,
                tuple(size if isinstance(size, int) else -1 for size in each.shape),
            )
            for is_input, metas in ((True, self.session.get_inputs()), (False, self.session.get_outputs()))
            for each in metas
        )

    def context(self, profile: int, stream: int) -> SimulatedContext:
        return SimulatedContext(self, self.profiles[profile])

    def context_bytes(self, profile: int) -> int:
        return 1000


class SimulatedContext:
    def __init__(self, engine: SimulatedEngine, profile: Profile) -> None:
        self._engine = engine
        self._profile = profile
        self._shapes: dict[str, Shape] = {}
        self._addresses: dict[str, int] = {}

    def set_input_shape(self, name: str, shape: Shape) -> None:
        if not self._profile.inputs[name].holds(shape):
            raise RunFailed(f"the shape {list(shape)} of '{name}' is outside of the profile")
        self._shapes[name] = shape

    def output_shape(self, name: str) -> Shape:
        zeros = {
            each: np.zeros(shape, self._engine.types[each].numpy) for each, shape in self._shapes.items()
        }
        return tuple(self._engine.session.run([name], zeros)[0].shape)

    def set_address(self, name: str, address: int) -> None:
        self._addresses[name] = address

    def run(self, stream: int) -> None:
        shapes = dict(self._shapes)
        self._engine.device.put(lambda: self._compute(shapes))

    def _compute(self, shapes: Mapping[str, Shape]) -> None:
        feeds = {name: self._array(name, shape) for name, shape in shapes.items()}
        names = [each.name for each in self._engine.tensors if not each.is_input]
        for name, value in zip(names, self._engine.session.run(names, feeds), strict=True):
            raw = value.tobytes()
            ctypes.memmove(self._addresses[name], raw, len(raw))

    def _array(self, name: str, shape: Shape) -> Any:
        element = self._engine.types[name]
        nbytes = int(np.prod(shape)) * element.datatype.size
        raw = ctypes.string_at(self._addresses[name], nbytes)
        return np.frombuffer(raw, element.numpy).reshape(shape)


class SimulatedCuda:
    """The ``onnx`` runtime, where its CUDA session is simulated by one of the processor."""

    name = "onnx"

    def __init__(self) -> None:
        self._runtime = OnnxRuntime()
        self.loaded = 0

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        self.loaded += 1
        return self._runtime.load(replace(version, device=ON_CPU), settings)


class SimulatedTensorrt(TensorrtRuntime):
    """The runtime as workers have it, with everything of NVIDIA's simulated."""

    def __init__(self) -> None:
        device = HostDevice()
        super().__init__(
            lambda: SimulatedLibrary(device), lambda: DRIVER, lambda index: device, SimulatedCuda()
        )


class SimulatedRuntime(SimulatedTensorrt):
    """The same by an entry point."""

    name = "simulated_tensorrt"
