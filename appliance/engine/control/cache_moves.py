"""Models on their way into memory and out of it: carried out with their workers, whose news become events for the
accountant. Owner: the model cache.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from appliance.core.memory import events
from appliance.core.memory.budget import ResidencyPolicy
from appliance.core.memory.events import Event
from appliance.core.memory.footprint import Residency
from appliance.core.memory.homes import is_beyond_room
from appliance.domain.load_wish import LoadWish
from appliance.engine.control.cache_report import CacheTally
from appliance.engine.control.early_sessions import EarlySessions, comes_quickly
from appliance.engine.control.rollouts import Rollouts
from appliance.engine.control.sizes import Sizes
from appliance.engine.environment import Shell
from appliance.engine.versions.served import Served
from appliance.engine.versions.wording import beyond_room_text
from appliance.workers.port import (
    FormJudged,
    LoadStage,
    ModelLoaded,
    ModelProgress,
    ModelRefused,
    PoolEvent,
    WeightsEvicted,
    WeightsPagedIn,
    WorkerExited,
    WorkerPort,
)

DRAIN_NS: Final = 1_000_000
"""How often it is looked whether a model has drained that is to leave memory."""
FAILURES_MAX: Final = 2
"""A version that cannot be loaded so often in a row, though it could be once, is given up."""


@dataclass(slots=True, kw_only=True, eq=False)
class Cached:
    """A version that is looked after. ``answered`` are its requests that were told of; ``pending`` the workers that
    have yet to do what was asked for it; ``draining``: it leaves memory with its last request; ``failures`` are those
    in a row to bring it back, which is under way since ``moved_ns``."""

    served: Served
    answered: int
    pending: set[int] | None = None
    draining: bool = False
    failures: int = 0
    moved_ns: int | None = None

    def took_ns(self, now_ns: int) -> int:
        """How long bringing it back has taken so far (0: it is not known)."""
        return 0 if self.moved_ns is None else now_ns - self.moved_ns


class CacheMoves:
    """``cached`` are the versions that are looked after. Each call gives what the accountant is to be told because of
    it, in this order."""

    def __init__(
        self,
        *,
        config: ResidencyPolicy,
        rollouts: Rollouts,
        workers: WorkerPort,
        sizes: Sizes,
        tally: CacheTally,
        shell: Shell,
    ) -> None:
        self._config = config
        self._rollouts = rollouts
        self._workers = workers
        self._sizes = sizes
        self._tally = tally
        self._shell = shell
        self._early = EarlySessions()
        self._draining: list[Cached] = []
        self.cached: dict[int, Cached] = {}

    # --- versions come and go

    def add(self, served: Served) -> None:
        """Look after ``served`` from now on."""
        self.cached[served.id] = Cached(served=served, answered=served.meter.answered)

    def remove(self, cached: Cached, now_ns: int) -> None:
        """Look after it no more. On its way in or out of memory it is out: how that ends would not be told."""
        served = cached.served
        moves = served.memory.returning or cached.pending is not None or cached.draining
        if not served.opened and moves:
            self._put_out(served, now_ns)
            served.memory.residency = Residency.COLD
        del self.cached[served.id]
        self._early.forget(served.id)
        self._draining = [other for other in self._draining if other is not cached]

    def changing(self, served: Served) -> bool:
        """Whether something of it is on its way to its workers, or some of them do not hold it."""
        return self._early.busy(served.id) or (served.opened and not self._rollouts.groups.complete(served))

    def rest(self, served: Served) -> None:
        """It begins COLD."""
        served.memory.residency = Residency.COLD

    def _put_out(self, served: Served, now_ns: int) -> tuple[int, ...]:
        """Have it leave its workers; gives those that end with that."""
        served.memory.returning = served.memory.quick = False
        self._sizes.left(served)
        return self._rollouts.put_out(served, now_ns)

    # --- what is to be done

    def load(self, cached: Cached, now_ns: int) -> None:
        """COLD to RESIDENT."""
        served = cached.served
        self._tally.count(loads=1)
        cached.moved_ns = now_ns
        served.memory.returning = True
        served.memory.quick = comes_quickly(served.model, self._config.early_bytes) and not cached.failures
        self._early.asked(served, now_ns)
        self._rollouts.bring(served, now_ns)

    def page_in(self, cached: Cached, now_ns: int) -> list[Event]:
        """WEIGHTS_EVICTED to RESIDENT."""
        self._tally.count(page_ins=1)
        cached.moved_ns = now_ns
        holders = self._rollouts.groups.holders(cached.served)
        cached.pending = set(holders)
        for worker in holders:
            self._workers.page_in(worker, cached.served.id)
        return [] if holders else self._fail(cached, now_ns)

    def evict(self, cached: Cached) -> None:
        """RESIDENT to WEIGHTS_EVICTED."""
        holders = self._rollouts.groups.holders(cached.served)
        self._tally.count(evictions=1)
        self._rollouts.send_away(cached.served)
        cached.pending = set(holders)
        for worker in holders:
            self._workers.evict_weights(worker, cached.served.id)

    def unload(self, cached: Cached) -> None:
        """To COLD, when its last request has ended."""
        self._tally.count(unloads=1)
        self._rollouts.send_away(cached.served)
        cached.draining = True
        self._draining.append(cached)
        self._shell.pace.soon()

    @property
    def draining(self) -> tuple[int, ...]:
        """What waits for its last requests to leave memory."""
        return tuple(cached.served.id for cached in self._draining)

    def drain(self, idle: Collection[int], now_ns: int) -> list[Event]:
        """End the workers of models that are to leave and are ``idle``."""
        ended: list[Event] = []
        draining, self._draining = self._draining, []
        for cached in draining:
            if cached.served.id not in idle:
                self._draining.append(cached)
                self._shell.pace.at(now_ns + DRAIN_NS)
                continue
            cached.draining = False
            cached.pending = set(self._put_out(cached.served, now_ns))
            if not cached.pending:
                ended += self._out(cached)
        return ended

    def _out(self, cached: Cached) -> list[Event]:
        cached.pending = None
        cached.served.memory.residency = Residency.COLD
        return [events.Done(cached.served.id), self._measured(cached.served)]

    def grown(self, stays: Collection[int]) -> list[Event]:
        """See what workers hold by now. ``stays`` are versions that are not put out."""
        told: dict[int, Served] = {}
        for worker, _ in self._rollouts.groups.workers():
            for model, memory_bytes in self._workers.grown(worker.id).items():
                served = self._rollouts.served(model)
                if served is not None and self._sizes.knows(model):
                    self._sizes.grew(served, worker.id, memory_bytes)
                    told |= {model: served} if model in self.cached else {}
        serving = [cached.served for cached in self.cached.values()]
        told |= {each.id: each for each in self._sizes.bound_growth(serving, stays)}
        return [self._measured(served) for served in told.values()]

    def _measured(self, served: Served) -> Event:
        return events.Measured(served.id, self._sizes.footprint(served))

    # --- what workers say

    def news(self, event: PoolEvent, now_ns: int) -> list[Event]:
        """Take in what happened to versions in workers: this and the rollouts have to know."""
        told: list[Event] = []
        match event:
            case ModelLoaded():
                told += self._loaded(event, now_ns)
            case FormJudged() | ModelProgress(stage=LoadStage.BUILDING):
                self._rollouts.forms.told(event, self._rollouts.served(event.model))
            case ModelProgress():
                self._rollouts.groups.progressed(event, self._rollouts.served(event.model))
            case ModelRefused():
                told += self._refused(event, now_ns)
            case WeightsEvicted():
                told += self._evicted(event)
            case WeightsPagedIn():
                told += self._paged_in(event, now_ns)
        # What is said of one may open others that come back and that its process holds already.
        for each in self._rollouts.groups.members(event.worker):
            cached = self.cached.get(each.id)
            if cached is not None and each.opened and each.memory.residency is Residency.COLD:
                told += self._back(cached, now_ns)
        return told

    def _loaded(self, event: ModelLoaded, now_ns: int) -> list[Event]:
        served = self._rollouts.served(event.model)
        self._early.renewed(event.model, event.worker)
        quick = self._rollouts.groups.loads_quickly(event.worker, event.model)
        if served is not None and quick:
            self._early.opened(served, event.worker)
        elif served is not None:
            room_bytes = self._rollouts.groups.room_bytes(event.worker, event.model)
            if is_beyond_room(event.device_bytes, room_bytes):
                reason = beyond_room_text(event.device_bytes, room_bytes)
                return self._refused(ModelRefused(event.worker, event.model, reason, full=True), now_ns)
            served.memory.quick = False
            self._tally.loaded(served.model, event)
            self._sizes.measured(served, event, room_bytes)
            if event.note and event.note != served.placed.note:
                engine = event.packed and served.model.has_engine
                what = "model is not all in its engine" if engine else "model is not all on its device"
                self._shell.log.event(what, model=served.key, reason=event.note)
        self._rollouts.model_loaded(event, now_ns)
        if served is None or served.id not in self.cached or quick:
            return []
        return [self._measured(served)]

    def _back(self, cached: Cached, now_ns: int) -> list[Event]:
        served, took_ns = cached.served, cached.took_ns(now_ns)
        if self._early.busy(served.id):  # its weights are still arriving: as last time is counted with
            took_ns = self._early.took_ns(served, max(took_ns, self._sizes.load_ns(served)))
        return self._arrived(cached, took_ns, self._sizes.footprint(served).bytes)

    def _arrived(self, cached: Cached, took_ns: int, size_bytes: int) -> list[Event]:
        served = cached.served
        by_page_in = served.memory.residency is Residency.WEIGHTS_EVICTED
        self._sizes.came_back(served, took_ns, by_page_in=by_page_in)
        served.memory.residency, served.memory.returning = Residency.RESIDENT, False
        cached.failures, cached.moved_ns = 0, None
        return [self._measured(served), events.Done(served.id, took_ns, size_bytes)]

    def _evicted(self, event: WeightsEvicted) -> list[Event]:
        """A worker let the weights go."""
        cached = self._answering(event.model, event.worker)
        if cached is None:
            return []
        cached.served.memory.residency = Residency.WEIGHTS_EVICTED
        return [events.Done(event.model, event.ns)]

    def _paged_in(self, event: WeightsPagedIn, now_ns: int) -> list[Event]:
        """A worker has the weights again, or not as they should be."""
        cached = self.cached.get(event.model)
        if cached is None:
            return []
        served = cached.served
        self._tally.paged_in(served.model, event)
        if event.failure is not None:
            return self._not_as_stored(cached, event, event.failure, now_ns)
        if self._early.arrived(served, event.worker, now_ns):
            wish = LoadWish(background=True, probe=served.rows_untried)
            self._workers.load(event.worker, served.id, served.in_force, wish)
        elif self._answering(event.model, event.worker) is not None:
            self._rollouts.take_back(served)
            self._tally.count(paged_in_bytes=event.nbytes)
            return self._arrived(
                cached, cached.took_ns(now_ns), self._sizes.footprint(served).evictable_bytes
            )
        return []

    def _not_as_stored(self, cached: Cached, event: WeightsPagedIn, failure: str, now_ns: int) -> list[Event]:
        if event.worker in (cached.pending or ()):
            return self._come_anew(cached, failure, now_ns)
        if self._early.rejected(event.model, event.worker):
            refused = ModelRefused(event.worker, event.model, failure)
            self._rollouts.model_refused(refused, now_ns)
        return []

    def _answering(self, model: int, worker: int) -> Cached | None:
        """The version whose last worker has done now what it was asked for."""
        cached = self.cached.get(model)
        if cached is None or cached.pending is None:
            return None
        cached.pending.discard(worker)
        if cached.pending:
            return None
        cached.pending = None
        return cached

    def _refused(self, event: ModelRefused, now_ns: int) -> list[Event]:
        """A version was refused. One that comes back, maybe for want of memory, is tried again, or serves on; for as
        long as it is its device that is full, which somebody else may have for a moment."""
        self._tally.refused(event)
        self._rollouts.groups.refused(event)
        cached = self.cached.get(event.model)
        if cached is not None and event.full and not cached.served.model.on_cpu:
            return self._come_anew(cached, event.reason, now_ns, failures=0)
        if self._early.renewed(event.model, event.worker) and cached is not None:
            said = "model goes on with its quick session"
            self._shell.log.event(said, model=cached.served.key, reason=event.reason)
            return []
        if cached is None or cached.served.opened or cached.failures + 1 >= FAILURES_MAX:
            self._rollouts.model_refused(event, now_ns)
            return []
        return self._come_anew(cached, event.reason, now_ns)

    def _come_anew(self, cached: Cached, reason: str, now_ns: int, failures: int = 1) -> list[Event]:
        """It could not be brought back. What is to blame for that may be a packed form, which is held against what it
        was when it is loaded anew, and passed over."""
        cached.failures += failures
        self._shell.log.event("model could not be brought back", model=cached.served.key, reason=reason)
        return self._fail(cached, now_ns)

    def exiting(self, event: WorkerExited) -> list[Served]:
        """Versions that an ending worker held or was to hold, and that are not open; for ``exited``."""
        members = self._rollouts.groups.members(event.worker)
        return [served for served in members if served.id in self.cached and not served.opened]

    def exited(self, event: WorkerExited, held: Sequence[Served], now_ns: int) -> list[Event]:
        """A process is gone: what left with it is out; what it was to bring back is to be brought back anew."""
        told: list[Event] = []
        self._early.lost(event.worker)
        for served in held:
            cached = self.cached.get(served.id)
            if cached is not None:
                told += self._fail(cached, now_ns)
        for cached in self.cached.values():
            if cached.pending and event.worker in cached.pending:
                cached.pending.discard(event.worker)
                told += [] if cached.pending else self._out(cached)
        shrunk = [
            self.cached[model].served for model in self._sizes.ended(event.worker) if model in self.cached
        ]
        return [*told, *map(self._measured, shrunk)]

    def _fail(self, cached: Cached, now_ns: int) -> list[Event]:
        cached.pending, cached.draining = None, False
        self._draining = [other for other in self._draining if other is not cached]
        self._put_out(cached.served, now_ns)
        cached.served.memory.residency = Residency.COLD
        return [events.Failed(cached.served.id), self._measured(cached.served)]
