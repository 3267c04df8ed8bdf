"""The pool: implements WorkerPort with real processes.

Callbacks of the event loop read lanes and turn what workers say into events; nothing blocks. What a worker says is
checked against what it was asked; a worker that says what cannot be true is killed. What takes too long is killed. A
worker counts as gone only when its process has ended, so that its memory can be used again.
Owner: the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from appliance.config.workers import WorkersConfig
from appliance.domain.exit_cause import ExitCause
from appliance.domain.load_wish import PLAIN_LOAD, LoadWish
from appliance.domain.model import RUN_TIMEOUT_PARAMETER, ModelVersion, run_timeout_ms
from appliance.workers.arena import Arena
from appliance.workers.codec import MessageInvalid
from appliance.workers.daemon.forms_on_disk import after_builder, for_worker, mark_form, watch_site
from appliance.workers.daemon.pending_replies import BackgroundTask
from appliance.workers.daemon.process import WorkerProcess, cause_of, describe_status, has_ended
from appliance.workers.daemon.watch import Watch
from appliance.workers.daemon.zygote_client import ZygoteClient
from appliance.workers.jail.support import kernel_support
from appliance.workers.lane import DaemonLane, LaneBlocked, LaneClosed, socket_pair
from appliance.workers.messages import (
    Build,
    CallRefused,
    EvictWeights,
    Exited,
    Forget,
    Forked,
    ForkFailed,
    FromWorker,
    FromZygote,
    KillSent,
    Load,
    PageIn,
    Ready,
    Stop,
    ToWorker,
    Unload,
)
from appliance.workers.port import (
    Fetch,
    FormBuilt,
    FormJudged,
    LaneMemory,
    Learn,
    ModelRefused,
    PoolEvent,
    PoolStatistics,
    Run,
    WorkerExited,
    WorkerStarted,
)
from appliance.workers.settings import WorkerSettings

NS_PER_MS: Final = 1_000_000
KILL_GRACE_NS: Final = 5_000_000_000
LAST_WORDS_READS_MAX: Final = 16
"""Far more than the buffer of a socket holds."""
BACKGROUND_PATIENCE: Final = 4
"""How many times as long as others a load in the background may take."""

_log = logging.getLogger(__name__)


class WorkerPool:
    """WorkerPort over forked processes. ``on_event`` only enqueues. ``rings`` makes the memory that a worker shares
    with the native front end; without, workers are reached by their sockets only."""

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
        self._workers: dict[int, WorkerProcess] = {}
        self._rings = rings
        self._support = kernel_support()
        self._arena = arena
        self._zygote = ZygoteClient(runtimes, loop, self._zygote_said, self._zygote_died)
        self._watch = Watch(loop, self._look)
        self._empty: asyncio.Future[None] | None = None

    async def open(self) -> None:
        """Start the zygote and wait until workers can be forked. Raises WorkerError when that fails."""
        await self._zygote.open()

    async def close(self, grace_s: float = 5.0) -> None:
        """Stop every worker, kill those that need longer than ``grace_s``, end the zygote."""
        for worker in list(self._workers):
            self.stop(worker)
        if self._workers:
            self._empty = self._loop.create_future()
            await asyncio.wait([self._empty], timeout=grace_s)
        await self._zygote.close()
        self._watch.cancel()
        for state in list(self._workers.values()):
            state.cause = state.cause or ExitCause.STOPPED
            self._gone(state, "killed at shutdown")

    def statistics(self) -> PoolStatistics:
        """Gauges of this moment."""
        return PoolStatistics(
            workers=len(self._workers),
            in_flight=sum(len(state.pending) for state in self._workers.values()),
            zygote_pid=self._zygote.pid,
            zygote_restarts=self._zygote.restarts,
        )

    # --- WorkerPort

    @property
    def rings(self) -> bool:
        """See WorkerPort."""
        return self._rings is not None

    def start(self, worker: int, group: int, settings: WorkerSettings) -> None:
        """Fork a worker; what is said to it before it runs waits in its lane. Without descriptors or memory for that it
        has died, of nothing that a model did."""
        assert worker not in self._workers, f"worker {worker} exists already"
        try:
            tensors = self._arena.attach(worker, group)
            memory = None if self._rings is None else self._rings()
            ours, theirs = socket_pair()
        except Exception as problem:  # noqa: BLE001 - whatever it is, other workers are not touched by it
            self._arena.detach(worker)
            self._on_event(
                WorkerExited(worker, ExitCause.DIED, (), -1, f"no worker could be started: {problem}")
            )
            return
        state = WorkerProcess(worker, DaemonLane(ours), memory)
        if settings.access is not None:
            state.jail.kept_from = self._support.kept_from
        self._workers[worker] = state
        try:
            self._zygote.fork(worker, settings, theirs, tensors.fd, memory)
        except MessageInvalid as problem:
            self._loop.call_soon(partial(self._gone, state, str(problem), blamed=True))

    def load(self, worker: int, model: int, version: ModelVersion, wish: LoadWish = PLAIN_LOAD) -> None:
        """Load a version; what nobody foresaw meanwhile refuses it."""
        state = self._workers.get(worker)
        if state is None:
            return  # WorkerExited is on its way
        try:
            load, run_timeout_ns = Load(model, for_worker(version), wish), self.run_timeout_ns(version)
            if not state.pending.loads:
                state.held.weigh()
            self._say(state, load)
        except Exception as error:  # noqa: BLE001  it is this version's reason, and no other's
            what = error if isinstance(error, MessageInvalid) else f"unforeseen {type(error).__name__}"
            self._on_event(ModelRefused(worker, model, str(what)))
            return
        state.owe_load(load, self._load_timeout_ns(wish.background), run_timeout_ns)
        self._expect(state, background=wish.background)

    def evict_weights(self, worker: int, model: int) -> None:
        """Let a model's weights leave memory."""
        self._ask_in_background(worker, EvictWeights(model), background=False)

    def page_in(self, worker: int, model: int) -> None:
        """Bring a model's weights back."""
        self._ask_in_background(worker, PageIn(model), background=False)

    def build_form(self, worker: int, model: int, version: ModelVersion, room_bytes: int = 0) -> None:
        """Build a packed form."""
        self._ask_in_background(worker, Build(model, for_worker(version), room_bytes), background=True)
        if state := self._workers.get(worker):
            stop = partial(self._condemn, state, ExitCause.NONSENSE)
            watch_site(self._loop, version, lambda: worker in self._workers, stop)

    def unload(self, worker: int, model: int) -> None:
        """Forget a model."""
        state = self._workers.get(worker)
        if state is not None:
            state.forget_model(model)
            self._send(state, Unload(model))

    def dispatch(self, worker: int, run: Run) -> None:
        """Give a batch to the worker."""
        state = self._workers.get(worker)
        if state is None:
            self._on_event(WorkerExited(worker, ExitCause.STOPPED, (run.batch,), -1, "it was gone already"))
            return
        state.pending.owe_run(run)
        self._ask(state, run)

    def fetch(self, worker: int, fetch: Fetch) -> None:
        """Answer a TOO_LARGE result. A worker that is gone has forgotten it: WorkerExited said so."""
        state = self._workers.get(worker)
        if state is None:
            return
        if fetch.out_capacity == 0:
            state.pending.forget_held(fetch.ticket)
            self._send(state, fetch)
            return
        state.pending.owe_fetch(fetch, self._config.run_timeout_ms * NS_PER_MS)
        self._ask(state, fetch)

    def run_timeout_ns(self, version: ModelVersion) -> int:
        """The model's own time, which was checked where it was read, or that of the configuration."""
        own_ms = run_timeout_ms(version.parameters.get(RUN_TIMEOUT_PARAMETER, ""))
        return (own_ms or self._config.run_timeout_ms) * NS_PER_MS

    def learn(self, worker: int, learn: Learn) -> None:
        """Let a worker with rings know a plan."""
        self._tell_of_plans(worker, learn)

    def forget(self, worker: int, plans: tuple[int, ...]) -> None:
        """Let a worker with rings forget plans."""
        self._tell_of_plans(worker, Forget(plans))

    def _tell_of_plans(self, worker: int, message: Learn | Forget) -> None:
        state = self._workers.get(worker)
        if state is not None and state.memory is not None:
            self._send(state, message)

    def memory(self, worker: int) -> LaneMemory | None:
        """What the worker shares with the native front end."""
        state = self._workers.get(worker)
        return None if state is None else state.memory

    def grown(self, worker: int) -> Mapping[int, int]:
        """See WorkerPort."""
        state = self._workers.get(worker)
        return state.held.grown() if state and not state.pending.loads else {}

    def stop(self, worker: int) -> None:
        """End the worker after what it holds."""
        state = self._workers.get(worker)
        if state is None or state.stopping or state.cause is not None:
            return
        state.stopping = True
        if self._zygote.withdraw(worker):
            state.cause = ExitCause.STOPPED
            self._loop.call_soon(self._gone, state, "never started")
            return
        if not state.pending.in_line:
            state.since_ns = time.monotonic_ns()
        self._send(state, Stop())
        self._watch.ask()

    def kill(self, worker: int, cause: ExitCause) -> None:
        """End the worker now."""
        state = self._workers.get(worker)
        if state is not None:
            self._condemn(state, cause, f"killed: {cause.value}")

    # --- saying

    def _ask(self, state: WorkerProcess, message: ToWorker, *, background: bool = False) -> None:
        """Say something that the worker now owes an answer to, in line or in the background."""
        self._expect(state, background=background)
        self._send(state, message)

    def _expect(self, state: WorkerProcess, *, background: bool) -> None:
        """The worker owes one more answer: for what it has nothing before, time runs from now on."""
        if background and state.pending.background == 1:
            state.background_ns = time.monotonic_ns()
        elif not background and state.pending.in_line == 1:
            state.since_ns = time.monotonic_ns()
        self._watch.ask()

    def _ask_in_background(self, worker: int, message: BackgroundTask, *, background: bool) -> None:
        """Ask for something that is done beside the line. A worker that is gone has said so by WorkerExited."""
        state = self._workers.get(worker)
        if state is not None:
            state.pending.expect_background(message, self._load_timeout_ns(background))
            self._ask(state, message, background=True)

    def _load_timeout_ns(self, background: bool) -> int:
        """How long something that is like a load may take. What gets only the time that others leave has more."""
        patience = BACKGROUND_PATIENCE if background else 1
        return self._config.load_timeout_ms * NS_PER_MS * patience

    def _send(self, state: WorkerProcess, message: ToWorker) -> None:
        """Send a message. What cannot be sent costs the worker: what it would have done is told to have failed."""
        try:
            self._say(state, message)
        except MessageInvalid as problem:
            self._condemn(state, ExitCause.DIED, str(problem))

    def _say(self, state: WorkerProcess, message: ToWorker) -> None:
        """Raise MessageInvalid for what is too large to be said."""
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
        if state.lane.unsent:
            self._loop.add_writer(state.lane.fileno(), self._writable, state)

    def _writable(self, state: WorkerProcess) -> None:
        try:
            state.lane.flush()
        except LaneClosed:
            pass  # reading finds out
        else:
            if state.memory is not None:
                state.memory.mail()
            if state.lane.unsent:
                return
        self._loop.remove_writer(state.lane.fileno())

    # --- hearing

    def _listen(self, state: WorkerProcess) -> None:
        self._loop.add_reader(state.lane.fileno(), partial(self._hear, state))

    def _hear(self, state: WorkerProcess) -> bool:
        """Turn what the worker said into events; false when there was nothing to read."""
        self._pardon()  # what it says may be of that time
        try:
            messages = state.lane.receive()
            if messages is None or state.cause is ExitCause.NONSENSE:
                return bool(messages)
            for message in messages:
                self._settle(state, message)
        except LaneClosed:
            self._lane_ended(state)
            return False
        except MessageInvalid as problem:
            self._condemn(state, ExitCause.NONSENSE, str(problem))
            self._loop.remove_reader(state.lane.fileno())
        return True

    def _settle(self, state: WorkerProcess, message: FromWorker) -> None:
        before, now_ns = state.pending.awaited, time.monotonic_ns()
        asked = state.pending.settle(message)
        if isinstance(message, FormJudged):
            self._on_event(mark_form(asked, message, shared=len(state.jail.names) > 1))
            return
        event = state.seen(message, asked, now_ns)
        after = state.pending.awaited
        if after.background is not before.background:
            state.background_ns = now_ns
        leaves = state.stopping and not state.pending
        if (leaves or after.in_line is not before.in_line) and state.cause is None:
            state.since_ns = now_ns
        if isinstance(message, FormBuilt):
            self.stop(state.id)  # it is told of when nothing more can be written to it
        else:
            self._on_event(event)

    # --- ending

    def _condemn(self, state: WorkerProcess, cause: ExitCause, detail: str) -> None:
        """Have the worker killed for ``cause``. What it finished before counts, unless it talked nonsense."""
        if state.cause is not None:
            return
        state.cause, state.detail = cause, detail
        state.since_ns = time.monotonic_ns()
        if self._zygote.withdraw(state.id):
            self._loop.call_soon(self._gone, state, detail)
        else:
            self._zygote.kill(state.id)
        self._watch.ask()

    def _lane_ended(self, state: WorkerProcess) -> None:
        """The worker's side of the lane is closed: its process is ending and touches no tensors any more."""
        if state.ended:
            return
        state.ended = True
        if not state.pending.in_line:
            state.since_ns = time.monotonic_ns()
        self._loop.remove_reader(state.lane.fileno())
        self._watch.ask()
        if state.orphaned and not state.pid:
            self._gone(state, state.detail)  # nobody said which process it is

    def _zygote_said(self, message: FromZygote) -> None:
        state = None if isinstance(message, Ready) else self._workers.get(message.worker)
        if state is None:
            return
        if isinstance(message, Forked):
            self._forked(state, message.pid)
        elif isinstance(message, Exited):
            self._hear_last_words(state)
            if (cause := cause_of(message.status)) is not ExitCause.DIED and not state.stopping:
                state.cause = state.cause or cause
            self._gone(state, state.jail.explain(state.detail or describe_status(message.status)))
        elif isinstance(message, KillSent):
            state.kill_sent = True
        elif isinstance(message, CallRefused):
            state.jail.refused(state.id, state.pid, message.number)
        elif isinstance(message, ForkFailed):
            self._gone(state, message.reason)

    def _forked(self, state: WorkerProcess, pid: int) -> None:
        state.pid = pid
        state.held.begin(pid, self._zygote.pid)
        state.since_ns = state.background_ns = time.monotonic_ns()
        self._on_event(WorkerStarted(state.id, pid, state.jail.kept_from))
        self._listen(state)  # not earlier: nothing it says may come before WorkerStarted

    def _hear_last_words(self, state: WorkerProcess) -> None:
        """Its process has ended; what it still said before counts. Another one that holds its side of the lane, because
        the worker left it behind, is heard no longer than that takes."""
        for _ in range(LAST_WORDS_READS_MAX):
            if state.ended or not self._hear(state):
                return

    def _zygote_died(self, reason: str) -> None:
        """Its workers end with it; each is gone when its process is. Those not yet forked wait for the next one."""
        for state in list(self._workers.values()):
            if self._zygote.is_waiting(state.id):
                continue
            state.orphaned = True
            state.cause = state.cause or ExitCause.ZYGOTE
            state.detail = state.detail or reason
            if not state.pid:
                self._listen(state)
        self._watch.ask()

    def _gone(self, state: WorkerProcess, detail: str, *, blamed: bool = False) -> None:
        """Tell that a worker is no more, and forget it. ``blamed``: it never was, because of what it was to load."""
        if self._workers.pop(state.id, None) is None:
            return
        self._loop.remove_writer(state.lane.fileno())
        if not state.ended:
            self._loop.remove_reader(state.lane.fileno())
        state.lane.close()
        self._arena.detach(state.id)
        cause = state.cause or (ExitCause.STOPPED if state.stopping and not state.pending else ExitCause.DIED)
        loading = state.pending.loading() if state.pid or blamed else -1
        exited = WorkerExited(state.id, cause, state.pending.batches(), loading, detail)
        version, built = state.pending.form
        said = None if cause is ExitCause.NONSENSE else built
        after_builder(self._loop, version, said, partial(self._ended, exited))

    def _ended(self, exited: WorkerExited, built: FormBuilt | None) -> None:
        if built is not None:
            self._on_event(built)
        self._on_event(exited)
        if self._empty is not None and not self._workers and not self._empty.done():
            self._empty.set_result(None)

    # --- watching the time

    def _pardon(self) -> None:
        """Leave time in which this process stood still out of what workers took."""
        if pause_ns := self._watch.standstill_ns():
            for state in self._workers.values():
                state.pardon(pause_ns, time.monotonic_ns())

    def _look(self) -> None:
        """End what takes too long; look again while anything is awaited."""
        self._pardon()
        now = time.monotonic_ns()
        for state in list(self._workers.values()):
            if state.pid or state.cause is not None:
                self._judge(state, now)
        if any(state.is_awaited for state in self._workers.values()):
            self._watch.ask()

    def _judge(self, state: WorkerProcess, now_ns: int) -> None:
        if state.orphaned:
            if state.pid and has_ended(state.pid):
                self._hear_last_words(state)
                self._gone(state, state.detail)
        elif state.cause is not None:
            if now_ns - state.since_ns > KILL_GRACE_NS:
                self._insist(state, now_ns)
        elif overdue := state.overdue(now_ns):
            self._condemn(state, *overdue)

    def _insist(self, state: WorkerProcess, now_ns: int) -> None:
        """A killed worker is still there. A zygote that has sent the signal waits for it as we do: it is asked once
        more, and replaced, which costs every other worker, only when it does not even answer."""
        if self._zygote.lacks_buffers_to_kill(state.id):
            _log.warning("the workers' zygote cannot be told to end worker process %d yet", state.pid)
            state.since_ns = now_ns
            return
        if not state.kill_sent:
            self._zygote.abandon()
            return
        _log.warning("worker process %d was killed and has not ended yet; its memory is not free", state.pid)
        state.kill_sent = False
        state.since_ns = now_ns
        self._zygote.kill(state.id)
