"""A simulated TensorRT and a simulated device, for where there is neither: nothing here is NVIDIA's.

An engine is the graph with its profiles in front, and where its weights lie, which no real one needs to know; ONNX
Runtime computes. The device's memory is this process's, and what is put into a stream is not done before somebody waits
for it, so that a session that forgets to gets old bytes.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnxruntime

from appliance.devices.cuda import CudaFailed
from appliance.domain.device_wish import ON_CPU
from appliance.domain.errors import LoadFailed, RunFailed
from appliance.domain.model import ModelVersion
from appliance.runtimes.onnx import OnnxRuntime
from appliance.runtimes.onnx_elements import ELEMENT_TYPES
from appliance.runtimes.runtime import Feed, Place, Produced, Region, RuntimeSettings, Session
from appliance.runtimes.tensorrt.profiles import Limits, Profile, Shape
from appliance.runtimes.tensorrt.runtime import TensorrtRuntime
from appliance.runtimes.tensorrt.tie import Driver
from appliance.runtimes.tensorrt.vendor import Built, EngineTensor
from tests.devices.simulated_cuda import SimulatedCuda

DRIVER = Driver(release="580.1", devices=("Simulated H200 GPU-1",))
GIBIBYTE = 1 << 30
FULL_FOR = "full_for"


class HostDevice(SimulatedCuda):
    """A simulated device of ``free`` bytes whose streams do nothing before somebody waits for them; ``fails`` is what
    copies raise."""

    def __init__(self, free: int = GIBIBYTE) -> None:
        super().__init__()
        self.total = free
        self.fails: Exception | None = None
        self.waits = 0
        self._queued: list[Callable[[], object]] = []

    @property
    def left(self) -> int:
        return self.memory()[0]

    def copy_in(self, device: int, host: int, nbytes: int, stream: int) -> None:
        self._check_room(device, nbytes)
        super().copy_in(device, host, nbytes, stream)

    def copy_out(self, host: int, device: int, nbytes: int, stream: int) -> None:
        self._check_room(device, nbytes)
        super().copy_out(host, device, nbytes, stream)

    def _check_room(self, device: int, nbytes: int) -> None:
        held = ((start, start + len(memory)) for start, memory in self.held.items())
        assert any(start <= device and device + nbytes <= end for start, end in held), "beyond what was taken"

    def begin(self, do: Callable[[], object]) -> None:
        if self.fails is not None:
            raise self.fails
        self._queued.append(do)

    def happened(self, event: int) -> bool:
        super().happened(event)
        return not self._queued

    def await_event(self, event: int) -> None:
        super().happened(event)
        self._work_off()

    def finish(self, stream: int) -> None:
        super().finish(stream)
        self.waits += 1
        self._work_off()

    def _work_off(self) -> None:
        queued, self._queued = self._queued, []
        for do in queued:
            do()


@dataclass
class Asked:
    """What a builder was asked for."""

    profiles: tuple[Profile, ...]
    workspace_bytes: int
    cache: bytes
    streams: bool
    refits: bool


class SimulatedLibrary:
    """``refuses`` is the text of what a build fails with; runs of its engines take ``run_s`` longer."""

    def __init__(
        self,
        device: HostDevice,
        release: str = "TensorRT 11.4 (simulated)",
        refuses: str = "",
        run_s: float = 0.0,
    ) -> None:
        self.release = release
        self.run_s = run_s
        self.device = device
        self.refuses = refuses
        self.refuses_weights = ""
        self.refitted: list[str] = []
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
        streams: bool,
        refits: bool,
        progress: Callable[[int, int], None],
    ) -> Built:
        if self.refuses:
            raise LoadFailed(self.refuses)
        self.asked.append(Asked(profiles, workspace_bytes, cache, streams, refits))
        for done in range(0, 1001, 10):
            progress(done, 1000)
        limits = [{name: list(each) for name, each in profile.inputs.items()} for profile in profiles]
        header = {"profiles": limits, "weights": os.path.dirname(path), "streams": streams, "refits": refits}
        return Built(json.dumps(header).encode() + b"\n" + graph, b"learned")

    def refit(self, engine: bytes, graph: bytes, path: str) -> bytes:
        self.refitted.append(path)
        if self.refuses_weights:
            raise LoadFailed(self.refuses_weights)
        line, _, _ = engine.partition(b"\n")
        header = json.loads(line)
        assert header["refits"]
        return json.dumps({**header, "weights": os.path.dirname(path)}).encode() + b"\n" + graph

    def open(self, engine: bytes) -> SimulatedEngine:
        self.opened += 1
        line, _, graph = engine.partition(b"\n")
        header = json.loads(line)
        profiles = tuple(
            Profile(inputs={name: Limits(*map(tuple, each)) for name, each in inputs.items()})
            for inputs in header["profiles"]
        )
        opened = SimulatedEngine(profiles, graph, header["weights"], self.device)
        opened.streamable = len(graph) if header["streams"] else 0
        opened.run_s = self.run_s
        return opened


class SimulatedEngine:
    def __init__(self, profiles: tuple[Profile, ...], graph: bytes, weights: str, device: HostDevice) -> None:
        self.profiles = profiles
        self.device = device
        self.streamable = self.elsewhere = 0
        self.run_s = 0.0
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

    def context(self, profile: int, stream: int, scratch: int, nbytes: int) -> SimulatedContext:
        assert nbytes >= self.context_bytes(profile)
        assert scratch in self.device.held
        return SimulatedContext(self, self.profiles[profile])

    def limit_weights(self, most: int) -> int:
        self.elsewhere = max(self.streamable - most, 0)
        return self.elsewhere

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
        if self._engine.elsewhere and stream in self._engine.device.capturing:
            raise RunFailed(
                "TensorRT cannot run this: weights cannot be streamed while the stream is capturing"
            )
        told = (dict(self._shapes), dict(self._addresses))
        self._engine.device.put(stream, lambda: self._compute(*told, told))

    def _compute(self, shapes: Mapping[str, Shape], addresses: Mapping[str, int], told: object) -> None:
        captured_from_what_was_changed = (self._shapes, self._addresses) != told
        assert not captured_from_what_was_changed
        feeds = {name: self._array(name, shape, addresses[name]) for name, shape in shapes.items()}
        names = [each.name for each in self._engine.tensors if not each.is_input]
        time.sleep(self._engine.run_s)
        for name, value in zip(names, self._engine.session.run(names, feeds), strict=True):
            raw = value.tobytes()
            ctypes.memmove(addresses[name], raw, len(raw))

    def _array(self, name: str, shape: Shape, address: int) -> Any:
        element = self._engine.types[name]
        nbytes = int(np.prod(shape)) * element.datatype.size
        raw = ctypes.string_at(address, nbytes)
        return np.frombuffer(raw, element.numpy).reshape(shape)


class Slowed:
    """A session whose runs take so many seconds longer."""

    def __init__(self, session: Session, run_s: float) -> None:
        self._session = session
        self._run_s = run_s

    def run(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Produced:
        time.sleep(self._run_s)
        return self._session.run(source, feeds, wanted, place)

    def prepared(self, *arguments: object) -> None:
        """Nothing that would run faster."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


class SimulatedPlain:
    """The ``onnx`` runtime, where its CUDA session is simulated by one of the processor; its runs take ``run_s``
    longer."""

    name = "onnx"

    def __init__(self, run_s: float = 0.0) -> None:
        self._runtime = OnnxRuntime()
        self._run_s = run_s
        self.loaded = 0
        self.fails: Exception | None = None

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        self.loaded += 1
        if self.fails is not None:
            raise self.fails
        session = self._runtime.load(replace(version, device=ON_CPU), settings)
        return Slowed(session, self._run_s) if self._run_s else session


class SimulatedTensorrt(TensorrtRuntime):
    """The runtime as workers have it, with everything of NVIDIA's simulated; runs of an engine, and of a session, take
    so much longer."""

    engine_s = session_s = 0.0

    def __init__(self) -> None:
        self.device = device = HostDevice()
        super().__init__(
            lambda: SimulatedLibrary(device, run_s=self.engine_s),
            lambda: DRIVER,
            lambda index: device.as_cuda,
            SimulatedPlain(self.session_s),
        )

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        """Parameters say whether the device is full: for what an engine takes, or for its runs."""
        full = version.parameters.get(FULL_FOR, "") if settings.packed else ""
        self.device.total = 0 if full == "engine" else GIBIBYTE
        session = super().load(version, settings)
        self.device.fails = CudaFailed("out of memory (CUDA error 2 in cudaGraphLaunch)") if full else None
        return session


class SimulatedFaster(SimulatedTensorrt):
    """Engines are faster than sessions."""

    engine_s, session_s = 0.002, 0.005


class SimulatedSlower(SimulatedTensorrt):
    """Engines are slower than sessions."""

    engine_s = 0.005


class SimulatedRuntime(SimulatedTensorrt):
    """The same by an entry point."""

    name = "simulated_tensorrt"
