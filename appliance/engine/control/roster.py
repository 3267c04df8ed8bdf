"""The versions there are: loaded, serving, replaced, rolled back, quarantined, leaving.

Takes the catalog that is wanted and the events of workers; gives events to the scheduler. One owner: the engine, which
calls from its turn. A version that replaces another loads beside it and proves itself (``swaps``); how one takes over
from the other is the ``succession``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

from appliance.config.placement import PlacementConfig
from appliance.core.memory.actions import Reply
from appliance.core.rollout.catalog import Catalog, CatalogVersion
from appliance.core.rollout.phase import SERVING, Phase
from appliance.core.rollout.reasons import Failed
from appliance.core.rollout.version import Artifact
from appliance.core.scheduling.events import Event
from appliance.domain.model import ModelVersion
from appliance.engine.control.census import Census
from appliance.engine.control.groups import Groups
from appliance.engine.control.retries import Retries
from appliance.engine.control.succession import Succession
from appliance.engine.control.supervisor import RestartPolicy, Supervisor, culprit_of
from appliance.engine.control.swaps import SwapTerms
from appliance.engine.versions.routes import Routes, Served
from appliance.engine.versions.version_status import version_status
from appliance.engine.versions.wording import Said, refusal_text
from appliance.telemetry.meter import VersionMeter
from appliance.telemetry.snapshot import VersionStatus
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


class Roster:
    """Keeps the versions that the catalog needs. ``feed`` takes scheduler events; ``idle`` tells whether a model id has
    no request anywhere; ``soon`` asks for ``tick`` at once, ``at`` at a time; ``settings`` are those of the n-th
    process."""

    def __init__(
        self,
        *,
        routes: Routes,
        workers: WorkerPort,
        placement: PlacementConfig,
        supervisor: RestartPolicy,
        swap: SwapTerms,
        settings: Callable[[int], WorkerSettings],
        feed: Callable[[Event], None],
        idle: Callable[[int], bool],
        soon: Callable[[], None],
        at: Callable[[int], None],
        report: Callable[..., None],
        wall_ms: Callable[[], int],
        room: Callable[[Served, Served | None, int], Reply],
        rests: Callable[[Served], bool],
    ) -> None:
        self._routes = routes
        self._supervisor = Supervisor(supervisor)
        self._report = report
        self._census = Census()
        self._succession = Succession(
            census=self._census, routes=routes, workers=workers, placement=placement, swap=swap,
            settings=settings, feed=feed, idle=idle, soon=soon, at=at, report=report, wall_ms=wall_ms,
            room=room, rests=rests, closed=self._supervisor.group_closed,
        )  # fmt: skip
        self.swaps = self._succession.swaps
        self._groups = self._succession.groups
        self._forms = self._succession.forms
        self._retries = Retries(
            routes=routes, swaps=self.swaps, admit=partial(self._admit, again=True), at=at, report=report
        )
        self._applied = False
        self._calm = False
        """Whether the first load is over."""

    # --- what is wanted

    def apply(self, catalog: Catalog, now_ns: int, asked: Collection[str] = ()) -> None:
        """Work towards ``catalog``: new and changed versions load, unwanted ones leave when they can be spared.
        ``asked``: names of models, or keys of versions, of which an operator wants what was given up to be tried
        again."""
        self._calm = self._calm or (bool(self._census.served) and self._census.settled)
        self._routes.set_problems({(p.name, p.version): p.reason for p in catalog.problems})
        self._routes.set_aside({(p.name, p.version): p.reason for p in catalog.aside})
        self._census.troubled = {problem.name: problem.reason for problem in catalog.problems}
        wanted = {(entry.model.name, entry.model.version): entry for entry in catalog.versions}
        if not self._applied:
            self._applied = True
            self.swaps.accounts.found_withdrawn({name for name, _ in wanted} | self._census.troubled.keys())
        self._census.by_hand = frozenset(key for key, entry in wanted.items() if entry.by_hand)
        for entry in wanted.values():
            self._go_back(entry, now_ns)
        for served in list(self._routes.all()):
            served.retiring = (served.model.name, served.model.version) not in wanted
        for key in [key for key in self._census.incoming if key not in wanted]:
            self._succession.leave(self._census.incoming.pop(key), now_ns)
        for key in (self._census.failed.keys() | self._census.setbacks.keys()) - wanted.keys():
            self._census.failed.pop(key, None)
            self._census.setbacks.pop(key, None)
        for key, entry in wanted.items():
            again = not {entry.model.name, entry.model.key}.isdisjoint(asked)
            current = (
                self._withdrawn(entry, now_ns) or self._census.incoming.get(key) or self._routes.find(*key)
            )
            if current is None or not current.is_of(entry):
                self._admit(entry, now_ns, asked=again)
            elif current.phase is not Phase.FAILED:
                current.fingerprint = entry.fingerprint
                self.swaps.renew(current, entry.trial, now_ns)
            elif self._may_try_again(current, entry, again):
                self._admit(entry, now_ns, asked=again or _repaired(current, entry))
        self._succession.retire(now_ns)
        self._retries.want(wanted.values())
        self.swaps.start(now_ns)
        self._routes.touch()

    def _withdrawn(self, entry: CatalogVersion, now_ns: int) -> Served | None:
        """What serves, if that is what is wanted, and what was to take its place is not."""
        key = (entry.model.name, entry.model.version)
        current, new = self._routes.find(*key), self._census.incoming.get(key)
        if current is None or current.phase not in SERVING or not current.is_of(entry):
            return None
        self._census.setbacks.pop(key, None)
        if new is None:
            return current
        if new.is_of(entry):
            return None
        del self._census.incoming[key]
        self._succession.leave(new, now_ns)
        return current

    def _go_back(self, entry: CatalogVersion, now_ns: int) -> None:
        """What is wanted may be what is kept to go back to."""
        name, version = entry.model.name, entry.model.version
        current = self._routes.find(name, version)
        if current is not None and current.is_of(entry):
            return
        kept = self.swaps.kept(name, version, entry.identity)
        if kept is not None and kept.model == entry.model:
            self.swaps.recall(name, f"version {version} is wanted again", now_ns)

    def _may_try_again(self, given_up: Served, entry: CatalogVersion, asked: bool) -> bool:
        """Whether a version that was given up is to be loaded once more now: because somebody asks, or its package was
        repaired, or its pause is over; where nothing else serves it has its turn with the others for that."""
        if asked or _repaired(given_up, entry):
            return True
        if self._retries.next_try_ms(given_up) or self.swaps.tries.pause_ms(entry.identity) != 0:
            return False
        return not self.swaps.tries.refusal(entry.identity)

    def _admit(self, entry: CatalogVersion, now_ns: int, *, asked: bool = False, again: bool = False) -> None:
        """A new entry; it takes its place in the routes at once unless an older file of the same version serves.
        ``asked``: by an operator; ``again``: although it was given up."""
        model, key = entry.model, (entry.model.name, entry.model.version)
        current, pending = self._routes.find(*key), self._census.incoming.pop(key, None)
        self._census.setbacks.pop(key, None)
        if pending is not None:
            self._succession.leave(pending, now_ns)
        serving = current is not None and current.phase in SERVING
        failed = self._census.failed.pop(key, None)
        if current is not None and serving and failed is not None and failed.is_of(entry):
            if not self._may_try_again(failed, entry, asked):
                self._census.failed[key] = failed
                self._census.setbacks[key] = Failed(why=failed.reason)
                return
            asked = asked or _repaired(failed, entry)
        accounts = self.swaps.accounts
        fallen = self.swaps.tries.fallen(entry.identity) or accounts.was_withdrawn(model.name)
        if asked:
            self.swaps.tries.forgive(entry.identity)
        refusal = None if again else self.swaps.tries.refusal(entry.identity)
        served = Served(
            id=self._census.take_id(),
            model=model,
            fingerprint=entry.fingerprint,
            identity=entry.identity,
            meter=VersionMeter(model.name, model.version) if current is None or serving else current.meter,
        )
        if refusal:
            accounts.found_given_up(served, refusal_text(refusal))
        if refusal and current is not None and serving:
            self._census.setbacks[key] = refusal
            return
        if serving:
            self._census.incoming[key] = served
        else:
            self._succession.place_route(served, now_ns)
        if refusal:
            served.enter(Phase.FAILED)
            served.refusal = refusal
            return
        self._census.served[served.id] = served
        before = current if serving else self._routes.current(model.name)
        background = before is not None or self._calm
        self.swaps.add(
            served, before, entry.trial, background=background, now_ns=now_ns, again=again, fallen=fallen
        )

    def tick(self, now_ns: int) -> None:
        """Time passed: start what is due, look at trials, let go what has drained."""
        self._groups.tick(now_ns)
        self.swaps.tick(now_ns)
        self._retries.tick(now_ns)
        self._forms.tick(now_ns)
        if self._forms.waiting and self.swaps.calm:
            self._forms.build()
        if self._census.leaving:
            self._succession.let_go(now_ns)

    def look(self, now_ns: int) -> None:
        """The routes have changed."""
        self._retries.plan(now_ns)

    # --- what workers say

    def worker_started(self, event: WorkerStarted) -> None:
        """The process exists; its loads are under way."""
        self._groups.worker_started(event)

    def model_loaded(self, event: ModelLoaded, now_ns: int) -> None:
        """One worker holds one more model: maybe its lane opens, maybe the model does."""
        served = self._census.served.get(event.model)
        if served is not None:
            served.seeds, served.packed = served.seeds or event.seeds, event.packed
            self.swaps.loaded(served, event)
            comes = served.returning or event.worker in self._groups.holders(served)
            quick = self._groups.loads_quickly(event.worker, served.id)
            if comes and not quick and self.swaps.status(served) is None:
                # What began out of memory had no chance yet to have its form built. A quick session uses none.
                self._succession.proven(served)
        self._groups.loaded(event, served, now_ns)

    def send_away(self, served: Served) -> None:
        """It serves on, but has to be asked for: its requests go by the scheduler no more."""
        self._succession.close(served)
        served.epoch += 1

    def take_back(self, served: Served) -> None:
        """It is in memory: the scheduler may have it."""
        self._succession.take_back(served)

    def put_out(self, served: Served, now_ns: int) -> tuple[int, ...]:
        """It leaves its workers; gives those that end with that."""
        self._succession.close(served)
        group = served.group
        self._groups.drop(served, now_ns)
        served.group, served.returning, served.quick = -1, False, False
        return self._groups.ending(group)

    def bring(self, served: Served, now_ns: int, *, quick: bool) -> None:
        """Load it again, for it serves: it is taken back when a worker has it. ``quick``: with a session that is there
        at once."""
        served.returning, served.quick = True, quick
        self._groups.place([served], now_ns)

    @property
    def groups(self) -> Groups:
        """To be asked only."""
        return self._groups

    def model_refused(self, event: ModelRefused, now_ns: int) -> None:
        """The runtime will not have it, or it gave wrong answers: UNAVAILABLE with the reason."""
        served = self._census.served.get(event.model)
        if served is not None:
            self.swaps.accounts.count(assessments=event.assessed, assessments_failed=event.assessed)
            # Its worker has judged its packed form, and then refused its own files.
            self._succession.give_up(served, event.reason, now_ns, form=False)

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
        culprit = self._census.served.get(culprit_of(event, model_of_batch, blamed, self._census.is_new))
        self._report(
            "worker exited", worker=worker.id, pid=worker.pid, detail=event.detail,
            model=culprit.key if culprit else None, batches_lost=len(event.batches), requests_handed_over=had,
            reason=event.cause.value,
        )  # fmt: skip
        delay_ns = self._supervisor.restart_delay_ns(group.id, now_ns - worker.started_ns)
        self._groups.lost(worker, group, now_ns + delay_ns)
        if culprit is not None:
            wish = worker.loading.get(culprit.id)
            if wish is not None and wish.quick:
                culprit.packed = False  # that session runs from no form
            loading = not wish.quick if wish is not None else event.loading == culprit.id
            self._blame(culprit, f"{event.cause.value}, {event.detail}", loading, now_ns)
        self._groups.resume(group, now_ns)

    def _blame(self, culprit: Served, detail: str, loading: bool, now_ns: int) -> None:
        """What a packed form did costs the form first: at once while it loads or the version is on trial, else when
        that would be given up. A version that changes over to its form has a trial of its own."""
        repeated = self._supervisor.crashed(culprit.id, now_ns)
        trying = self.swaps.status(culprit) is not None
        changing = trying and culprit.artifact is Artifact.PACKED
        formed = not changing and (loading or (culprit.packed and (repeated or trying)))
        if formed and self._forms.blame(culprit, detail):
            self._supervisor.forgive(culprit.id)
            return
        if self.swaps.crashed(culprit, detail, now_ns) or not repeated:
            return
        reason = f"quarantined after repeated crashes: {detail}"
        self._succession.give_up(culprit, reason, now_ns)

    # --- what else happens

    def form_built(self, event: FormBuilt, now_ns: int) -> None:
        """A packed form is there, or is not to be had."""
        self._forms.ended(event, now_ns)

    def stop_all(self) -> None:
        """The daemon ends: every worker is asked to leave."""
        self._forms.stop()
        self._groups.stop_all()

    # --- what others ask

    @property
    def settled(self) -> bool:
        """See Census."""
        return self._census.settled

    @property
    def leaving(self) -> bool:
        """Whether some version waits for its last requests."""
        return bool(self._census.leaving)

    def settled_of(self, name: str) -> bool:
        """See Census."""
        return self._census.settled_of(name)

    def held(self) -> list[ModelVersion]:
        """See Census."""
        return self._census.held()

    def served(self, model: int) -> Served | None:
        """The version with model id ``model``."""
        return self._census.served.get(model)

    def said_of(self, served: Served) -> Said:
        """See Census."""
        return self._census.said_of(served)

    def key_of(self, model: int) -> str | None:
        """See Census."""
        return self._census.key_of(model)

    def version_statuses(
        self, queued: Mapping[int, int], running: Mapping[int, int]
    ) -> tuple[VersionStatus, ...]:
        """All versions, for people; ``queued`` and ``running`` count requests by model id."""
        return tuple(
            version_status(
                served,
                said=self._census.said_of(served),
                queued=queued.get(served.id, 0),
                running=running.get(served.id, 0),
                workers=self._groups.holders(served),
                trial=self.swaps.status(served),
                tries_left=self.swaps.tries.left(served.record_key),
                next_try_ms=self._retries.next_try_ms(served),
            )
            for served in self._routes.all()
        )


def _repaired(given_up: Served, entry: CatalogVersion) -> bool:
    """Whether the files have been replaced by the same since: what failed may have been them."""
    return given_up.fingerprint != entry.fingerprint
