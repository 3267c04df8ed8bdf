"""The versions there are: loaded, serving, replaced, rolled back, quarantined, leaving.

Takes the catalog that is wanted and the events of workers; gives events to the scheduler. One owner: the engine, which
calls from its turn. A version is swapped without a gap: the new one loads beside the old and proves itself (``swaps``),
routes flip, and the old one drains, stays for as long as one may want to go back to it, and leaves. A version that
fails on its way changes nothing for the one that serves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from appliance.engine.candidate import Candidate
from appliance.engine.forms import PACKED, Forms
from appliance.engine.groups import Groups
from appliance.engine.layout import merges
from appliance.engine.placement import PlacementConfig
from appliance.engine.port import VersionStatus
from appliance.engine.routes import Catalog, CatalogVersion, Routes, Served, tombstone
from appliance.engine.supervisor import Supervisor, SupervisorConfig, culprit_of
from appliance.engine.swap_settings import TrialWish
from appliance.engine.swaps import Swaps, SwapTerms
from appliance.engine.version_status import version_status
from appliance.errors import InvalidRequest
from appliance.model import Batching, VersionState
from appliance.scheduling.events import Event, ModelClosed, ModelOpened
from appliance.telemetry.meter import VersionMeter
from appliance.workers.port import (
    ExitCause,
    FormBuilt,
    ModelLoaded,
    ModelRefused,
    WorkerExited,
    WorkerPort,
    WorkerSettings,
    WorkerStarted,
)

Key = tuple[str, int]


class Roster:
    """Keeps the versions that the catalog needs. ``feed`` takes scheduler events; ``idle`` tells whether a model id has
    no request anywhere; ``soon`` asks for ``tick`` at once, ``at`` at a time; ``settings`` are those of the n-th
    process. Implements the Board of its swaps."""

    def __init__(
        self,
        *,
        routes: Routes,
        workers: WorkerPort,
        placement: PlacementConfig,
        supervisor: SupervisorConfig,
        swap: SwapTerms,
        settings: Callable[[int], WorkerSettings],
        feed: Callable[[Event], None],
        idle: Callable[[int], bool],
        soon: Callable[[], None],
        at: Callable[[int], None],
        report: Callable[..., None],
        wall_ms: Callable[[], int],
        room: Callable[[Served, int], bool],
    ) -> None:
        self._routes = routes
        self._supervisor = Supervisor(supervisor)
        self._feed = feed
        self._idle = idle
        self._soon = soon
        self._report = report
        self.swaps = Swaps(
            terms=swap,
            board=self,
            report=report,
            wall_ms=wall_ms,
            room=room,
            soon=soon,
            at=at,
        )
        self._groups = Groups(
            workers=workers,
            placement=placement,
            settings=settings,
            feed=feed,
            at=at,
            take_id=self._take_id,
            wish=self.swaps.wish,
            can_open=self._open,
            closed=self._supervisor.group_closed,
        )
        self._forms = Forms(
            workers=workers, settings=settings, take_id=self._take_id, built=self._repack, report=report
        )
        self._pack = swap.config.packed_forms
        self._served: dict[int, Served] = {}
        self._incoming: dict[Key, Served] = {}
        self._leaving: list[Served] = []
        self._troubled: dict[str, str] = {}
        self._next_id = 1
        self._calm = False
        """Whether the first load is over."""

    # --- what is wanted

    def apply(self, catalog: Catalog, now_ns: int, asked: Collection[str] = ()) -> None:
        """Work towards ``catalog``: new and changed versions load, unwanted ones leave when they can be spared.
        ``asked``: names of models of which an operator wants what was given up to be tried again."""
        self._calm = self._calm or (bool(self._served) and self.settled)
        self._routes.set_problems({(p.name, p.version): p.reason for p in catalog.problems})
        self._troubled = {problem.name: problem.reason for problem in catalog.problems}
        wanted = {(entry.model.name, entry.model.version): entry for entry in catalog.versions}
        for entry in wanted.values():
            self._go_back(entry, now_ns)
        for served in list(self._routes.all()):
            served.retiring = (served.model.name, served.model.version) not in wanted
            served.explain(self._troubled.get(served.model.name, ""))
        for key in [key for key in self._incoming if key not in wanted]:
            self._leave(self._incoming.pop(key), now_ns)
        for key, entry in wanted.items():
            current = self._incoming.get(key) or self._routes.find(*key)
            if (
                current is not None
                and current.fingerprint == entry.fingerprint
                and current.model == entry.model
                and not self._may_try_again(current, key[0] in asked)
            ):
                self.swaps.renew(current, entry.trial)
            else:
                self._admit(entry, now_ns, asked=key[0] in asked)
        self._retire(now_ns)
        self.swaps.start(now_ns)
        self._routes.touch()

    def _go_back(self, entry: CatalogVersion, now_ns: int) -> None:
        """What is wanted may be what is kept to go back to."""
        name, version = entry.model.name, entry.model.version
        current = self._routes.find(name, version)
        if current is not None and (current.fingerprint, current.model) == (entry.fingerprint, entry.model):
            return
        kept = self.swaps.kept(name, version, entry.identity)
        if kept is not None and kept.model == entry.model:
            self.swaps.recall(name, f"version {version} is wanted again", now_ns, reject=False)

    def _may_try_again(self, served: Served, asked: bool) -> bool:
        """Whether a version that was given up is to be loaded once more."""
        if served.state is not VersionState.UNAVAILABLE:
            return False
        return asked or not self.swaps.refusal(served.identity)

    def _admit(self, entry: CatalogVersion, now_ns: int, *, asked: bool) -> None:
        """A new entry; it takes its place in the routes at once unless an older file of the same version serves."""
        model = entry.model
        if asked:
            self.swaps.forgive(entry.identity)
        current, pending = (
            self._routes.find(model.name, model.version),
            self._incoming.pop((model.name, model.version), None),
        )
        if pending is not None:
            self._leave(pending, now_ns)
        serving = current is not None and current.state is VersionState.READY
        refusal = self.swaps.refusal(entry.identity)
        served = Served(
            id=self._take_id(),
            model=model,
            fingerprint=entry.fingerprint,
            identity=entry.identity,
            meter=VersionMeter(model.name, model.version) if current is None or serving else current.meter,
        )
        if refusal and current is not None and serving:
            current.reason = f"still serving the previous file; the new one {refusal}"
            return
        if serving:
            self._incoming[model.name, model.version] = served
        else:
            self._place_route(served, now_ns)
        if refusal:
            served.state, served.reason = VersionState.UNAVAILABLE, refusal
            return
        self._served[served.id] = served
        self._supervisor.forgive(served.key)
        before = current if serving else self._routes.current(model.name)
        self.swaps.add(
            served, before, entry.trial, background=before is not None or self._calm, now_ns=now_ns
        )

    def _place_route(self, served: Served, now_ns: int) -> None:
        previous = self._routes.put(served)
        if previous is not None:
            self._leave(previous, now_ns)

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def start(self, fresh: Sequence[Served], now_ns: int, *, alone: bool) -> None:
        """See Board."""
        self._groups.place(fresh, now_ns, alone=alone)

    def tick(self, now_ns: int) -> None:
        """Time passed: start what is due, look at trials, let go what has drained."""
        self._groups.tick(now_ns)
        self.swaps.tick(now_ns)
        if self._forms.waiting and self.swaps.calm:
            self._forms.build()
        if self._leaving:
            self._let_go(now_ns)

    # --- what workers say

    def worker_started(self, event: WorkerStarted) -> None:
        """The process exists; its loads are under way."""
        self._groups.worker_started(event)

    def model_loaded(self, event: ModelLoaded, now_ns: int) -> None:
        """One worker holds one more model: maybe its lane opens, maybe the model does."""
        served = self._served.get(event.model)
        if served is not None:
            served.seeds, served.packed = served.seeds or event.seeds, event.packed
            self.swaps.loaded(served, event)
        self._groups.loaded(event, served, now_ns)

    def _open(self, served: Served, now_ns: int) -> None:
        """The scheduler may have it; whether it serves is for its trial to say."""
        self.take_back(served)
        self.swaps.opened(served, now_ns)

    def send_away(self, served: Served) -> None:
        """It serves on, but has to be asked for: its requests go by the scheduler no more."""
        self._close(served)
        served.epoch += 1

    def take_back(self, served: Served) -> None:
        """It is in memory: the scheduler may have it."""
        served.opened = True
        max_batch = served.model.max_batch_size if merges(served.model) else 1
        self._feed(ModelOpened(served.id, served.group, max_batch, served.model.batching or Batching()))

    def put_out(self, served: Served, now_ns: int) -> tuple[int, ...]:
        """It leaves its workers; gives those that end with that."""
        self._close(served)
        group = served.group
        self._groups.drop(served, now_ns)
        served.group, served.returning = -1, False
        return self._groups.ending(group)

    def bring(self, served: Served, now_ns: int) -> None:
        """Load it again, for it serves: it is taken back when a worker has it."""
        served.returning = True
        self._groups.place([served], now_ns)

    @property
    def groups(self) -> Groups:
        """To be asked only."""
        return self._groups

    def model_refused(self, event: ModelRefused, now_ns: int) -> None:
        """The runtime will not have it: UNAVAILABLE with the runtime's reason."""
        served = self._served.get(event.model)
        if served is not None:
            self._give_up(served, event.reason, now_ns)

    def worker_exited(
        self, event: WorkerExited, model_of_batch: Callable[[int], int], blamed: int, had: int, now_ns: int
    ) -> None:
        """A process is gone: close its lane, find the culprit, plan the replacement. ``had``: requests that it had by
        grant, the oldest of the model ``blamed``."""
        known = self._groups.exited(event.worker)
        if known is None:
            self._forms.exited(event.worker, event.detail)
            return
        worker, group = known
        if worker.stopping or event.cause is ExitCause.STOPPED:
            self._groups.left(worker, group)
            return
        culprit = self._served.get(culprit_of(event, model_of_batch, blamed, self._is_new))
        self._report(
            "worker exited", worker=worker.id, pid=worker.pid, detail=event.detail,
            model=culprit.key if culprit else None, batches_lost=len(event.batches), requests_handed_over=had,
            reason=event.cause.value,
        )  # fmt: skip
        delay_ns = self._supervisor.restart_delay_ns(group.id, now_ns - worker.started_ns)
        self._groups.lost(worker, group, now_ns + delay_ns)
        if culprit is not None:
            self._blame(culprit, f"{event.cause.value}, {event.detail}", now_ns)
        self._groups.resume(group, now_ns)

    def _blame(self, culprit: Served, detail: str, now_ns: int) -> None:
        repeated = self._supervisor.crashed(culprit.key, now_ns)
        if self.swaps.crashed(culprit, detail, now_ns) or not repeated:
            return
        reason = f"quarantined after repeated crashes: {detail}"
        self._give_up(culprit, reason, now_ns)

    def _is_new(self, model: int) -> bool:
        return model in self._served and _is_loading(self._served[model])

    # --- what trials come to

    def flip(self, candidate: Candidate, now_ns: int) -> None:
        """See Board."""
        served = candidate.served
        served.state, served.reason = VersionState.READY, ""
        self._report("version ready", model=served.key)
        key = (served.model.name, served.model.version)
        if self._incoming.get(key) is served:
            del self._incoming[key]
            previous = self._routes.put(served)
            if previous is not None:
                previous.meter.absorb(served.meter)
                served.meter = previous.meter
                self._leave(previous, now_ns)
        self._retire(now_ns)
        self._routes.touch()

    def reject(self, candidate: Candidate, reason: str, now_ns: int) -> None:
        """See Board."""
        self._give_up(candidate.served, reason, now_ns)

    def roll_back(self, candidate: Candidate, reason: str, now_ns: int) -> None:
        """See Board."""
        served, before = candidate.served, candidate.before
        assert before is not None, "nothing to go back to"
        self._report("version rolled back", model=served.key, to=before.key, reason=reason)
        self._forms.refuse(served, reason)
        if candidate.crashed:
            self._close(served)
        stone = tombstone(served, self._take_id(), f"rolled back: {reason}")
        if before.state is VersionState.UNLOADING:
            before.state, before.reason = VersionState.READY, ""
        if before.key == served.key:
            before.reason = f"still serving the previous file; the new one was rolled back: {reason}"
            stone = before
        elif self._routes.find(before.model.name, before.model.version) is not before:
            before.retiring = True
            self._place_route(before, now_ns)
        self._place_route(stone, now_ns)
        self._routes.touch()

    def spare(self, before: Served, now_ns: int) -> None:
        """See Board."""
        if before.state is VersionState.UNLOADING and before not in self._leaving:
            self._leave(before, now_ns)

    def proven(self, served: Served) -> None:
        """See Board."""
        if self._pack:
            self._forms.consider(served)
            self._soon()

    def form_built(self, event: FormBuilt, now_ns: int) -> None:
        """A packed form is there, or is not to be had."""
        self._forms.ended(event, now_ns)

    def _repack(self, served: Served, now_ns: int) -> None:
        """Its form was built: swap it for itself."""
        key = (served.model.name, served.model.version)
        if self._routes.find(*key) is not served or key in self._incoming or served.retiring:
            return
        packed = Served(
            id=self._take_id(),
            model=served.model,
            fingerprint=served.fingerprint,
            identity=served.identity + PACKED,
            meter=VersionMeter(*key),
        )
        self._served[packed.id] = self._incoming[key] = packed
        self.swaps.add(packed, served, TrialWish(), background=True, now_ns=now_ns)
        self.swaps.start(now_ns)

    def diverted(self) -> None:
        """See Board."""
        self._routes.touch()

    def current(self, name: str) -> Served | None:
        """See Board."""
        return self._routes.current(name)

    def recall(self, name: str, reason: str, now_ns: int) -> None:
        """Go back to the version that served ``name`` before. Raises UnknownModel, and InvalidRequest when there is
        nothing to go back to."""
        self._routes.of(name)
        if not self.swaps.recall(name, reason, now_ns, reject=True):
            raise InvalidRequest(
                f"model '{name}' has nothing to go back to: the version before stays loaded for swap.watch_s seconds "
                "after a swap, and none is there now"
            )

    def _give_up(self, served: Served, reason: str, now_ns: int) -> None:
        """It never serves (again), from this moment on."""
        served.state, served.reason = VersionState.UNAVAILABLE, reason
        self._report("version unavailable", model=served.key, reason=reason)
        self._forms.refuse(served, reason)
        self._close(served)
        self._groups.drop(served, now_ns)
        served.group = -1
        key = (served.model.name, served.model.version)
        if self._incoming.get(key) is served:
            del self._incoming[key]
            current = self._routes.find(*key)
            if current is not None:
                current.reason = f"still serving the previous file; the new one failed: {reason}"
            self._served.pop(served.id, None)
        self.swaps.given_up(served, reason, now_ns)
        self._retire(now_ns)
        self._routes.touch()

    def _close(self, served: Served) -> None:
        if served.opened:
            served.opened = False
            self._feed(ModelClosed(served.id))

    # --- leaving

    def _retire(self, now_ns: int) -> None:
        """Let unwanted versions go once what is wanted of the same name serves, or nothing of it is wanted. A version
        that should replace them and is broken keeps them serving."""
        for served in [served for served in self._routes.all() if served.retiring]:
            if self._routes.find(served.model.name, served.model.version) is not served:
                continue  # it went with another
            others = [other for other in self._routes.of(served.model.name) if not other.retiring]
            serving = any(other.state is VersionState.READY for other in others)
            unwanted = not others and served.model.name not in self._troubled
            if serving or unwanted or served.state is not VersionState.READY:
                self._routes.remove(served)
                self._leave(served, now_ns)

    def _leave(self, served: Served, now_ns: int) -> None:
        """It serves no more; it goes when its last request has ended, unless it is kept to go back to."""
        served.state = VersionState.UNLOADING
        if self.swaps.keeps(served):
            self._report("version kept to go back to", model=served.key)
            return
        self.swaps.gone(served, now_ns)
        self._leaving.append(served)
        self._soon()

    def _let_go(self, now_ns: int) -> None:
        for served in [served for served in self._leaving if self._idle(served.id)]:
            self._leaving.remove(served)
            self._forget(served, now_ns)

    @property
    def leaving(self) -> bool:
        """Whether some version waits for its last requests."""
        return bool(self._leaving)

    def _forget(self, served: Served, now_ns: int) -> None:
        self._close(served)
        if self._served.pop(served.id, None) is not None:
            self._report("version unloaded", model=served.key)
        self._groups.drop(served, now_ns)

    def stop_all(self) -> None:
        """The daemon ends: every worker is asked to leave."""
        self._forms.stop()
        self._groups.stop_all()

    # --- what others ask

    @property
    def settled(self) -> bool:
        """Whether every version that is wanted serves, is on trial, waits for memory or was given up."""
        return not any(_is_loading(served) and not served.deferred for served in self._served.values())

    def settled_of(self, name: str) -> bool:
        """Whether that holds for every version of ``name``."""
        return not any(served.model.name == name and _is_loading(served) for served in self._served.values())

    def held(self) -> list[tuple[str, str]]:
        """Names and versions of all that is here, seen or not."""
        return [(served.model.name, str(served.model.version)) for served in list(self._served.values())]

    def served(self, model: int) -> Served | None:
        """The version with model id ``model``."""
        return self._served.get(model)

    def version_statuses(
        self, queued: Mapping[int, int], running: Mapping[int, int]
    ) -> tuple[VersionStatus, ...]:
        """All versions, for people; ``queued`` and ``running`` count requests by model id."""
        return tuple(
            version_status(
                served,
                queued=queued.get(served.id, 0),
                running=running.get(served.id, 0),
                workers=self._groups.holders(served),
                trial=self.swaps.status(served),
                tries_left=self.swaps.tries_left(served),
            )
            for served in self._routes.all()
        )

    def key_of(self, model: int) -> str | None:
        """What the version with that id is called."""
        served = self._served.get(model)
        return served.key if served is not None else None


def _is_loading(served: Served) -> bool:
    return served.state is VersionState.LOADING and not served.opened
