"""Sessions on a simulated CUDA device, and a model for them."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as native

from appliance.devices.cuda import CudaFailed
from appliance.domain.errors import LoadFailed
from appliance.domain.model import Batching, ModelVersion
from appliance.domain.tensor import Datatype
from appliance.runtimes import onnx_cuda
from appliance.runtimes.onnx_cuda import CudaSession, Made
from appliance.runtimes.onnx_elements import ports_of
from appliance.runtimes.runtime import RuntimeSettings, Session
from appliance.tools.conformance.memory import Memory
from models.generate import write_model
from models.generators.graph import model_bytes, node, tensor_port
from tests.devices.simulated_cuda import SimulatedCuda
from tests.workers.bench import spec, version_of

MLP = [spec("x", Datatype.FP32, -1, 64)], [spec("y", Datatype.FP32, -1, 10)]
BY_OTHERS = "operation failed due to a previous error during capture"
BY_ITSELF = "operation not permitted when stream is capturing"
"""What CUDA says of a capture that was spoilt by others, and of one that cannot be."""

ANY_DEVICE = SimulatedCuda()
"""For a capture of which it does not matter where it is."""


class Graphs:
    """Stands before a session of the processor as one that captures graphs: ``captured`` are their numbers, ``fail``
    (what CUDA says then) and ``lie`` what the next capture does, ``meanwhile`` what comes while it does. Where it goes,
    handles of cuBLAS go, which waits for the whole device; so do the words of a run that fails, as each does while it
    is ``full``. ``here`` are inputs that it reads, and outputs that it leaves, on the processor.

    ``staged`` is what operators of runs left in memory for the device to copy: as in ONNX Runtime, only a run that
    waits has it taken back. Where ``reads_on``, as in its older releases, graphs read it when they are replayed, and
    give nothing once it was taken back."""

    def __init__(
        self, session: Any, graphs: bool, cuda: SimulatedCuda, here: frozenset[str] = frozenset()
    ) -> None:
        self._session = session
        self.here = here
        self._cuda = cuda
        self.stream = 0
        self.meanwhile: Callable[[], object] = bool
        self._graphs = graphs
        self.captured: list[str] = []
        self.replays = 0
        self.lie = self.reads_on = self.full = False
        self.fail = ""
        self.staged = 0
        self._spoilt: set[str] = set()

    def __del__(self) -> None:
        with suppress(CudaFailed):
            self._cuda.wait_for_all()

    def __getattr__(self, name: str) -> Any:
        """What it does not change."""
        return getattr(self._session, name)

    @property
    def input_meminfos(self) -> list[Any]:
        """Where it reads its inputs."""
        names = (port.name for port in self._session.inputs_meta)
        return [SimpleNamespace(name="Cpu" if name in self.here else "Cuda") for name in names]

    @property
    def output_meminfos(self) -> list[Any]:
        """Where it leaves its outputs: what is on the processor is in memory that the device copies from."""
        names = (port.name for port in self._session.outputs_meta)
        return [SimpleNamespace(name="CudaPinned" if name in self.here else "Cuda") for name in names]

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        """Run on the processor."""
        if self.full:
            with suppress(CudaFailed):
                self._cuda.wait_for_all()
            raise RuntimeError("CUDA failure 2: out of memory")
        number = options.get_run_config_entry(onnx_cuda.GRAPH_ID)
        self.staged += number not in self.captured
        if options.get_run_config_entry(onnx_cuda.WAITS_NOT) != "1":
            self.staged = 0
            self._spoilt.update(self.captured if self.reads_on else ())
        if number == str(onnx_cuda.NO_GRAPH):
            self._session.run_with_iobinding(binding, options)
            return
        assert self._graphs, "no graph can be captured by this session"
        if number in self.captured:
            self.replays += 1
        elif self.fail:
            self._leave()
            raise RuntimeError(self.fail)
        else:
            self._capture(number)
        self.captured.append(number)
        if not self.lie and number not in self._spoilt:
            self._session.run_with_iobinding(binding, options)

    def _capture(self, number: str) -> None:
        self._cuda.others.append(number)
        self.meanwhile()
        self._cuda.others.remove(number)
        if number in self._cuda.spoilt:
            self._cuda.spoilt.remove(number)
            self._leave()
            raise RuntimeError(BY_OTHERS)

    def _leave(self) -> None:
        """A run that fails in its capture may end before that does, as where it throws."""
        self._cuda.unended[threading.get_ident()] = self.stream


class CopyingBinding:
    """Stands before a binding as one of a session on a device: what that reads on the processor is copied when it is
    bound, and never again."""

    def __init__(self, session: Graphs) -> None:
        self._binding = native.SessionIOBinding(session)
        self._here = session.here
        self._copies: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._binding, name)

    def bind_input(self, name: str, device: Any, element: int, shape: Sequence[int], address: int) -> None:
        if name in self.__dict__["_here"]:
            copy = self._copies[name] = ctypes.create_string_buffer(
                ctypes.string_at(address, 4 * math.prod(shape))
            )
            address = ctypes.addressof(copy)
        self._binding.bind_input(name, device, element, shape, address)


class Bench:
    """A runtime whose sessions are on the simulated device; ``made`` are those of ONNX Runtime, in order. ``meanwhile``
    comes while one is made, which waits for the whole device. ``here`` are inputs that those read on the processor, of
    four bytes each, and outputs that they leave there; ``unread`` are those of them that nothing reads. ``fail``:
    what CUDA says of captures of all that are made. ``asked``: of which inputs it was to be told whether nothing reads
    them."""

    name = "onnx"

    def __init__(
        self, *, graphs: bool = True, here: frozenset[str] = frozenset(), unread: tuple[str, ...] = ()
    ) -> None:
        self._here = here
        self._unread = unread
        self.asked: list[Sequence[str]] = []
        self.fail = ""
        self.cuda = SimulatedCuda()
        self.made: list[Graphs] = []
        self.meanwhile: Callable[[], object] = bool
        self._graphs = graphs

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        """A session of a file on the simulated device."""

        def make(stream: int, graphs: bool) -> Made:
            assert stream in self.cuda.streams
            try:
                self.cuda.wait_for_all()
                self.meanwhile()
                whole = onnxruntime.InferenceSession(version.path, providers=["CPUExecutionProvider"])
            except LoadFailed:
                raise
            except Exception as problem:
                raise LoadFailed(f"{version.key}: {problem}") from problem
            self.made.append(Graphs(whole._sess, graphs and self._graphs, self.cuda, self._here))
            self.made[-1].fail, self.made[-1].stream = self.fail, stream
            return Made(self.made[-1], graphs and self._graphs)

        session = CudaSession(
            version,
            self.cuda,  # type: ignore[arg-type]  # it passes the conformance suite of Cuda
            make,
            graphs=self._graphs,
            unread=self._tell_unread,
            kind=native.OrtDevice.cpu(),
        )
        session.inputs = ports_of(session.metas.inputs_meta, "input")
        session.outputs = ports_of(session.metas.outputs_meta, "output")
        return session

    def _tell_unread(self, names: Sequence[str]) -> Sequence[str]:
        self.asked.append(names)
        return self._unread


@contextmanager
def loaded_mlp(bench: Bench, folder: Path) -> Iterator[Session]:
    """A session of the MLP, which at its end has given back what it had of the device."""
    path = write_model("mlp", folder) / "1" / "model.onnx"
    session = bench.load(version_of(path, *MLP), RuntimeSettings())
    yield session
    session.close()
    assert not bench.cuda.held, "memory of the device was not given back"
    assert not bench.cuda.streams


def answers(session: Session, memory: Memory, times: int) -> list[bytes]:
    """What the first output is, each time."""
    return [memory.outputs(memory.run(session, (0,)))[0] for _ in range(times)]


def write_two(folder: Path) -> ModelVersion:
    """A model of two inputs and two outputs, in batches of at most 8: p is 2a, q is b squared."""
    model = model_bytes(
        "two",
        [node("Add", ["a", "a"], ["p"]), node("Mul", ["b", "b"], ["q"])],
        inputs=[tensor_port(name, "FP32", ["n", size]) for name, size in (("a", 3), ("b", 20))],
        outputs=[tensor_port(name, "FP32", ["n", size]) for name, size in (("p", 3), ("q", 20))],
    )
    path = folder / "model.onnx"
    path.write_bytes(model)
    inputs, outputs = (
        [spec(name, Datatype.FP32, size) for name, size in zip(names, (3, 20), strict=True)]
        for names in ("ab", "pq")
    )
    return version_of(path, inputs, outputs, max_batch_size=8, batching=Batching())
