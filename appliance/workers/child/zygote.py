"""The zygote process: imports the runtimes once, forks workers from itself, says when they end.

Single-threaded, and it has no session, so a fork of it is a clean start for a worker. Only this process, their parent,
ever signals a worker, so a process number that was given to another process is never hit. It lives no longer than the
daemon, and the workers no longer than it. What a worker has forked and leaves behind is killed with it.

Run as ``python -m appliance.workers.child.zygote CONTROL_FD DAEMON_PID RUNTIME ...``.
"""

from __future__ import annotations

import gc
import mmap
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final

from appliance.domain.errors import ApplianceError
from appliance.process.heap import trim_heap
from appliance.process.life import adopt_orphans, die_with_parent, ignore_terminal_signals, rename
from appliance.process.priority import USUAL_TURN_NS, take_turns
from appliance.runtimes.runtime import AbsentRuntime, Runtime, extra_devices, extra_files, open_runtimes
from appliance.workers.child.form_builder import prepare_site
from appliance.workers.child.leased import import_native, open_ring_lane
from appliance.workers.child.refusals import Refusals
from appliance.workers.child.tensors import region_of
from appliance.workers.child.worker import Worker
from appliance.workers.confinement import (
    DOORBELL_DESCRIPTOR,
    LANE_DESCRIPTOR,
    MEMORY_DESCRIPTOR,
    arrange,
    close_others,
    confine,
    confine_all,
)
from appliance.workers.forms import processor
from appliance.workers.jail.cgroup import WorkerCgroups, enter
from appliance.workers.jail.entry import Jail, close_memory, runtime_files
from appliance.workers.jail.support import kernel_support
from appliance.workers.lane import LaneClosed, SocketWorkerLane, WorkerLane
from appliance.workers.messages import (
    TO_ZYGOTE,
    CallRefused,
    Exited,
    Fork,
    Forked,
    ForkFailed,
    FromZygote,
    Kill,
    KillSent,
    Ready,
    decode,
    encode,
)

CONTROL_BYTES_MAX: Final = 64 << 10
DESCRIPTORS_MAX: Final = 5
STANDARD_ERROR: Final = 2
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


class Zygote:
    """Serves fork and kill requests of one control socket."""

    def __init__(self, control: socket.socket, runtimes: Mapping[str, Runtime]) -> None:
        self._control = control
        self._runtimes = runtimes
        self._pid = os.getpid()
        self._workers: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._wakeup, wakeup_end = socket.socketpair()
        self._wakeup.setblocking(False)
        wakeup_end.setblocking(False)
        self._wakeup_end = wakeup_end
        self._cgroups = WorkerCgroups()
        self._watch = select.poll()
        self._refusals = Refusals(self._watch, self._say_refused)
        extra = chain.from_iterable(map(extra_files, runtimes.values()))
        devices = chain.from_iterable(map(extra_devices, runtimes.values()))
        self._jail = Jail(kernel_support(), (*runtime_files(), *extra), devices, listens=True)

    def serve(self) -> None:
        """Until the daemon closes the control socket."""
        signal.set_wakeup_fd(self._wakeup_end.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _note)
        processor()  # known to all workers by this, which ask for it with each load
        self._say(Ready(tuple(self._runtimes)))
        self._watch.register(self._control, select.POLLIN)
        self._watch.register(self._wakeup, select.POLLIN)
        _settle()
        while True:
            found = self._watch.poll()
            self._refusals.take(found)
            ready = {descriptor for descriptor, _ in found}
            if self._wakeup.fileno() in ready:
                self._reap()
            if self._control.fileno() in ready and not self._take_request():
                return

    def _take_request(self) -> bool:
        """Serve one request; False when the daemon is gone."""
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._control, CONTROL_BYTES_MAX, DESCRIPTORS_MAX)
        except ConnectionError:
            return False
        if not packet:
            return False
        request = decode(packet, TO_ZYGOTE)
        if isinstance(request, Fork):
            self._fork(request, descriptors)
        elif isinstance(request, Kill):
            self._kill(request.worker)
        return True

    def _fork(self, request: Fork, descriptors: Sequence[int]) -> None:
        """``descriptors``: the worker's end of its lane; its standard error; for a worker with rings, their memory and
        the doorbell; and the memory of its tensors."""
        try:
            if len(descriptors) > 3 and import_native():
                _settle()
            cgroup = self._cgroups.make(request.worker, request.settings, os.fstat(descriptors[-1]).st_size)
            pid = os.fork()
        except (OSError, ImportError) as problem:
            _close(descriptors)
            self._cgroups.end(request.worker)
            self._say(ForkFailed(request.worker, f"fork failed: {problem}"))
            return
        if pid == 0:
            self._become_worker(request, descriptors, cgroup)
        _close(descriptors)
        self._workers[pid] = request.worker
        self._pids[request.worker] = pid
        self._say(Forked(request.worker, pid))

    def _become_worker(self, request: Fork, descriptors: Sequence[int], cgroup: Path | None) -> None:
        """In the child: confine, serve, leave. Never returns."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for end in (self._control, self._wakeup, self._wakeup_end):
                end.close()
            lane_end, words, *ring, tensors = descriptors
            # Of its own: what is set on a description holds for all that share it.
            os.dup2(words, STANDARD_ERROR)
            enter(cgroup)
            arena = region_of(mmap.mmap(tensors, 0))
            arrange([lane_end, *ring])
            confine(self._pid, request.settings)
            close_others(1 + len(ring), self._enter_jail(request))
            # Nothing has asked CUDA for devices yet, which looks once in its life.
            if request.settings.visible:
                os.environ[VISIBLE] = request.settings.visible
            rename("appliance-wkr")
            end = socket.socket(fileno=LANE_DESCRIPTOR)
            lane: WorkerLane = SocketWorkerLane(end)
            leased = None
            if ring:
                lane, leased = open_ring_lane(end, MEMORY_DESCRIPTOR, DOORBELL_DESCRIPTOR, arena)
            with suppress(LaneClosed):  # the daemon is gone
                Worker(request.worker, lane, arena, self._runtimes, request.settings, leased).serve()
            status = 0
        except BaseException as problem:  # noqa: BLE001 - said, and the process ends
            os.write(
                STANDARD_ERROR,
                f"appliance worker {os.getpid()}: {type(problem).__name__}: {problem}\n".encode(),
            )
        finally:
            os._exit(status)

    def _enter_jail(self, request: Fork) -> list[int]:
        """In the child, which has heard of no model yet; gives what must stay open for it. Raises OSError."""
        settings, access = request.settings, request.settings.access
        if access is None:
            return []
        site = "" if access.site is None else prepare_site(access.site, self._runtimes)
        if site and settings.user:
            os.chown(site, *settings.user)
        entered = self._jail.enter(access, site, settings.user)
        if entered.listener >= 0:
            self._refusals.hand_over(request.worker, entered.listener)
        return entered.kept

    def _kill(self, worker: int) -> None:
        pid = self._pids.get(worker)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)  # what it has forked ends when it has
        self._say(KillSent(worker))

    def _reap(self) -> None:
        """Say which workers have ended, once what they leave behind is told to end, too."""
        self._wakeup.recv(4096)
        ended = list(_ended_children())
        self._cgroups.sweep()
        self._kill_strays()
        for pid, status in ended:
            worker = self._workers.pop(pid, None)
            if worker is not None:
                del self._pids[worker]
                self._refusals.forget(worker)
                self._cgroups.end(worker)
                self._say(Exited(worker, status))

    def _kill_strays(self) -> None:
        """Children that are no workers were left behind by some. Theirs come here in their turn."""
        with suppress(OSError):  # the kernel can be built without such lists, and a container hide them
            for child in map(int, Path(f"/proc/self/task/{self._pid}/children").read_text().split()):
                if child not in self._workers:
                    os.kill(child, signal.SIGKILL)

    def _say_refused(self, worker: int, number: int) -> None:
        """Before the worker goes on, which waits for no daemon that is busy: then that is not told."""
        with suppress(BlockingIOError):
            self._control.send(encode(CallRefused(worker, number)), socket.MSG_DONTWAIT)

    def _say(self, message: FromZygote) -> None:
        self._control.send(encode(message))


def _settle() -> None:
    """Do once what every worker would do to memory that it has from here, and have copied for itself by that: sweep
    what is unused, of the interpreter and of the allocator."""
    gc.collect()
    gc.freeze()
    trim_heap()


def _ended_children() -> Iterator[tuple[int, int]]:
    """Process number and status of each that has ended."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, status


def _close(descriptors: Sequence[int]) -> None:
    for each in descriptors:
        os.close(each)


def _note(number: int, frame: object) -> None:
    """Signal handler that does nothing: the wake-up descriptor tells the loop."""


def main(arguments: list[str]) -> int:
    """Entry of the process; gives its exit status."""
    control_fd, daemon = map(int, arguments[:2])
    die_with_parent(daemon)
    adopt_orphans()
    ignore_terminal_signals()
    rename("appliance-zyg")
    confine_all()
    os.umask(0o077)  # a packed form is as private as the directory that it is built in
    if not kernel_support().landlock:
        close_memory()  # or a worker of the same user could write to it
    take_turns(USUAL_TURN_NS)  # not those of the daemon, for the workers' sake
    control = socket.socket(fileno=control_fd)
    try:
        runtimes = open_runtimes(arguments[2:])
    except ApplianceError as problem:
        print(f"appliance workers: {problem}", file=sys.stderr)
        return 2
    for runtime in runtimes.values():
        if isinstance(runtime, AbsentRuntime):
            print(
                f"runtime '{runtime.name}' cannot be had here: {runtime.reason}", file=sys.stderr, flush=True
            )
    try:
        Zygote(control, runtimes).serve()
    except ConnectionError:
        return 0  # the daemon went away while something was said to it
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main(sys.argv[1:]))
