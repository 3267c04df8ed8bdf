"""One worker process as the pool knows it, when it has had its time, and whether it is there at all."""

from __future__ import annotations

import os
import select
import signal
from typing import Final

from appliance.workers.cpus import bind, bound_to, unbind
from appliance.workers.daemon.obligations import Obligations
from appliance.workers.lane import DaemonLane
from appliance.workers.port import ExitCause, LaneMemory, Runner
from appliance.workers.thread_times import spent_by

EXIT_GRACE_NS: Final = 1_000_000_000


class WorkerProcess:
    """What the pool knows of one worker. ``since_ns`` is since when it has been busy with the oldest thing it owes, or
    since when its end has been awaited, ``aside_ns`` since when with what it does beside; ``movable``: the thread that
    runs requests is the only one, and may be given a processor; ``processor``: that one, or -1; ``cause`` why it is
    being killed, ``kill_sent`` that its supervisor has said so; ``orphaned`` that its supervisor died. Owner: the
    pool."""

    __slots__ = (
        "aside_ns", "cause", "detail", "ended", "id", "kill_sent", "lane", "memory", "movable", "orphaned", "owes",
        "pid", "processor", "since_ns", "stopping", "writing",
    )  # fmt: skip

    def __init__(
        self, number: int, lane: DaemonLane, memory: LaneMemory | None, *, movable: bool = False
    ) -> None:
        self.id = number
        self.lane = lane
        self.memory = memory
        self.owes = Obligations(number)
        self.movable = movable
        self.processor = -1
        self.pid = 0
        self.since_ns = 0
        self.aside_ns = 0
        self.cause: ExitCause | None = None
        self.detail = ""
        self.kill_sent = False
        self.ended = False
        self.orphaned = False
        self.stopping = False
        self.writing = False

    def overdue(self, now_ns: int) -> tuple[ExitCause, str] | None:
        """As what, and why, it is to be killed now; None while it may take its time."""
        busy_ns = now_ns - self.since_ns
        leaving = self.stopping and not self.owes
        if self.ended:
            if busy_ns <= EXIT_GRACE_NS:
                return None
            # giving memory back while it yields may take longer
            cause = ExitCause.STOPPED if leaving else ExitCause.DIED
            return cause, "it closed its lane and did not end"
        if late := self.owes.overdue(busy_ns, now_ns - self.aside_ns):
            return ExitCause.HUNG, late
        if leaving and busy_ns > EXIT_GRACE_NS:
            return ExitCause.STOPPED, "told to stop, had to be killed"
        return None

    def runner(self) -> Runner | None:
        """See WorkerPort."""
        spent = spent_by(self.pid, self.pid) if self._may_be_bound else None
        places = bound_to(self.pid)
        if spent is None or (self.processor < 0 and places != bound_to(os.getpid())):
            return None
        return Runner(spent.ran_ns, places == {self.processor})

    def confine(self, processor: int) -> bool:
        """See WorkerPort. Threads that it starts are born there: it owes nothing that it would start one for."""
        if processor < 0:
            self.roam()
        elif self._may_be_bound and not self.owes and self.processor < 0 and bind(self.pid, processor):
            self.processor = processor
            return True
        return False

    def roam(self) -> None:
        """Let it run wherever it might before it was given a processor."""
        if self.processor >= 0 and self._is_there:
            unbind(self.pid, self.processor)
        self.processor = -1

    @property
    def _is_there(self) -> bool:
        """Whether its number is not yet another process's."""
        return bool(self.pid) and not self.ended and not self.orphaned

    @property
    def _may_be_bound(self) -> bool:
        return self.movable and self._is_there and not self.stopping and self.cause is None


def has_ended(pid: int) -> bool:
    """Whether a process has ended, noted by its parent or not; false when that cannot be known now."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    try:
        watch = select.poll()
        watch.register(descriptor, select.POLLIN)
        return bool(watch.poll(0))
    finally:
        os.close(descriptor)


def describe_status(status: int) -> str:
    """What waitpid gave, for people."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        known = {each.value: each.name for each in signal.Signals}
        return f"killed by signal {number} ({known.get(number, 'unknown')})"
    return f"exited with status {os.WEXITSTATUS(status)}"
