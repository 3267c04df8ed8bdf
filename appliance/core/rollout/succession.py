"""How versions take over from one another, and leave.

A version is swapped without a gap: names flip, the one before drains, stays for as long as one may want to go back to
it, and leaves. A version that fails on its way changes nothing for the one that serves.
"""

from __future__ import annotations

from dataclasses import replace

from appliance.core.rollout import actions as do
from appliance.core.rollout import trial as on
from appliance.core.rollout.attempt import (
    Attempt,
    Contender,
    IsGivenUp,
    Leaves,
    Outcome,
    RollsBack,
    Steps,
    TakesOver,
)
from appliance.core.rollout.catalog import TrialWish
from appliance.core.rollout.phase import SERVING, Phase
from appliance.core.rollout.reasons import (
    EngineSlower,
    Failed,
    NoLongerWanted,
    RolledBack,
    ServesAgain,
    Verdict,
)
from appliance.core.rollout.records import Change, Ending
from appliance.core.rollout.registry import Registry
from appliance.core.rollout.trials import Trials
from appliance.core.rollout.version import Artifact, Version, VersionSpec
from appliance.domain.side_by_side import SideBySide


class Succession:
    """Does with names and workers what trials come to. Owner: the rollout."""

    def __init__(self, registry: Registry, trials: Trials) -> None:
        self._registry = registry
        self._trials = trials

    def place(self, version: Version, now_ns: int) -> Steps:
        """From now on ``version`` is what its name and number mean; what was before leaves."""
        previous = self._registry.put(version)
        yield do.Route(version.id)
        yield do.Touch()
        if previous is not None:
            yield from self.leave(previous, now_ns)

    # --- what trials come to

    def follow(self, outcome: Outcome, now_ns: int) -> Steps:
        """Carry out what a trial came to."""
        match outcome:
            case TakesOver(attempt):
                return self.flip(attempt, now_ns)
            case RollsBack(attempt, verdict):
                return self.roll_back(attempt, verdict, now_ns)
            case IsGivenUp(version, verdict, form):
                return self.give_up(version, verdict, now_ns, noted=True, form=form)
            case Leaves(version):
                return self.leave(version, now_ns)

    def flip(self, attempt: Attempt, now_ns: int) -> Steps:
        """From the next request on it serves."""
        version = attempt.version
        yield do.report("version ready", version)
        if version.untried is not None:
            yield do.report("went live without the configured trial", version, version.untried)
        if attempt.unheld is not None:
            yield do.report("went live without a golden set", version, attempt.unheld)
        yield from self._take_over(version, now_ns)
        yield from self.retire(now_ns)
        yield do.Touch()

    def rest(self, attempts: list[Attempt], now_ns: int) -> Steps:
        """They are proven and have no room now: they serve out of memory, and a request brings them."""
        for attempt in attempts:
            version = attempt.version
            version.enter(Phase.LIVE)
            yield do.Rest(version.id)
            if attempt.contender.fallen:
                yield attempt.came_out(Ending.LIVE, Phase.QUEUED, ServesAgain(), now_ns)
                yield do.Forgive(attempt.key)
            yield from self._trials.conclude(attempt)
        for attempt in attempts:
            yield do.report("version ready", attempt.version, residency="cold")
            yield from self._take_over(attempt.version, now_ns)
        yield from self.retire(now_ns)
        yield do.Touch()
        yield do.WakeAt(0)  # they may be what others are to be tried beside

    def _take_over(self, version: Version, now_ns: int) -> Steps:
        """It serves; where other files had its name and number until now, they leave."""
        version.waiting = None
        if self._registry.incoming.get(version.slot) is not version:
            return
        del self._registry.incoming[version.slot]
        previous = self._registry.put(version)
        yield do.Route(version.id, counted=previous is not None)
        if previous is not None:
            yield from self.leave(previous, now_ns)

    def roll_back(self, attempt: Attempt, reason: Verdict, now_ns: int) -> Steps:
        """It serves no more, and what served before does again."""
        version, before = attempt.version, attempt.before
        assert before is not None, "nothing to go back to"
        yield do.report("version rolled back", version, reason, to=before.model.key)
        if version.is_packed:
            yield do.RefuseForm(version.id, reason, before.id)
        if attempt.crashed:
            yield do.Close(version.id)
        if before.phase is Phase.STANDBY:
            yield from self._trials.watch_again(before, now_ns)
        if before.slot == version.slot:
            if not version.is_copy:
                self._registry.setbacks[version.slot] = RolledBack(why=reason)
            before.retiring = version.retiring  # it may have been kept while another number was wanted
            yield from self.place(before, now_ns)
            return
        if self._registry.find(before.slot) is not before:
            before.retiring = True
            yield from self.place(before, now_ns)
        # What its name and number mean when a version serves no more.
        stone = Version(spec=replace(version.spec, id=self._registry.take_id()), retiring=version.retiring)
        yield do.Add(stone, version.id)
        stone.enter(Phase.FAILED)
        stone.setback = RolledBack(why=reason)
        yield from self.place(stone, now_ns)

    def give_up(
        self, version: Version, reason: Verdict, now_ns: int, *, noted: bool = False, form: bool = True
    ) -> Steps:
        """It never serves (again). ``noted``: its history says so; ``form``: a packed form that it was to run from is
        to blame, too."""
        if version.phase is Phase.FAILED:
            return  # another of its workers has said so
        attempt = self._trials.attempts.get(version.id)
        if attempt is not None and attempt.keeps_before:
            yield from self._trials.step(attempt, on.Recalled(reason), now_ns)
            yield do.Close(version.id)  # what waits for it is for the other now
            return
        was = version.phase
        version.enter(Phase.FAILED)
        version.setback = Failed(why=reason)
        incoming = self._registry.incoming.get(version.slot) is version
        changing = incoming and version.is_packed  # what serves does so still, without its form
        yield do.report("packed form abandoned" if changing else "version unavailable", version, reason)
        if form and version.is_packed:
            serving = self._registry.find(version.slot) if changing else None
            passing = isinstance(reason, EngineSlower) and reason.may_pass
            yield do.RefuseForm(version.id, reason, None if serving is None else serving.id, passing)
        yield do.Close(version.id)
        yield do.Unload(version.id)
        if incoming:
            del self._registry.incoming[version.slot]
            self._registry.versions.pop(version.id, None)
            if not version.is_copy:
                self._registry.failed[version.slot] = version
                self._registry.setbacks[version.slot] = Failed(why=reason)
        yield from self._trials.given_up(version, was, reason, now_ns, noted=noted)
        if incoming:
            yield do.Forget(version.id)
        yield from self.retire(now_ns)
        yield do.Touch()

    # --- packed forms

    def lacks_form(self, version: Version) -> bool:
        """Whether it is here to stay, and runs from no form."""
        return self._stays(version) and not version.packed

    def _stays(self, version: Version) -> bool:
        """Whether it is what its name and number mean, and nothing is to take its place."""
        stays = self._registry.find(version.slot) is version and version.slot not in self._registry.incoming
        return stays and not version.retiring

    def repack(self, version: Version, compared: tuple[SideBySide, ...], now_ns: int) -> Steps:
        """Its form was built: swap it for itself, unless that is an engine which is slower than what serves."""
        if not self.lacks_form(version):
            return
        spec = replace(version.spec, id=self._registry.take_id(), artifact=Artifact.PACKED, moved=False)
        yield from self._copy(version, spec, now_ns, background=True)
        yield from self._trials.step(self._trials.attempts[spec.id], on.RunBeside(compared), now_ns)

    # --- other devices

    def move(self, version: Version, now_ns: int) -> Steps:
        """Swap it for itself, on another device; it serves until that one does."""
        if self._stays(version) and version.phase in SERVING:
            spec = replace(version.spec, id=self._registry.take_id(), moved=True)
            yield from self._copy(version, spec, now_ns, background=False)

    def _copy(self, version: Version, spec: VersionSpec, now_ns: int, *, background: bool) -> Steps:
        copy = Version(spec=spec)
        yield do.Add(copy)
        self._registry.versions[copy.id] = self._registry.incoming[version.slot] = copy
        contender = Contender(version=copy, before=version, wish=TrialWish(), background=background)
        self._trials.begin(contender, now_ns)

    # --- leaving

    def retire(self, now_ns: int) -> Steps:
        """Let unwanted versions go once what is wanted of the same name serves, or nothing of it is wanted. A version
        that should replace them and is broken keeps them serving."""
        retiring = [version for version in self._registry.named() if version.retiring]
        # What was to replace what serves goes first: it would be taken for its heir, where neither is wanted any more.
        for version in sorted(retiring, key=lambda each: each.phase in SERVING):
            if self._registry.find(version.slot) is not version:
                continue  # it went with another
            name = version.model.name
            others = [other for other in self._registry.of(name) if not other.retiring]
            serving = any(other.phase in SERVING for other in others)
            unwanted = not others and name not in self._registry.troubled
            if serving or unwanted or version.phase not in SERVING:
                if unwanted and version.phase in SERVING:
                    yield withdrawn(name, version.model.version, version.identity)
                self._registry.remove(version)
                yield do.Unroute(version.id)
                yield from self.leave(version, now_ns)

    def leave(self, version: Version, now_ns: int) -> Steps:
        """It serves no more; it goes when its last request has ended, unless it is kept to go back to."""
        kept = any(each.keeps_before and each.before is version for each in self._trials.attempts.values())
        if version.phase in SERVING and kept:
            version.enter(Phase.STANDBY)
            yield do.report("version kept to go back to", version)
            yield from self._trials.stands_by(version, now_ns)
            return
        was = version.phase
        version.enter(Phase.DRAINING)
        yield from self._trials.gone(version, was, now_ns)
        self._registry.leaving.append(version)
        yield do.WakeAt(0)

    def let_go(self, drained: tuple[int, ...]) -> Steps:
        """Forget what leaves and has drained."""
        for version in [each for each in self._registry.leaving if each.id in drained]:
            self._registry.leaving.remove(version)
            version.enter(Phase.GONE)
            yield do.Close(version.id)
            if self._registry.versions.pop(version.id, None) is not None:
                yield do.report("version unloaded", version)
            if not self._registry.knows(version.identity):
                yield do.ForgetForm(version.identity)
            yield do.Unload(version.id)
            yield do.Forget(version.id)


def withdrawn(name: str, number: int, identity: str, *, at_start: bool = False) -> do.Note:
    """The line of history for a model of which nothing is wanted any more; the version ``number`` served."""
    change = Change(
        at_ms=0, name=name, version=number, identity=identity, ending=Ending.WITHDRAWN, before=number
    )
    return do.Note(change=change, remark=NoLongerWanted(model=True, at_start=at_start), counted=False)
