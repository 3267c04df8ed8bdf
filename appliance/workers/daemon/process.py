"""One worker process as the pool knows it, when it has had its time, and whether it is there at all."""

from __future__ import annotations

import logging
import os
import platform
import select
import signal
from itertools import islice
from typing import Final

from appliance.domain.exit_cause import ExitCause
from appliance.process.life import GAVE_UP
from appliance.workers.daemon.held_memory import HeldMemory
from appliance.workers.daemon.pending_replies import PendingReplies
from appliance.workers.jail.syscalls import Calls
from appliance.workers.lane import DaemonLane
from appliance.workers.messages import Load
from appliance.workers.port import (
    LaneMemory,
    ModelLoaded,
    ModelRefused,
    PoolEvent,
    WeightsEvicted,
)

EXIT_GRACE_NS: Final = 1_000_000_000
NAMED_MAX: Final = 8
"""Of models and of calls, in one text."""

_log = logging.getLogger(__name__)


class JailRecord:
    """What the jail of a worker keeps it from, and what it has refused it, which may be why a runtime fails; ``models``
    says by their ids what the worker has, or is to load, ``names`` of which models it ever had a version: one that took
    it over may be gone from ``models``."""

    __slots__ = ("_refused", "kept_from", "models", "names")

    def __init__(self) -> None:
        self.kept_from: tuple[str, ...] = ()
        self.models: dict[int, str] = {}
        self.names: set[str] = set()
        self._refused: list[str] = []

    def refused(self, worker: int, pid: int, number: int) -> None:
        """Tell people of a system call."""
        name = Calls(platform.machine()).name_of(number)
        self._refused.append(name)
        models = ", ".join(islice(self.models.values(), NAMED_MAX)) or "without a model"
        _log.warning(
            "the jail of worker %d (process %d; %s) refused system call %s", worker, pid, models, name
        )

    def explain(self, reason: str) -> str:
        """Give the reason for which something failed with what may be behind it."""
        names = ", ".join(self._refused[:NAMED_MAX])
        return f"{reason} (its jail refused system calls: {names})" if names else reason


class WorkerProcess:
    """What the pool knows of one worker. ``since_ns`` is since when it has been busy with the oldest reply that it
    owes, or since when its end has been awaited, ``background_ns`` since when with its background tasks; ``held``
    is its memory; ``cause`` why it is being killed, ``kill_sent`` that its
    zygote has said so; ``orphaned`` that its zygote died. Owner: the pool."""

    __slots__ = (
        "background_ns", "cause", "detail", "ended", "held", "id", "jail", "kill_sent", "lane", "memory",
        "orphaned", "pending", "pid", "since_ns", "stopping",
    )  # fmt: skip

    def __init__(self, number: int, lane: DaemonLane, memory: LaneMemory | None) -> None:
        self.id = number
        self.lane = lane
        self.memory = memory
        self.pending = PendingReplies(number)
        self.pid = 0
        self.jail = JailRecord()
        self.since_ns = 0
        self.background_ns = 0
        self.cause: ExitCause | None = None
        self.detail = ""
        self.kill_sent = False
        self.ended = False
        self.orphaned = False
        self.stopping = False
        self.held = HeldMemory()

    def owe_load(self, load: Load, timeout_ns: int, run_timeout_ns: int) -> None:
        """It was asked to load."""
        self.jail.models[load.model] = load.version.key
        self.jail.names.add(load.version.name)
        self.pending.owe_load(load, timeout_ns, run_timeout_ns)

    def forget_model(self, model: int) -> None:
        """It was told to unload."""
        self.pending.forget_model(model)
        self.held.left(model)
        self.jail.models.pop(model, None)

    @property
    def is_awaited(self) -> bool:
        """Whether an answer of it is, or its end."""
        return bool(self.pending) or self.stopping or self.ended or self.cause is not None

    def seen(self, said: PoolEvent, asked: object, now_ns: int) -> PoolEvent:
        """What it said, with what we see ourselves in the place of its word where that counts for other models: the
        memory that a load took, and how long that and an eviction did."""
        if isinstance(said, ModelRefused):
            return said._replace(reason=self.jail.explain(said.reason))
        if isinstance(said, WeightsEvicted):
            return said._replace(ns=now_ns - self.background_ns)
        if not isinstance(said, ModelLoaded) or not isinstance(asked, Load):
            return said
        waited_ns = now_ns - (self.background_ns if asked.wish.background else self.since_ns)
        return said._replace(
            load_ns=min(said.load_ns, waited_ns),
            memory_bytes=self.held.took(said.model, asked.version, said.memory_bytes),
        )

    def pardon(self, pause_ns: int, now_ns: int) -> None:
        """Leave a pause that ends at ``now_ns`` out of what it took."""
        self.since_ns = min(self.since_ns + pause_ns, now_ns)
        self.background_ns = min(self.background_ns + pause_ns, now_ns)
        self.pending.pardon(pause_ns)

    def overdue(self, now_ns: int) -> tuple[ExitCause, str] | None:
        """As what, and why, it is to be killed now; None while it may take its time."""
        busy_ns = now_ns - self.since_ns
        leaving = self.stopping and not self.pending
        if self.ended:
            if busy_ns <= EXIT_GRACE_NS:
                return None
            # giving memory back while it yields may take longer
            cause = ExitCause.STOPPED if leaving else ExitCause.DIED
            return cause, "it closed its lane and did not end"
        if late := self.pending.overdue(busy_ns, now_ns - self.background_ns):
            return ExitCause.HUNG, late
        if leaving and busy_ns > EXIT_GRACE_NS:
            return ExitCause.STOPPED, "told to stop, had to be killed"
        return None


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


def cause_of(status: int) -> ExitCause:
    """What waitpid gave, as far as it says whose doing it was."""
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return ExitCause.KILLED
    gave_up = os.WIFEXITED(status) and os.WEXITSTATUS(status) == GAVE_UP
    return ExitCause.GAVE_UP if gave_up else ExitCause.DIED


def describe_status(status: int) -> str:
    """What waitpid gave, for people."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        known = {each.value: each.name for each in signal.Signals}
        return f"killed by signal {number} ({known.get(number, 'unknown')})"
    return f"exited with status {os.WEXITSTATUS(status)}"
