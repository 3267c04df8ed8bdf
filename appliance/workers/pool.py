"""The pool: implements WorkerPort with real processes.

Callbacks of the event loop read lanes and turn what workers say into events; nothing blocks. What a worker says is
checked against what it was asked; a worker that says what cannot be true is killed. What takes too long is killed. A
worker counts as gone only when its process has ended, so that its memory can be used again.
Owner: the event loop's thread.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from appliance.model import ModelVersion
from appliance.workers.answers import ModelContract
from appliance.workers.arena import Arena
from appliance.workers.lane import DaemonLane, LaneBlocked, LaneClosed, SocketDaemonLane, socket_pair
from appliance.workers.messages import (
    Exited,
    Fetch,
    Finished,
    Forked,
    ForkFailed,
    FromSupervisor,
    FromWorker,
    Load,
    Loaded,
    MessageInvalid,
    Refused,
    Run,
    Stop,
    Stored,
    ToWorker,
    Unload,
)
from appliance.workers.port import (
    ExitCause,
    Fetched,
    ItemStatus,
    ModelLoaded,
    ModelRefused,
    PoolEvent,
    RunFinished,
    RunItem,
    WorkerExited,
    WorkerSettings,
    WorkerStarted,
)
from appliance.workers.supervision import Supervisor

WATCH_INTERVAL_S: Final = 0.05
EXIT_GRACE_NS: Final = 1_000_000_000
KILL_GRACE_NS: Final = 5_000_000_000
RUN_TIMEOUT_PARAMETER: Final = "run_timeout_ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersConfig:
    """How workers run. ``cpus``: the i-th worker gets the i-th set, in turn; empty: no affinity. A batch that runs longer
    than ``run_timeout_ms`` (a model's parameter of that name overrides it) or a load that takes longer than
    ``load_timeout_ms`` ends the worker. ``memory_limit_bytes`` bounds each worker's private memory, 0: unbounded."""

    threads: int = 1
    cpus: tuple[tuple[int, ...], ...] = ()
    run_timeout_ms: int = 10_000
    load_timeout_ms: int = 120_000
    memory_limit_bytes: int = 0
    runtimes: tuple[str, ...] = ("onnx",)

    def settings_for(self, number: int) -> WorkerSettings:
        """Settings of the ``number``-th worker."""
        cpus = self.cpus[number % len(self.cpus)] if self.cpus else ()
        return WorkerSettings(self.threads, cpus, self.memory_limit_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatistics:
    """``workers`` alive, ``in_flight`` answers awaited, supervisor's process number (0: none) and restarts."""

    workers: int
    in_flight: int
    supervisor_pid: int
    supervisor_restarts: int


class _Awaited(NamedTuple):
    """An answer that a worker owes, in order. ``asked`` is the Run, the model id of a load, or a Fetch."""

    asked: Run | int | Fetch
    timeout_ns: int


class _Model(NamedTuple):
    contract: ModelContract
    run_timeout_ns: int


class _Worker:
    """What the pool knows of one worker. ``awaited`` is what it still owes; ``since_ns`` is since when it has been busy
    with the first of that, or since when its end has been awaited."""

    __slots__ = (
        "awaited", "cause", "detail", "ended", "held", "id", "lane", "models", "pid", "since_ns", "stopping", "writing",
    )  # fmt: skip

    def __init__(self, number: int, lane: DaemonLane) -> None:
        self.id = number
        self.lane = lane
        self.pid = 0
        self.awaited: deque[_Awaited] = deque()
        self.held: dict[int, tuple[int, RunItem]] = {}
        self.models: dict[int, _Model] = {}
        self.since_ns = 0
        self.cause: ExitCause | None = None
        self.detail = ""
        self.ended = False
        self.stopping = False
        self.writing = False


class WorkerPool:
    """WorkerPort over forked processes. ``on_event`` only enqueues."""

    def __init__(
        self,
        arena: Arena,
        config: WorkersConfig,
        loop: asyncio.AbstractEventLoop,
        on_event: Callable[[PoolEvent], None],
    ) -> None:
        self._config = config
        self._loop = loop
        self._on_event = on_event
        self._workers: dict[int, _Worker] = {}
        self._supervisor = Supervisor(
            (arena.fd, arena.size), config.runtimes, loop, self._supervisor_said, self._supervisor_died
        )
        self._watching: asyncio.TimerHandle | None = None
        self._empty: asyncio.Future[None] | None = None

    async def open(self) -> None:
        """Start the supervisor and wait until workers can be forked. Raises WorkerError when that fails."""
        await self._supervisor.open()

    async def close(self, grace_s: float = 5.0) -> None:
        """Stop every worker, kill those that need longer than ``grace_s``, end the supervisor."""
        for worker in list(self._workers):
            self.stop(worker)
        if self._workers:
            self._empty = self._loop.create_future()
            await asyncio.wait([self._empty], timeout=grace_s)
        await self._supervisor.close()
        if self._watching is not None:
            self._watching.cancel()
        for state in list(self._workers.values()):
            state.cause = state.cause or ExitCause.STOPPED
            self._gone(state, "killed at shutdown")

    def statistics(self) -> PoolStatistics:
        """Gauges of this moment."""
        return PoolStatistics(
            workers=len(self._workers),
            in_flight=sum(len(state.awaited) for state in self._workers.values()),
            supervisor_pid=self._supervisor.pid,
            supervisor_restarts=self._supervisor.restarts,
        )

    # --- WorkerPort

    def start(self, worker: int, settings: WorkerSettings) -> None:
        """Fork a worker; what is said to it before it runs waits in its lane."""
        assert worker not in self._workers, f"worker {worker} exists already"
        ours, theirs = socket_pair()
        state = _Worker(worker, SocketDaemonLane(ours))
        self._workers[worker] = state
        self._loop.add_reader(ours.fileno(), partial(self._readable, state))
        self._supervisor.fork(worker, settings, theirs)

    def load(self, worker: int, model: int, version: ModelVersion) -> None:
        """Load a version; a ``run_timeout_ms`` that is no number refuses it."""
        state = self._workers[worker]
        said = version.parameters.get(RUN_TIMEOUT_PARAMETER, str(self._config.run_timeout_ms))
        if not said.isdecimal() or int(said) == 0:
            reason = (
                f"{version.key}: parameter {RUN_TIMEOUT_PARAMETER} must be milliseconds above 0, not '{said}'"
            )
            self._on_event(ModelRefused(worker, model, reason))
            return
        state.models[model] = _Model(ModelContract(version), int(said) * 1_000_000)
        self._ask(state, Load(model, version), _Awaited(model, self._config.load_timeout_ms * 1_000_000))

    def unload(self, worker: int, model: int) -> None:
        """Forget a model."""
        state = self._workers[worker]
        self._send(state, Unload(model))

    def dispatch(self, worker: int, run: Run) -> None:
        """Give a batch to the worker."""
        state = self._workers.get(worker)
        if state is None:
            self._on_event(
                WorkerExited(worker, ExitCause.DIED, (run.batch,), -1, "the worker was gone already")
            )
            return
        self._ask(state, run, _Awaited(run, state.models[run.model].run_timeout_ns))

    def fetch(self, worker: int, fetch: Fetch) -> None:
        """Answer a TOO_LARGE result. A worker that is gone has forgotten it: WorkerExited said so."""
        state = self._workers.get(worker)
        if state is None:
            return
        if fetch.out_capacity == 0:
            state.held.pop(fetch.ticket, None)
            self._send(state, fetch)
            return
        self._ask(state, fetch, _Awaited(fetch, self._config.run_timeout_ms * 1_000_000))

    def stop(self, worker: int) -> None:
        """End the worker after what it holds."""
        state = self._workers[worker]
        if state.stopping or state.cause is not None:
            return
        state.stopping = True
        if self._supervisor.withdraw(worker):
            state.cause = ExitCause.STOPPED
            self._loop.call_soon(self._gone, state, "never started")
            return
        if not state.awaited:
            state.since_ns = time.monotonic_ns()
        self._send(state, Stop())
        self._watch()

    def kill(self, worker: int, cause: ExitCause) -> None:
        """End the worker now."""
        state = self._workers.get(worker)
        if state is not None:
            self._condemn(state, cause, f"killed: {cause.value}")

    # --- saying

    def _ask(self, state: _Worker, message: ToWorker, awaited: _Awaited) -> None:
        """Say something that the worker owes an answer to."""
        state.awaited.append(awaited)
        if len(state.awaited) == 1:
            state.since_ns = time.monotonic_ns()
        self._send(state, message)
        if self._watching is None:
            self._watch()

    def _send(self, state: _Worker, message: ToWorker) -> None:
        if state.cause is not None or state.ended:
            return  # it is on its way out; WorkerExited names what it did not finish
        try:
            state.lane.send(message)
        except LaneClosed:
            return
        except LaneBlocked as problem:
            self._condemn(state, ExitCause.HUNG, str(problem))
            return
        if state.lane.unsent and not state.writing:
            state.writing = True
            self._loop.add_writer(state.lane.fileno(), self._writable, state)

    def _writable(self, state: _Worker) -> None:
        try:
            state.lane.flush()
        except LaneClosed:
            pass  # reading finds out
        else:
            if state.lane.unsent:
                return
        state.writing = False
        self._loop.remove_writer(state.lane.fileno())

    # --- hearing

    def _readable(self, state: _Worker) -> None:
        try:
            messages = state.lane.receive()
        except LaneClosed:
            self._lane_ended(state)
            return
        except MessageInvalid as problem:
            self._condemn(state, ExitCause.NONSENSE, str(problem))
            return
        for message in messages:
            if state.cause is ExitCause.NONSENSE:
                return
            try:
                self._hear(state, message)
            except MessageInvalid as problem:
                self._condemn(state, ExitCause.NONSENSE, str(problem))
                return

    def _hear(self, state: _Worker, message: FromWorker) -> None:
        """Turn one answer into an event. Raises MessageInvalid when nobody asked for it or it cannot be true."""
        if not state.awaited:
            raise MessageInvalid(f"said {type(message).__name__} unasked")
        asked = state.awaited[0].asked
        if type(message) is Finished:
            event: PoolEvent = self._finished(state, asked, message)
        elif type(message) is Stored:
            event = self._stored(state, asked, message)
        else:
            event = self._loaded(state, asked, message)
        state.awaited.popleft()
        state.since_ns = time.monotonic_ns()
        self._on_event(event)

    def _finished(self, state: _Worker, asked: object, message: Finished) -> RunFinished:
        if type(asked) is not Run or asked.batch != message.batch:
            raise MessageInvalid(f"finished batch {message.batch}, which is not its oldest")
        batch, results, gather_ns, run_ns, scatter_ns = message
        if gather_ns < 0 or run_ns < 0 or scatter_ns < 0:
            raise MessageInvalid("times below zero")
        state.models[asked.model].contract.check_batch(asked, results)
        for item, result in zip(asked.items, results, strict=True):
            if result.status is ItemStatus.TOO_LARGE:
                state.held[item.ticket] = (asked.model, item)
        return RunFinished(state.id, batch, results, gather_ns, run_ns, scatter_ns)

    def _stored(self, state: _Worker, asked: object, message: Stored) -> Fetched:
        if type(asked) is not Fetch or asked.ticket != message.result.ticket:
            raise MessageInvalid(f"stored ticket {message.result.ticket}, which is not its oldest")
        model, item = state.held.pop(asked.ticket, (-1, None))
        if item is None:
            if message.result.status is not ItemStatus.FAILED:
                raise MessageInvalid(f"stored ticket {asked.ticket}, which it did not hold")
        else:
            state.models[model].contract.check_result(item, message.result, asked.out_capacity)
            if message.result.status is ItemStatus.TOO_LARGE:
                state.held[asked.ticket] = (model, item)
        return Fetched(state.id, message.result)

    def _loaded(self, state: _Worker, asked: object, message: Loaded | Refused) -> ModelLoaded | ModelRefused:
        if type(asked) is not int or asked != message.model:
            raise MessageInvalid(
                f"said {type(message).__name__} of model {message.model}, which is not its oldest"
            )
        if isinstance(message, Refused):
            del state.models[message.model]
            return ModelRefused(state.id, message.model, message.reason)
        if message.load_ns < 0 or message.memory_bytes < 0 or any(min(seed) < 1 for seed in message.seeds):
            raise MessageInvalid("measurements below zero")
        return ModelLoaded(state.id, message.model, message.seeds, message.load_ns, message.memory_bytes)

    # --- ending

    def _condemn(self, state: _Worker, cause: ExitCause, detail: str) -> None:
        """Have the worker killed for ``cause``; what it says from now on changes nothing but a running count."""
        if state.cause is not None:
            return
        state.cause = cause
        state.detail = detail
        state.since_ns = time.monotonic_ns()
        if self._supervisor.withdraw(state.id):
            self._loop.call_soon(self._gone, state, detail)
        else:
            self._supervisor.kill(state.id)
        self._watch()

    def _lane_ended(self, state: _Worker) -> None:
        """The worker's side of the lane is closed: its process is ending and touches the arena no more."""
        if state.ended:
            return
        state.ended = True
        if not state.awaited:
            state.since_ns = time.monotonic_ns()
        self._loop.remove_reader(state.lane.fileno())
        if state.cause is ExitCause.SUPERVISOR:
            self._gone(state, state.detail)
        else:
            self._watch()

    def _supervisor_said(self, message: FromSupervisor) -> None:
        if isinstance(message, Forked):
            self._forked(message)
        elif isinstance(message, Exited):
            state = self._workers.get(message.worker)
            if state is not None:
                self._exited(state, message.status)
        elif isinstance(message, ForkFailed):
            state = self._workers.get(message.worker)
            if state is not None:
                self._gone(state, message.reason)

    def _forked(self, message: Forked) -> None:
        state = self._workers.get(message.worker)
        if state is None:
            return
        state.pid = message.pid
        state.since_ns = time.monotonic_ns()
        self._on_event(WorkerStarted(state.id, message.pid))

    def _exited(self, state: _Worker, status: int) -> None:
        """Its process has ended; what it still said before counts."""
        while not state.ended and state.cause is not ExitCause.NONSENSE:
            self._readable(state)
        self._gone(state, state.detail or describe_status(status))

    def _supervisor_died(self, reason: str) -> None:
        """Its workers end with it; each is gone when its lane says so. Those not yet forked wait for the next one."""
        for state in list(self._workers.values()):
            if self._supervisor.is_waiting(state.id):
                continue
            state.cause = ExitCause.SUPERVISOR
            state.detail = reason
            if state.ended:
                self._gone(state, reason)

    def _gone(self, state: _Worker, detail: str) -> None:
        """Tell that a worker is no more, and forget it."""
        if self._workers.pop(state.id, None) is None:
            return
        if state.writing:
            self._loop.remove_writer(state.lane.fileno())
        if not state.ended:
            self._loop.remove_reader(state.lane.fileno())
        state.lane.close()
        batches = tuple(each.asked.batch for each in state.awaited if type(each.asked) is Run)
        head = state.awaited[0].asked if state.awaited else None
        loading = head if type(head) is int else -1
        cause = state.cause or (ExitCause.STOPPED if state.stopping and not state.awaited else ExitCause.DIED)
        self._on_event(WorkerExited(state.id, cause, batches, loading, detail))
        if self._empty is not None and not self._workers and not self._empty.done():
            self._empty.set_result(None)

    # --- watching the time

    def _watch(self) -> None:
        if self._watching is None:
            self._watching = self._loop.call_later(WATCH_INTERVAL_S, self._look)

    def _look(self) -> None:
        """End what takes too long; look again while anything is awaited."""
        self._watching = None
        now = time.monotonic_ns()
        for state in list(self._workers.values()):
            if state.pid or state.cause is not None:
                self._judge(state, now - state.since_ns)
        if any(
            state.awaited or state.stopping or state.ended or state.cause is not None
            for state in self._workers.values()
        ):
            self._watch()

    def _judge(self, state: _Worker, busy_ns: int) -> None:
        if state.cause is ExitCause.SUPERVISOR:
            return
        if state.cause is not None:
            if busy_ns > KILL_GRACE_NS:
                self._supervisor.abandon()
        elif state.ended:
            if busy_ns > EXIT_GRACE_NS:
                self._condemn(state, ExitCause.DIED, "it closed its lane and did not end")
        elif state.awaited:
            if busy_ns > state.awaited[0].timeout_ns:
                self._condemn(state, ExitCause.HUNG, _overdue(state.awaited[0]))
        elif state.stopping and busy_ns > EXIT_GRACE_NS:
            self._condemn(state, ExitCause.STOPPED, "told to stop, had to be killed")


def _overdue(awaited: _Awaited) -> str:
    what = "a load" if type(awaited.asked) is int else "a batch" if type(awaited.asked) is Run else "a fetch"
    return f"{what} took longer than {awaited.timeout_ns // 1_000_000} ms"


def describe_status(status: int) -> str:
    """What waitpid gave, for people."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        known = {each.value: each.name for each in signal.Signals}
        return f"killed by signal {number} ({known.get(number, 'unknown')})"
    return f"exited with status {os.WEXITSTATUS(status)}"
