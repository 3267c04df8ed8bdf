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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from appliance.model import RUN_TIMEOUT_PARAMETER, ModelVersion
from appliance.workers.arena import Arena
from appliance.workers.cpus import cpu_problems
from appliance.workers.lane import DaemonLane, LaneBlocked, LaneClosed, SocketDaemonLane, socket_pair
from appliance.workers.messages import (
    Exited,
    Fetch,
    Forget,
    Forked,
    ForkFailed,
    FromSupervisor,
    Learn,
    Load,
    MessageInvalid,
    Run,
    Stop,
    ToWorker,
    Unload,
)
from appliance.workers.obligations import Obligations
from appliance.workers.port import (
    ExitCause,
    LaneMemory,
    ModelRefused,
    PoolEvent,
    WorkerExited,
    WorkerSettings,
    WorkerStarted,
)
from appliance.workers.supervision import Supervisor

NS_PER_MS: Final = 1_000_000
WATCH_INTERVAL_S: Final = 0.05
EXIT_GRACE_NS: Final = 1_000_000_000
KILL_GRACE_NS: Final = 5_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersConfig:
    """How workers run. ``cpus``: the i-th worker gets the i-th set, in turn; empty: no affinity. A batch that runs
    longer than ``run_timeout_ms`` (a model's parameter of that name overrides it) or a load that takes longer than
    ``load_timeout_ms`` ends the worker. ``memory_limit_bytes`` bounds each worker's private memory, 0: unbounded."""

    threads: int = field(
        default=1, metadata={"min": 1, "max": 1024, "help": "threads that one model run may use"}
    )
    cpus: tuple[tuple[int, ...], ...] = field(
        default=(),
        metadata={
            "help": "processor sets, given to workers in turn, such as [[0], [1]]; empty: any",
            "shape": "a list of lists of CPU numbers, such as [[0], [1]]",
            "check": cpu_problems,
        },
    )
    run_timeout_ms: int = field(
        default=10_000,
        metadata={"min": 1, "unit": "ms", "help": "a batch that runs longer ends its worker"},
    )
    load_timeout_ms: int = field(
        default=120_000,
        metadata={"min": 1, "unit": "ms", "help": "a model that loads longer ends its worker"},
    )
    memory_limit_bytes: int = field(
        default=0, metadata={"min": 0, "unit": "bytes", "help": "private memory of one worker; 0: unbounded"}
    )

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


class _Worker:
    """What the pool knows of one worker. ``since_ns`` is since when it has been busy with the oldest thing it owes, or
    since when its end has been awaited; ``cause`` why it is being killed; ``orphaned`` that its supervisor died."""

    __slots__ = (
        "cause", "detail", "ended", "id", "lane", "memory", "orphaned", "owes", "pid", "since_ns", "stopping",
        "writing",
    )  # fmt: skip

    def __init__(self, number: int, lane: DaemonLane, memory: LaneMemory | None) -> None:
        self.id = number
        self.lane = lane
        self.memory = memory
        self.owes = Obligations(number)
        self.pid = 0
        self.since_ns = 0
        self.cause: ExitCause | None = None
        self.detail = ""
        self.ended = False
        self.orphaned = False
        self.stopping = False
        self.writing = False


class WorkerPool:
    """WorkerPort over forked processes. ``on_event`` only enqueues.

    ``rings`` makes the memory that a worker shares with the native door; without, workers are reached by their sockets
    only.
    """

    def __init__(
        self,
        arena: Arena,
        config: WorkersConfig,
        loop: asyncio.AbstractEventLoop,
        on_event: Callable[[PoolEvent], None],
        runtimes: Sequence[str] = ("onnx",),
        rings: Callable[[], LaneMemory] | None = None,
    ) -> None:
        self._config = config
        self._loop = loop
        self._on_event = on_event
        self._workers: dict[int, _Worker] = {}
        self._rings = rings
        self._supervisor = Supervisor(
            (arena.fd, arena.size), runtimes, loop, self._supervisor_said, self._supervisor_died
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
            in_flight=sum(len(state.owes) for state in self._workers.values()),
            supervisor_pid=self._supervisor.pid,
            supervisor_restarts=self._supervisor.restarts,
        )

    # --- WorkerPort

    @property
    def rings(self) -> bool:
        """See WorkerPort."""
        return self._rings is not None

    def start(self, worker: int, settings: WorkerSettings) -> None:
        """Fork a worker; what is said to it before it runs waits in its lane."""
        assert worker not in self._workers, f"worker {worker} exists already"
        ours, theirs = socket_pair()
        memory = None if self._rings is None else self._rings()
        state = _Worker(worker, SocketDaemonLane(ours), memory)
        self._workers[worker] = state
        self._supervisor.fork(worker, settings, theirs, memory)

    def load(self, worker: int, model: int, version: ModelVersion) -> None:
        """Load a version; a ``run_timeout_ms`` that is no number refuses it."""
        state = self._workers.get(worker)
        if state is None:
            return  # WorkerExited is on its way
        run_timeout_ns = self.run_timeout_ns(version)
        if not run_timeout_ns:
            said = version.parameters[RUN_TIMEOUT_PARAMETER]
            reason = (
                f"{version.key}: parameter {RUN_TIMEOUT_PARAMETER} must be milliseconds above 0, not '{said}'"
            )
            self._on_event(ModelRefused(worker, model, reason))
            return
        state.owes.owe_load(model, version, self._config.load_timeout_ms * NS_PER_MS, run_timeout_ns)
        self._ask(state, Load(model, version))

    def unload(self, worker: int, model: int) -> None:
        """Forget a model."""
        state = self._workers.get(worker)
        if state is not None:
            state.owes.forget_model(model)
            self._send(state, Unload(model))

    def dispatch(self, worker: int, run: Run) -> None:
        """Give a batch to the worker."""
        state = self._workers.get(worker)
        if state is None:
            self._on_event(
                WorkerExited(worker, ExitCause.DIED, (run.batch,), -1, "the worker was gone already")
            )
            return
        state.owes.owe_run(run)
        self._ask(state, run)

    def fetch(self, worker: int, fetch: Fetch) -> None:
        """Answer a TOO_LARGE result. A worker that is gone has forgotten it: WorkerExited said so."""
        state = self._workers.get(worker)
        if state is None:
            return
        if fetch.out_capacity == 0:
            state.owes.forget_held(fetch.ticket)
            self._send(state, fetch)
            return
        state.owes.owe_fetch(fetch, self._config.run_timeout_ms * NS_PER_MS)
        self._ask(state, fetch)

    def run_timeout_ns(self, version: ModelVersion) -> int:
        """The model's own time, or that of the configuration; 0 when it is no number above 0."""
        said = version.parameters.get(RUN_TIMEOUT_PARAMETER, str(self._config.run_timeout_ms))
        return int(said) * NS_PER_MS if said.isdecimal() else 0

    def learn(self, worker: int, learn: Learn) -> None:
        """Let a worker with rings know a plan."""
        state = self._workers.get(worker)
        if state is not None and state.memory is not None:
            self._send(state, learn)

    def forget(self, worker: int, plans: tuple[int, ...]) -> None:
        """Let a worker with rings forget plans."""
        state = self._workers.get(worker)
        if state is not None and state.memory is not None:
            self._send(state, Forget(plans))

    def memory(self, worker: int) -> LaneMemory | None:
        """What the worker shares with the native door."""
        state = self._workers.get(worker)
        return None if state is None else state.memory

    def stop(self, worker: int) -> None:
        """End the worker after what it holds."""
        state = self._workers.get(worker)
        if state is None or state.stopping or state.cause is not None:
            return
        state.stopping = True
        if self._supervisor.withdraw(worker):
            state.cause = ExitCause.STOPPED
            self._loop.call_soon(self._gone, state, "never started")
            return
        if not state.owes:
            state.since_ns = time.monotonic_ns()
        self._send(state, Stop())
        self._watch()

    def kill(self, worker: int, cause: ExitCause) -> None:
        """End the worker now."""
        state = self._workers.get(worker)
        if state is not None:
            self._condemn(state, cause, f"killed: {cause.value}")

    # --- saying

    def _ask(self, state: _Worker, message: ToWorker) -> None:
        """Say something that the worker now owes an answer to."""
        if len(state.owes) == 1:
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
        if state.memory is not None:
            state.memory.mail()
        if state.lane.unsent and not state.writing:
            state.writing = True
            self._loop.add_writer(state.lane.fileno(), self._writable, state)

    def _writable(self, state: _Worker) -> None:
        try:
            state.lane.flush()
        except LaneClosed:
            pass  # reading finds out
        else:
            if state.memory is not None:
                state.memory.mail()
            if state.lane.unsent:
                return
        state.writing = False
        self._loop.remove_writer(state.lane.fileno())

    # --- hearing

    def _listen(self, state: _Worker) -> None:
        self._loop.add_reader(state.lane.fileno(), partial(self._hear, state))

    def _hear(self, state: _Worker) -> bool:
        """Turn what the worker said into events; false when it said nothing."""
        try:
            messages = state.lane.receive()
            if state.cause is ExitCause.NONSENSE:
                return bool(messages)
            for message in messages:
                event = state.owes.settle(message)
                if state.cause is None:
                    state.since_ns = time.monotonic_ns()
                self._on_event(event)
        except LaneClosed:
            self._lane_ended(state)
            return False
        except MessageInvalid as problem:
            self._condemn(state, ExitCause.NONSENSE, str(problem))
        return True

    # --- ending

    def _condemn(self, state: _Worker, cause: ExitCause, detail: str) -> None:
        """Have the worker killed for ``cause``. What it finished before counts, unless it talked nonsense."""
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
        if not state.owes:
            state.since_ns = time.monotonic_ns()
        self._loop.remove_reader(state.lane.fileno())
        if state.orphaned:
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
        self._listen(state)  # not earlier: nothing it says may come before WorkerStarted

    def _exited(self, state: _Worker, status: int) -> None:
        """Its process has ended; what it still said before counts."""
        while not state.ended and self._hear(state):
            pass
        self._gone(state, state.detail or describe_status(status))

    def _supervisor_died(self, reason: str) -> None:
        """Its workers end with it; each is gone when its lane says so. Those not yet forked wait for the next one."""
        for state in list(self._workers.values()):
            if self._supervisor.is_waiting(state.id):
                continue
            state.orphaned = True
            state.cause = state.cause or ExitCause.SUPERVISOR
            state.detail = state.detail or reason
            if state.ended:
                self._gone(state, state.detail)
            elif not state.pid:
                self._listen(state)

    def _gone(self, state: _Worker, detail: str) -> None:
        """Tell that a worker is no more, and forget it."""
        if self._workers.pop(state.id, None) is None:
            return
        if state.writing:
            self._loop.remove_writer(state.lane.fileno())
        if not state.ended:
            self._loop.remove_reader(state.lane.fileno())
        state.lane.close()
        cause = state.cause or (ExitCause.STOPPED if state.stopping and not state.owes else ExitCause.DIED)
        self._on_event(WorkerExited(state.id, cause, state.owes.batches(), state.owes.loading(), detail))
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
            state.owes or state.stopping or state.ended or state.cause is not None
            for state in self._workers.values()
        ):
            self._watch()

    def _judge(self, state: _Worker, busy_ns: int) -> None:
        if state.orphaned:
            return
        if state.cause is not None:
            if busy_ns > KILL_GRACE_NS:
                self._supervisor.abandon()
        elif state.ended:
            if busy_ns > EXIT_GRACE_NS:
                self._condemn(state, ExitCause.DIED, "it closed its lane and did not end")
        elif state.owes:
            if busy_ns > state.owes.timeout_ns:
                self._condemn(state, ExitCause.HUNG, _overdue(state.owes))
        elif state.stopping and busy_ns > EXIT_GRACE_NS:
            self._condemn(state, ExitCause.STOPPED, "told to stop, had to be killed")


def _overdue(owes: Obligations) -> str:
    return f"{owes.oldest} took longer than {owes.timeout_ns // NS_PER_MS} ms"


def describe_status(status: int) -> str:
    """What waitpid gave, for people."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        known = {each.value: each.name for each in signal.Signals}
        return f"killed by signal {number} ({known.get(number, 'unknown')})"
    return f"exited with status {os.WEXITSTATUS(status)}"
