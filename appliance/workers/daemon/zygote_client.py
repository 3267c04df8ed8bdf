"""The daemon's side of the zygote process: starts it, talks to it, starts it again when it dies.

Requests wait while no zygote is ready. Nothing here knows what a worker does. Owner: the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, cast

from appliance.domain.errors import WorkerError
from appliance.workers.codec import MessageInvalid
from appliance.workers.daemon.standard_error import StandardError
from appliance.workers.messages import (
    FROM_ZYGOTE,
    Exited,
    Fork,
    ForkFailed,
    FromZygote,
    Kill,
    Ready,
    ToZygote,
    decode,
    encode,
)
from appliance.workers.port import LaneMemory
from appliance.workers.settings import WorkerSettings

CONTROL_BYTES_MAX: Final = 64 << 10
ZYGOTE: Final = -1
"""In the place of a worker's id."""
READY_TIMEOUT_S: Final = 60.0
ENDING_TIMEOUT_S: Final = 0.1
RESTART_DELAY_FIRST_S: Final = 0.05
RESTART_DELAY_MAX_S: Final = 5.0
STABLE_S: Final = 30.0

ENVIRONMENT: Final = (
    ("ORT_DISABLE_TELEMETRY", "1"),
    ("OPENBLAS_NUM_THREADS", "1"),
    ("OMP_NUM_THREADS", "1"),
    ("MALLOC_MMAP_THRESHOLD_", str(1 << 20)),
    ("MALLOC_TRIM_THRESHOLD_", str(1 << 20)),
    ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),  # as NVML counts; else the fastest is the first
    ("MALLOC_ARENA_MAX", "1"),  # what a thread that is gone has freed shall not be kept for the next one
)

PASSED_ON: Final = frozenset(
    {"PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV"}
)
NOT_PASSED_ON: Final = frozenset({"CUDA_VISIBLE_DEVICES"})
"""With it a worker would count GPUs otherwise than NVML does, and `gpus` of a model means that count. A worker that is
to see one device alone has it set when it is forked."""
PASSED_ON_PREFIXES: Final = (
    "LC_",
    "PYTHON",
    "ORT_",
    "CUDA_",
    "NVIDIA_",
    "MKL_",
    "KMP_",
    "GOMP_",
    "MALLOC_",
    "GLIBC_",
)

_log = logging.getLogger(__name__)


class _Request(NamedTuple):
    """``lane`` is closed when the request was sent; the descriptor ``tensors`` and what is ``shared`` with the native
    front end stay their owners'."""

    message: ToZygote
    lane: socket.socket | None = None
    tensors: int = -1
    shared: LaneMemory | None = None

    def descriptors(self, words: int) -> list[int]:
        """What goes with the message; ``words`` is where the worker writes its standard error."""
        if self.lane is None:
            return []
        rings = [] if self.shared is None else [self.shared.fileno(), self.shared.doorbell()]
        return [self.lane.fileno(), words, *rings, self.tensors]


class _Backoff:
    """How long to wait before the next start; the wait doubles while processes do not live long."""

    def __init__(self) -> None:
        self._delay_s = RESTART_DELAY_FIRST_S
        self._started_s = 0.0

    def started(self, now_s: float) -> None:
        """Note the start of a process."""
        self._started_s = now_s

    def ended(self, now_s: float) -> None:
        """Note its end: one that lived long is started again at once."""
        if now_s - self._started_s > STABLE_S:
            self._delay_s = RESTART_DELAY_FIRST_S

    def next_delay_s(self) -> float:
        """The wait before this start."""
        delay_s, self._delay_s = self._delay_s, min(self._delay_s * 2, RESTART_DELAY_MAX_S)
        return delay_s


class ZygoteClient:
    """One zygote process at a time.

    ``on_message`` gets what it says, in order; ``on_death`` is told once for each process that ended, with a text.
    """

    def __init__(
        self,
        runtimes: Sequence[str],
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[FromZygote], None],
        on_death: Callable[[str], None],
    ) -> None:
        self._runtimes = tuple(runtimes)
        self._loop = loop
        self._on_message = on_message
        self._on_death = on_death
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._words: dict[int, StandardError] = {}
        """Of workers by their ids, and of the zygote."""
        self._ready: asyncio.Future[None] | None = None
        self._requests: deque[_Request] = deque()
        self._writing = False
        self._closing = False
        self._again: asyncio.TimerHandle | None = None
        """Set while the kernel has no buffers for what is to be said."""
        self._restart: asyncio.TimerHandle | None = None
        self._backoff = _Backoff()
        self.restarts = 0

    @property
    def pid(self) -> int:
        """Process number of the zygote, 0 when there is none at the moment."""
        return 0 if self._process is None else self._process.pid

    async def open(self) -> None:
        """Start the process and wait until it serves. Raises WorkerError when it cannot."""
        try:
            self._spawn()
        except OSError as problem:
            raise WorkerError(f"the workers' zygote could not be started: {problem}") from problem
        assert self._ready is not None
        try:
            await asyncio.wait_for(asyncio.shield(self._ready), READY_TIMEOUT_S)
        except TimeoutError:
            await self.close()
            raise WorkerError(
                f"the workers' zygote was not ready within {READY_TIMEOUT_S:.0f} s; "
                f"is this machine out of memory or its disk very slow?"
            ) from None

    def fork(
        self,
        worker: int,
        settings: WorkerSettings,
        lane: socket.socket,
        tensors: int,
        shared: LaneMemory | None = None,
    ) -> None:
        """Ask for a worker, which maps what is behind the descriptor ``tensors``; takes ownership of its end of the
        lane. Raises MessageInvalid for settings that are more than a zygote is told at once."""
        message = Fork(worker, settings)
        try:
            length = len(encode(message))
            if length > CONTROL_BYTES_MAX:
                raise MessageInvalid(
                    f"what the worker may read takes {length} bytes to say, more than {CONTROL_BYTES_MAX}"
                )
        except MessageInvalid:
            lane.close()
            raise
        self._requests.append(_Request(message, lane, tensors, shared))
        self._send_waiting()

    def kill(self, worker: int) -> None:
        """Ask for the end of a worker that was forked: before other workers, whose descriptors may find no room."""
        self._requests.appendleft(_Request(Kill(worker)))
        self._send_waiting()

    def lacks_buffers_to_kill(self, worker: int) -> bool:
        """Whether the worker's end could not be asked for yet, through no fault of the zygote."""
        return self._again is not None and any(each.message == Kill(worker) for each in self._requests)

    def is_waiting(self, worker: int) -> bool:
        """Whether the worker's fork was not yet given to a zygote."""
        return any(_is_fork(waiting.message, worker) for waiting in self._requests)

    def withdraw(self, worker: int) -> bool:
        """Take back a fork that no zygote has got yet; False when it is too late."""
        for waiting in self._requests:
            if _is_fork(waiting.message, worker):
                self._requests.remove(waiting)
                if waiting.lane is not None:
                    waiting.lane.close()
                self._hear_no_more(worker)
                return True
        return False

    def abandon(self) -> None:
        """Kill a zygote that no longer does what it is asked; its death follows, and a new one."""
        if self._process is not None:
            self._process.kill()

    async def close(self) -> None:
        """End the process, and with it every worker that is left."""
        self._closing = True
        if self._restart is not None:
            self._restart.cancel()
        for waiting in self._requests:
            if waiting.lane is not None:
                waiting.lane.close()
        self._requests.clear()
        self._drop_control()
        if self._process is not None:
            self._process.kill()
            await self._loop.run_in_executor(None, self._process.wait)
            self._process = None

    def _spawn(self) -> None:
        """Raises OSError when there is no room for a process or its descriptors."""
        self._backoff.started(self._loop.time())
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        arguments = [theirs.fileno(), os.getpid(), *self._runtimes]
        command = [sys.executable, "-P", "-m", "appliance.workers.child.zygote", *map(str, arguments)]
        with theirs:
            try:
                words = self._words_of(ZYGOTE)
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=words.writable,
                    pass_fds=(theirs.fileno(),),
                    env=environment_of_workers(),
                )
            except OSError:
                ours.close()
                self._hear_no_more(ZYGOTE)
                raise
        words.given()
        self._control = ours
        if self._ready is None or self._ready.done():
            self._ready = self._loop.create_future()
        self._loop.add_reader(ours.fileno(), self._receive)

    def _receive(self) -> None:
        control = self._control
        assert control is not None
        while control is self._control:
            try:
                packet = control.recv(CONTROL_BYTES_MAX)
                message = cast(FromZygote, decode(packet, FROM_ZYGOTE)) if packet else None
            except BlockingIOError:
                return
            except (ConnectionError, MessageInvalid):
                message = None
            if message is None:
                self._died()
                return
            self._take(message)

    def _take(self, message: FromZygote) -> None:
        if not isinstance(message, Ready):
            if isinstance(message, Exited | ForkFailed):
                self._hear_no_more(message.worker)
            self._on_message(message)
            return
        assert self._ready is not None
        if not self._ready.done():
            self._ready.set_result(None)
        self._send_waiting()

    def _send_waiting(self) -> None:
        """Send requests as far as a ready zygote takes them."""
        if self._control is None or self._ready is None or not self._ready.done() or self._again is not None:
            return
        while self._requests:
            request = self._requests[0]
            words = None
            try:
                if isinstance(request.message, Fork):
                    words = self._words_of(request.message.worker)
                descriptors = request.descriptors(words.writable if words else -1)
                socket.send_fds(self._control, [encode(request.message)], descriptors)
            except BlockingIOError:
                self._watch_writing(True)
                return
            except ConnectionError:
                return  # its death is about to be read
            except OSError as problem:
                _log.error("the workers' zygote cannot be told anything (%s); it is tried again", problem)
                self._watch_writing(False)
                self._again = self._loop.call_later(RESTART_DELAY_FIRST_S, self._send_again)
                return
            self._requests.popleft()
            if request.lane is not None:
                request.lane.close()
            if words is not None:
                words.given()
        self._watch_writing(False)

    def _send_again(self) -> None:
        self._again = None
        self._send_waiting()

    def _watch_writing(self, wanted: bool) -> None:
        if wanted == self._writing or self._control is None:
            return
        self._writing = wanted
        if wanted:
            self._loop.add_writer(self._control.fileno(), self._send_waiting)
        else:
            self._loop.remove_writer(self._control.fileno())

    def _words_of(self, process: int) -> StandardError:
        """Raises OSError when there are no descriptors for it."""
        if process not in self._words:
            name = "workers" if process == ZYGOTE else f"worker {process}"
            self._words[process] = StandardError(self._loop, partial(_log.warning, "%s: %s", name))
        return self._words[process]

    def _hear_no_more(self, process: int) -> None:
        """A process has ended, or is not started."""
        words = self._words.pop(process, None)
        if words is not None:
            words.close()

    def _drop_control(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        for process in [each for each in self._words if not self.is_waiting(each)]:
            self._hear_no_more(process)
        if self._control is not None:
            self._watch_writing(False)
            self._loop.remove_reader(self._control.fileno())
            self._control.close()
            self._control = None

    def _died(self) -> None:
        process = self._process
        assert process is not None
        words = self._words[ZYGOTE]
        self._drop_control()
        status = _status_of(process)
        self._process = None
        reason = f"zygote {process.pid} ended with status {status}"
        first_start = self._ready is not None and not self._ready.done() and self.restarts == 0
        if first_start and self._ready is not None:
            self._ready.set_exception(WorkerError(f"{reason} before it was ready: {words.last_words}"))
            return
        _log.warning("%s; starting another", reason)
        self._requests = deque(waiting for waiting in self._requests if not isinstance(waiting.message, Kill))
        self._on_death(reason)
        if not self._closing:
            self._start_again()

    def _start_again(self) -> None:
        """After a delay that grows while zygotes do not live long."""
        self._backoff.ended(self._loop.time())
        self.restarts += 1
        self._ready = self._loop.create_future()
        self._spawn_later()

    def _spawn_later(self) -> None:
        self._restart = self._loop.call_later(self._backoff.next_delay_s(), self._try_to_spawn)

    def _try_to_spawn(self) -> None:
        """Until it can be started: without it no model serves, and what it lacks now may be there in a moment."""
        try:
            self._spawn()
        except OSError as problem:
            _log.error("the workers' zygote could not be started (%s); it is tried again", problem)
            self._spawn_later()


def _is_fork(message: ToZygote, worker: int) -> bool:
    return isinstance(message, Fork) and message.worker == worker


def _status_of(process: subprocess.Popen[bytes]) -> int:
    """How a process ended that is ending, or, when it does not end, that was made to."""
    try:
        return process.wait(ENDING_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def environment_of_workers() -> dict[str, str]:
    """What runtimes must find set before they are imported, and of the daemon's environment what they may want: no
    more, for it can hold passwords."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in PASSED_ON or (name.startswith(PASSED_ON_PREFIXES) and name not in NOT_PASSED_ON)
    }
    environment.update(ENVIRONMENT)
    root = Path(__file__).resolve().parents[3]
    if root != Path(sysconfig.get_path("purelib")).resolve():  # run from a source tree
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{root}{os.pathsep}{inherited}" if inherited else str(root)
    return environment
