"""A test bench around a real WorkerPool: real processes, an event loop of its own, synchronous calls."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from appliance.config.workers import ArenaConfig, WorkersConfig
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype, TensorSpec, aligned, encode_bytes, split_bytes
from appliance.workers.arena import Arena, Slot
from appliance.workers.daemon.pool import WorkerPool
from appliance.workers.jail.access import FileAccess
from appliance.workers.port import (
    Fetch,
    FormJudged,
    LaneMemory,
    ModelLoaded,
    ModelRefused,
    PoolEvent,
    Run,
    RunFinished,
    RunItem,
    RunResult,
    WorkerStarted,
)
from appliance.workers.settings import WorkerSettings

EVENT_TIMEOUT_S = 30.0
ACCESS = FileAccess(roots=("/",))
PLAIN = WorkerSettings(threads=1, cpus=(), memory_limit_bytes=0, access=ACCESS)
"""In the jail, but for files, which tests have in many places."""
FREE = PLAIN._replace(access=None)
SMALL_ARENA = ArenaConfig(classes=((4 << 10, 256), (64 << 10, 64), (1 << 20, 64), (16 << 20, 4)))

EventType = TypeVar("EventType")


class Tensor(NamedTuple):
    """Full shape and raw wire bytes."""

    shape: tuple[int, ...]
    raw: bytes


def tensor(array: NDArray[Any]) -> Tensor:
    """An array as it goes over the wire; str elements become BYTES."""
    if array.dtype == object:
        return Tensor(array.shape, encode_bytes(str(element).encode() for element in array.reshape(-1)))
    return Tensor(array.shape, array.tobytes())


def strings(raw: bytes) -> list[str]:
    """Elements of a raw BYTES tensor."""
    return [str(element, "utf-8") for element in split_bytes(memoryview(raw))]


def spec(name: str, datatype: Datatype, *shape: int, optional: bool = False) -> TensorSpec:
    """A tensor of a model; the batch dimension is not mentioned."""
    return TensorSpec(name=name, datatype=datatype, shape=shape, optional=optional)


FP32_PAIR = ((spec("x", Datatype.FP32, 4),), (spec("y", Datatype.FP32, 4),))


def version_of(
    path: Path | str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    runtime: str = "onnx",
    **more: Any,
) -> ModelVersion:
    """A model version for one file."""
    return ModelVersion(
        name="model",
        version=1,
        platform="",
        backend="",
        runtime=runtime,
        path=str(path),
        file_bytes=0,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        **more,
    )


def fake(mode: str = "identity", **parameters: object) -> ModelVersion:
    """A batchable version of the fake runtime, FP32 x [4] to y [4]."""
    texts = {"mode": mode, **{name: str(value) for name, value in parameters.items()}}
    return version_of("", *FP32_PAIR, runtime="fake", max_batch_size=8, parameters=texts)


class Placed(NamedTuple):
    """A request in the arena."""

    item: RunItem
    slot: Slot


class Bench:
    """An arena, a pool and an inbox."""

    def __init__(
        self,
        *,
        runtimes: tuple[str, ...] = ("onnx", "fake"),
        rings: Callable[[], LaneMemory] | None = None,
        arena: ArenaConfig = SMALL_ARENA,
        **config: Any,
    ) -> None:
        self.loop = asyncio.new_event_loop()
        self.arena = Arena(arena)
        self.events: asyncio.Queue[PoolEvent] = asyncio.Queue()
        self.pool = WorkerPool(
            self.arena, WorkersConfig(**config), self.loop, self.events.put_nowait, runtimes, rings
        )
        self.pids: dict[int, int] = {}
        self.judged: list[FormJudged] = []
        """What workers have said of packed forms, beside everything else."""
        self._ids = itertools.count(1)
        try:
            self.loop.run_until_complete(self.pool.open())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End every process."""
        self.loop.run_until_complete(self.pool.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.arena.close()

    def call(self, action: Callable[..., None], *arguments: Any) -> None:
        """Do something of the pool inside the loop."""

        async def act() -> None:
            action(*arguments)

        self.loop.run_until_complete(act())

    def event(self, kind: type[EventType]) -> EventType:
        """The next event, which must be of ``kind``."""
        got = self.any_event()
        assert isinstance(got, kind), got
        return got

    def any_event(self) -> PoolEvent:
        """The next event that is more than a word about a packed form."""
        while True:
            got = self.loop.run_until_complete(asyncio.wait_for(self.events.get(), EVENT_TIMEOUT_S))
            if not isinstance(got, FormJudged):
                return got
            self.judged.append(got)

    def wait(self, said: asyncio.Event) -> None:
        """Until it is set."""
        self.loop.run_until_complete(asyncio.wait_for(said.wait(), EVENT_TIMEOUT_S))

    def start(self, settings: WorkerSettings = PLAIN, group: int = 0) -> int:
        """A running worker."""
        worker = next(self._ids)
        self.call(self.pool.start, worker, group, settings)
        started = self.event(WorkerStarted)
        assert started.worker == worker
        self.pids[worker] = started.pid
        return worker

    def try_load(self, worker: int, version: ModelVersion) -> ModelLoaded | ModelRefused:
        """How a load ends."""
        model = next(self._ids)
        self.call(self.pool.load, worker, model, version)
        ended: ModelLoaded | ModelRefused = self.event((ModelLoaded, ModelRefused))  # type: ignore[arg-type]
        assert (ended.worker, ended.model) == (worker, model)
        return ended

    def load(self, worker: int, version: ModelVersion) -> int:
        """The id of a model that loads."""
        ended = self.try_load(worker, version)
        assert isinstance(ended, ModelLoaded), ended
        return ended.model

    def place(
        self,
        tensors: Sequence[Tensor | None],
        outputs: Sequence[int],
        *,
        rows: int = 1,
        capacity: int = 4096,
        group: int = 0,
    ) -> Placed:
        """Put inputs into a slot with room for outputs behind them, where workers of ``group`` reach it."""
        sizes = tuple(0 if each is None else len(each.raw) for each in tensors)
        taken = sum(map(aligned, sizes))
        slot = self.arena.allocate(taken + capacity, self.arena.of_group(group))
        assert slot is not None
        position = slot.offset
        for each, size in zip(tensors, sizes, strict=True):
            if each is not None:
                slot.memory.view(position, size)[:] = each.raw
            position += aligned(size)
        shapes = tuple(None if each is None else each.shape for each in tensors)
        item = RunItem(
            next(self._ids), rows, shapes, sizes, slot.offset, tuple(outputs), slot.offset + taken, capacity
        )
        return Placed(item, slot)

    def dispatch(self, worker: int, model: int, *placed: Placed) -> int:
        """Send a batch, whose tensors go where the worker reaches them; gives its id."""
        batch = next(self._ids)
        memory = self.arena.of_worker(worker)
        if memory is not None:
            for each in placed:
                self.arena.move(each.slot, memory, each.slot.size)
        run = Run(batch, model, tuple(each.item for each in placed))
        self.call(self.pool.dispatch, worker, run)
        return batch

    def run(self, worker: int, model: int, *placed: Placed) -> tuple[RunResult, ...]:
        """Send a batch and wait for its results."""
        batch = self.dispatch(worker, model, *placed)
        finished = self.event(RunFinished)
        assert (finished.worker, finished.batch) == (worker, batch)
        assert min(finished.gather_ns, finished.run_ns, finished.scatter_ns) >= 0
        return finished.results

    def read(self, placed: Placed, result: RunResult) -> list[bytes]:
        """Copies of a result's outputs."""
        return self.read_at(placed.item.out_offset, result, placed.slot)

    def read_at(self, offset: int, result: RunResult, slot: Slot) -> list[bytes]:
        """Copies of outputs that lie at ``offset``, in ``slot``."""
        outputs = []
        for size in result.sizes:
            outputs.append(bytes(slot.memory.view(offset, size)))
            offset += aligned(size)
        return outputs

    def free(self, *placed: Placed) -> None:
        """Give the slots back."""
        for each in placed:
            self.arena.free(each.slot)

    def fetch(self, worker: int, ticket: int, offset: int, capacity: int) -> None:
        """Ask for held outputs."""
        self.call(self.pool.fetch, worker, Fetch(ticket, offset, capacity))


class _Listener(logging.Handler):
    def __init__(self, text: str, said: asyncio.Event) -> None:
        super().__init__()
        self._text = text
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        if self._text in record.getMessage():
            self._said.set()


@contextmanager
def listening(text: str) -> Iterator[asyncio.Event]:
    """Set when the pool logs a line with ``text``."""
    said = asyncio.Event()
    handler, log = _Listener(text, said), logging.getLogger("appliance.workers")
    log.addHandler(handler)
    try:
        yield said
    finally:
        log.removeHandler(handler)


class Clock:
    """The pool's, which a test sets forward."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def monotonic_ns(self) -> int:
        """Nanoseconds."""
        return time.monotonic_ns() + self.ahead_ns


def row(*values: float) -> Tensor:
    """One row of FP32."""
    return tensor(np.array([values], np.float32))


FOUR = row(1, 2, 3, 4)
