"""A pool of real workers driven by synchronous calls, each timed from the call to the event that answers it."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from appliance.config.workers import ArenaConfig, WorkersConfig
from appliance.domain.load_wish import LoadWish
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import FREE, aligned, byte_size
from appliance.workers.arena import Arena
from appliance.workers.daemon.pool import WorkerPool
from appliance.workers.port import (
    FormBuilt,
    ModelLoaded,
    PoolEvent,
    Run,
    RunFinished,
    RunItem,
    WeightsEvicted,
    WeightsPagedIn,
    WorkerExited,
    WorkerStarted,
)
from appliance.workers.settings import WorkerSettings

EVENT_TIMEOUT_S = 300.0
OUTPUT_BYTES = 1 << 20
MODEL = 1
FREE_SIZE = 16

Event = TypeVar("Event")


class PoolFailed(RuntimeError):
    """A worker said something else than it was asked for."""


class TimedPool:
    """One thread, one call at a time. Every timed call gives milliseconds."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._events: asyncio.Queue[PoolEvent] = asyncio.Queue()
        self._arena = Arena(ArenaConfig())
        config = WorkersConfig(load_timeout_ms=int(EVENT_TIMEOUT_S * 1000))
        self._pool = WorkerPool(self._arena, config, self._loop, self._events.put_nowait)
        self._ids = itertools.count(1)
        self._pids: dict[int, int] = {}
        self._beside: list[PoolEvent] = []

    def open(self) -> None:
        self._loop.run_until_complete(self._pool.open())

    def close(self) -> None:
        self._loop.run_until_complete(self._pool.close())
        self._loop.close()
        self._arena.close()

    def start(self) -> tuple[int, float]:
        """A new worker."""
        worker = next(self._ids)
        started, took = self._timed(
            WorkerStarted, lambda: self._pool.start(worker, 0, WorkerSettings(1, (), 0))
        )
        self._pids[worker] = started.pid
        return worker, took

    def load(self, worker: int, version: ModelVersion, wish: LoadWish) -> tuple[ModelLoaded, float]:
        """The model MODEL of a worker."""
        return self._timed(ModelLoaded, lambda: self._pool.load(worker, MODEL, version, wish))

    def arrived(self) -> None:
        """After an early load: wait until all its weights are there."""
        filled, _ = self._timed(WeightsPagedIn, lambda: None)
        if filled.failure:
            raise PoolFailed(filled.failure)

    def evict_weights(self, worker: int) -> float:
        return self._timed(WeightsEvicted, lambda: self._pool.evict_weights(worker, MODEL))[1]

    def page_in(self, worker: int) -> float:
        filled, took = self._timed(WeightsPagedIn, lambda: self._pool.page_in(worker, MODEL))
        if filled.failure:
            raise PoolFailed(filled.failure)
        return took

    def build_form(self, version: ModelVersion) -> FormBuilt:
        """In a worker of its own."""
        worker, _ = self.start()
        built, _ = self._timed(FormBuilt, lambda: self._pool.build_form(worker, MODEL, version))
        self.stop(worker)
        if built.failure:
            raise PoolFailed(built.failure)
        return built

    def run(self, worker: int, version: ModelVersion) -> float:
        """One row of zeros."""
        batch = (1,) if version.max_batch_size else ()
        shapes = tuple((*batch, *_fixed(spec.shape)) for spec in version.inputs)
        sizes = tuple(
            byte_size(spec.datatype, shape) for spec, shape in zip(version.inputs, shapes, strict=True)
        )
        taken = sum(map(aligned, sizes))
        slot = self._arena.allocate(taken + OUTPUT_BYTES, self._arena.of_group(0))
        if slot is None:
            raise PoolFailed("no memory for a request")
        wanted = tuple(range(len(version.outputs)))
        item = RunItem(1, 1, shapes, sizes, slot.offset, wanted, slot.offset + taken, OUTPUT_BYTES)
        run = Run(next(self._ids), MODEL, (item,))
        finished, took = self._timed(RunFinished, lambda: self._pool.dispatch(worker, run))
        self._arena.free(slot)
        if finished.results[0].status.failed:
            raise PoolFailed(finished.results[0].error)
        return took

    def stop(self, worker: int) -> None:
        self._timed(WorkerExited, lambda: self._pool.stop(worker))

    def private_mib(self, worker: int) -> float:
        """Anonymous memory of a worker, what it shares with the zygote included."""
        with open(f"/proc/{self._pids[worker]}/status", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["RssAnon"].split()[0]) / 1024

    def _timed(self, kind: type[Event], ask: Callable[[], None]) -> tuple[Event, float]:
        async def asked() -> Event:
            ask()
            for event in self._beside:
                if isinstance(event, kind):
                    self._beside.remove(event)
                    return event
            while True:
                event = await asyncio.wait_for(self._events.get(), EVENT_TIMEOUT_S)
                if isinstance(event, kind):
                    return event
                if not isinstance(event, WeightsPagedIn):
                    raise PoolFailed(f"waited for {kind.__name__}, got {event}")
                self._beside.append(event)

        begin = time.perf_counter()
        answer = self._loop.run_until_complete(asked())
        return answer, (time.perf_counter() - begin) * 1e3


def _fixed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(FREE_SIZE if size == FREE else size for size in shape)


@contextmanager
def timed_pool() -> Iterator[TimedPool]:
    """An open pool, closed at the end."""
    pool = TimedPool()
    try:
        pool.open()
        yield pool
    finally:
        pool.close()
