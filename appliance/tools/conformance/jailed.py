"""One load and one batch in a real worker: forked by a zygote, in the jail that a box would put around this version."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from appliance.config.workers import ArenaConfig, WorkersConfig
from appliance.domain.errors import ApplianceError
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import aligned
from appliance.tools.conformance.memory import any_floats
from appliance.tools.conformance.outcome import Outcome
from appliance.workers.arena import Arena, Slot
from appliance.workers.daemon.pool import WorkerPool
from appliance.workers.jail.access import access_to
from appliance.workers.port import (
    ItemStatus,
    ModelLoaded,
    ModelRefused,
    PoolEvent,
    Run,
    RunFinished,
    RunItem,
    RunResult,
    WorkerExited,
    WorkerStarted,
)
from appliance.workers.settings import WorkerSettings

NAME: Final = "worker"
DEMANDS: Final = "A worker in its jail loads the model and answers"
EVENT_S: Final = 150
"""Longer than the pool waits before it ends a worker and says so."""
SLOT_BYTES: Final = 64 << 10
WORKER: Final = 1
MODEL: Final = 1
BATCH: Final = 1

Event = TypeVar("Event")


class _Failed(Exception):
    """The worker did something else than it should."""


def jailed(version: ModelVersion) -> Outcome:
    """Load the identity model in a worker, run it once, and compare."""
    with _refusals() as refused:
        try:
            kept_from = asyncio.run(_tried(version))
        except (_Failed, ApplianceError) as problem:
            told = str(problem)
            if refused and "its jail refused" not in told:  # the reason of a load has it already
                told = f"{told} (its jail refused system calls: {', '.join(refused)})"
            return Outcome(NAME, DEMANDS, holds=False, text=told)
        except TimeoutError:
            return Outcome(NAME, DEMANDS, holds=False, text=f"the worker said nothing for {EVENT_S} s")
    note = f"kept from {', '.join(kept_from) or 'nothing: this kernel cannot'}"
    if refused:
        note += f"; refused, without harm: {', '.join(refused)}"
    return Outcome(NAME, DEMANDS, holds=True, text=note)


async def _tried(version: ModelVersion) -> tuple[str, ...]:
    """Give what the worker was kept from."""
    events: asyncio.Queue[PoolEvent] = asyncio.Queue()
    arena = Arena(ArenaConfig(classes=((SLOT_BYTES, 4),)))
    pool = WorkerPool(
        arena, WorkersConfig(), asyncio.get_running_loop(), events.put_nowait, (version.runtime,)
    )
    try:
        await pool.open()
        settings = WorkerSettings(threads=1, cpus=(), memory_limit_bytes=0, access=access_to(version))
        pool.start(WORKER, 0, settings)
        started = await _next(events, WorkerStarted)
        pool.load(WORKER, MODEL, version)
        await _next(events, ModelLoaded)
        await _run(pool, arena, events)
        return started.kept_from
    finally:
        await pool.close()
        arena.close()


async def _run(pool: WorkerPool, arena: Arena, events: asyncio.Queue[PoolEvent]) -> None:
    arrays = any_floats(2, 3), any_floats(4, 1)
    memory = arena.of_worker(WORKER)
    slot = None if memory is None else arena.allocate(SLOT_BYTES, memory)
    assert slot is not None, "an arena of this size was just made"
    sizes = tuple(array.nbytes for array in arrays)
    end = slot.offset
    for array in arrays:
        slot.memory.view(end, array.nbytes)[:] = array.tobytes()
        end += aligned(array.nbytes)
    shapes = tuple(array.shape for array in arrays)
    item = RunItem(1, 1, shapes, sizes, slot.offset, (0, 1), end, slot.offset + SLOT_BYTES - end)
    pool.dispatch(WORKER, Run(BATCH, MODEL, (item,)))
    (result,) = (await _next(events, RunFinished)).results
    if result.status is not ItemStatus.OK:
        raise _Failed(f"the run ended as {result.status.name}: {result.error}")
    found = list(_outputs(slot, item, result))
    if (result.shapes, found) != (shapes, [array.tobytes() for array in arrays]):
        raise _Failed(f"the run gave other bytes or shapes ({list(result.shapes)}) than its inputs have")
    arena.free(slot)


def _outputs(slot: Slot, item: RunItem, result: RunResult) -> Iterator[bytes]:
    position = item.out_offset
    for size in result.sizes:
        yield bytes(slot.memory.view(position, size))
        position += aligned(size)


async def _next(events: asyncio.Queue[PoolEvent], kind: type[Event]) -> Event:
    """Give the next event of ``kind``; others are about how far it is. Raises _Failed for a bad end."""
    while True:
        got: Any = await asyncio.wait_for(events.get(), EVENT_S)
        if isinstance(got, kind):
            return got
        if isinstance(got, ModelRefused):
            raise _Failed(f"the load was refused: {got.reason}")
        if isinstance(got, WorkerExited):
            raise _Failed(f"the worker ended: {got.words}")


class _Listener(logging.Handler):
    """Keeps the system calls that jails refuse, as the pool tells of them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.refused: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        _, found, call = record.getMessage().partition("refused system call ")
        if found:
            self.refused.append(call)


@contextmanager
def _refusals() -> Iterator[list[str]]:
    listener, log = _Listener(), logging.getLogger("appliance.workers")
    log.addHandler(listener)
    before = log.propagate
    log.propagate = False  # the outcome says it, so nothing is printed beside the table
    try:
        yield listener.refused
    finally:
        log.propagate = before
        log.removeHandler(listener)
