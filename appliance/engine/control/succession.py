"""How versions take over from one another, and leave: what trials come to is done here, as a Board.

A version is swapped without a gap: routes flip, the one before drains, stays for as long as one may want to go back to
it, and leaves. A version that fails on its way changes nothing for the one that serves. One owner: the roster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from appliance.config.placement import PlacementConfig
from appliance.core.memory.actions import Reply
from appliance.core.rollout.phase import SERVING, Phase
from appliance.core.rollout.reasons import Failed, RolledBack, WaitReason
from appliance.core.rollout.version import Artifact
from appliance.core.rollout.wish import TrialWish
from appliance.core.scheduling.events import Event, ModelClosed, ModelOpened
from appliance.domain.model import Batching
from appliance.engine.control.candidate import Candidate
from appliance.engine.control.census import Census
from appliance.engine.control.forms import Forms
from appliance.engine.control.groups import Groups
from appliance.engine.control.swaps import Swaps, SwapTerms
from appliance.engine.versions.layout import merges
from appliance.engine.versions.routes import Routes, Served, tombstone
from appliance.engine.versions.wording import wait_text
from appliance.telemetry.meter import VersionMeter
from appliance.workers.port import WorkerPort, WorkerSettings


class Succession:
    """Implements the Board of its swaps. ``feed`` takes scheduler events; ``idle`` tells whether a model id has no
    request anywhere; ``soon`` asks for a turn at once, ``at`` at a time; ``settings`` are those of the n-th process;
    ``closed`` is told of a group of processes that is gone."""

    def __init__(
        self,
        *,
        census: Census,
        routes: Routes,
        workers: WorkerPort,
        placement: PlacementConfig,
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
        closed: Callable[[int], None],
    ) -> None:
        self._census = census
        self._routes = routes
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
            rests=rests,
            soon=soon,
            at=at,
        )
        self.groups = Groups(
            workers=workers,
            placement=placement,
            settings=settings,
            feed=feed,
            at=at,
            take_id=census.take_id,
            wish=self.swaps.wish,
            can_open=self._open,
            closed=closed,
        )
        self.forms = Forms(
            workers=workers, settings=settings, take_id=census.take_id, report=report,
            wanted=self._formless, built=self._repack, at=at,
        )  # fmt: skip
        self._pack = swap.config.packed_forms

    def place_route(self, served: Served, now_ns: int) -> None:
        """From now on ``served`` is what its name and version mean; what was before leaves."""
        previous = self._routes.put(served)
        if previous is not None:
            self.leave(previous, now_ns)

    def _open(self, served: Served, now_ns: int) -> None:
        """The scheduler may have it; whether it serves is for its trial to say."""
        self.take_back(served)
        self.swaps.opened(served, now_ns)

    def take_back(self, served: Served) -> None:
        """It is in memory: the scheduler may have it."""
        served.opened = True
        max_batch = served.model.max_batch_size if merges(served.model) else 1
        self._feed(ModelOpened(served.id, served.group, max_batch, served.model.batching or Batching()))

    def close(self, served: Served) -> None:
        """The scheduler may have it no more."""
        if served.opened:
            served.opened = False
            self._feed(ModelClosed(served.id))

    # --- what trials come to

    def start(self, fresh: Sequence[Served], now_ns: int, *, alone: bool) -> None:
        """See Board."""
        self.groups.place(fresh, now_ns, alone=alone)

    def waits(self, candidate: Candidate, reason: WaitReason | None) -> None:
        """See Board."""
        served, before = candidate.served, candidate.served.waiting
        if before is None and reason is not None:
            packed = served.artifact is Artifact.PACKED
            self._report(
                "packed form waits" if packed else "version waits", model=served.key, reason=wait_text(reason)
            )
        served.waiting = reason
        if (before is None) is not (reason is None):
            self._routes.touch()

    def loading_aside(self) -> set[int]:
        """See Board."""
        return self.groups.loading_aside()

    def flip(self, candidate: Candidate, now_ns: int) -> None:
        """See Board."""
        served = candidate.served
        self._report("version ready", model=served.key)
        if served.untried:
            self._report("went live without the configured trial", model=served.key, reason=served.untried)
        self._take_over(served, now_ns)
        self.retire(now_ns)
        self._routes.touch()

    def rest(self, resting: Sequence[Served], now_ns: int) -> None:
        """See Board."""
        for served in resting:
            self._report("version ready", model=served.key, residency=served.residency.value)
            self._take_over(served, now_ns)
        self.retire(now_ns)
        self._routes.touch()

    def _take_over(self, served: Served, now_ns: int) -> None:
        """It is READY; where other files had its name and version until now, they leave."""
        served.waiting = None
        key = (served.model.name, served.model.version)
        if self._census.incoming.get(key) is not served:
            return
        del self._census.incoming[key]
        previous = self._routes.put(served)
        if previous is not None:
            previous.meter.absorb(served.meter)
            served.meter = previous.meter
            self.leave(previous, now_ns)

    def reject(self, candidate: Candidate, reason: str, now_ns: int) -> None:
        """See Board."""
        served = candidate.served
        self.give_up(served, reason, now_ns, noted=True, form=served.packed or candidate.crashed)

    def roll_back(self, candidate: Candidate, reason: str, now_ns: int) -> None:
        """See Board."""
        served, before = candidate.served, candidate.before
        assert before is not None, "nothing to go back to"
        self._report("version rolled back", model=served.key, to=before.key, reason=reason)
        self.forms.refuse(served, reason)
        if candidate.crashed:
            self.close(served)
        stone = tombstone(served, self._census.take_id(), RolledBack(why=reason))
        if before.phase is Phase.STANDBY:
            before.enter(Phase.LIVE)
        if before.key == served.key:
            stone = before
            if served.artifact is Artifact.AS_PACKAGED:
                key = (served.model.name, served.model.version)
                self._census.setbacks[key] = RolledBack(why=reason)
        elif self._routes.find(before.model.name, before.model.version) is not before:
            before.retiring = True
            self.place_route(before, now_ns)
        self.place_route(stone, now_ns)
        self._routes.touch()

    def spare(self, before: Served, now_ns: int) -> None:
        """See Board."""
        if before.phase is Phase.STANDBY:
            self.leave(before, now_ns)

    def proven(self, served: Served) -> None:
        """See Board."""
        if self._pack:
            self.forms.consider(served)
            self._soon()

    def _formless(self, served: Served) -> bool:
        """Whether it is here to stay, and runs from no form."""
        key = (served.model.name, served.model.version)
        stays = self._routes.find(*key) is served and key not in self._census.incoming and not served.retiring
        return stays and not served.packed

    def _repack(self, served: Served, now_ns: int) -> None:
        """Its form was built: swap it for itself."""
        if not self._formless(served):
            return
        key = (served.model.name, served.model.version)
        packed = Served(
            id=self._census.take_id(),
            model=served.model,
            fingerprint=served.fingerprint,
            identity=served.identity,
            artifact=Artifact.PACKED,
            meter=VersionMeter(*key),
        )
        self._census.served[packed.id] = self._census.incoming[key] = packed
        self.swaps.add(packed, served, TrialWish(), background=True, now_ns=now_ns)
        self.swaps.start(now_ns)

    def diverted(self) -> None:
        """See Board."""
        self._routes.touch()

    def current(self, name: str) -> Served | None:
        """See Board."""
        return self._routes.current(name)

    def give_up(
        self, served: Served, reason: str, now_ns: int, *, noted: bool = False, form: bool = True
    ) -> None:
        """It never serves (again), from this moment on; while it is watched, what served before does. ``noted``: its
        history says so; ``form``: a packed form that it was to run from is to blame, too."""
        if served.phase is Phase.FAILED:
            return  # another of its workers has said so
        if self.swaps.broke(served, reason, now_ns):
            self.close(served)  # what waits for it is for the other now
            return
        was = served.phase
        served.enter(Phase.FAILED)
        served.refusal = Failed(why=reason)
        self._report("version unavailable", model=served.key, reason=reason)
        if form and not served.quick:  # that session runs from no form
            self.forms.refuse(served, reason)
        self.close(served)
        self.groups.drop(served, now_ns)
        served.group = -1
        key = (served.model.name, served.model.version)
        if self._census.incoming.get(key) is served:
            del self._census.incoming[key]
            self._census.served.pop(served.id, None)
            if served.artifact is Artifact.AS_PACKAGED:
                self._census.failed[key] = served
                self._census.setbacks[key] = Failed(why=reason)
        self.swaps.given_up(served, was, reason, now_ns, noted=noted)
        self.retire(now_ns)
        self._routes.touch()

    # --- leaving

    def retire(self, now_ns: int) -> None:
        """Let unwanted versions go once what is wanted of the same name serves, or nothing of it is wanted. A version
        that should replace them and is broken keeps them serving."""
        retiring = [served for served in self._routes.all() if served.retiring]
        # Who was to replace what serves goes first: it would be taken for its heir, where neither is wanted any more.
        for served in sorted(retiring, key=lambda each: each.phase in SERVING):
            if self._routes.find(served.model.name, served.model.version) is not served:
                continue  # it went with another
            others = [other for other in self._routes.of(served.model.name) if not other.retiring]
            serving = any(other.phase in SERVING for other in others)
            unwanted = not others and served.model.name not in self._census.troubled
            if serving or unwanted or served.phase not in SERVING:
                if unwanted and served.phase in SERVING:
                    self.swaps.accounts.withdrawn(served)
                self._routes.remove(served)
                self.leave(served, now_ns)

    def leave(self, served: Served, now_ns: int) -> None:
        """It serves no more; it goes when its last request has ended, unless it is kept to go back to."""
        if served.phase in SERVING and self.swaps.keeps(served):
            served.enter(Phase.STANDBY)
            self._report("version kept to go back to", model=served.key)
            return
        was = served.phase
        served.enter(Phase.DRAINING)
        self.swaps.gone(served, was, now_ns)
        self._census.leaving.append(served)
        self._soon()

    def let_go(self, now_ns: int) -> None:
        """Forget what leaves and has drained."""
        for served in [served for served in self._census.leaving if self._idle(served.id)]:
            self._census.leaving.remove(served)
            self._forget(served, now_ns)

    def _forget(self, served: Served, now_ns: int) -> None:
        self.close(served)
        served.enter(Phase.GONE)
        if self._census.served.pop(served.id, None) is not None:
            self._report("version unloaded", model=served.key)
        if not self._census.knows(served.identity):
            self.forms.forget(served.identity)
        self.groups.drop(served, now_ns)
