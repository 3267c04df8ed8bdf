"""How versions take over from one another, and leave: the rollout's second storey.

A version is swapped without a gap: names flip, the one before drains, stays for as long as one may want to go back to
it, and leaves. A version that fails on its way changes nothing for the one that serves.
"""

from __future__ import annotations

from dataclasses import replace

from appliance.core.rollout import actions as do
from appliance.core.rollout import trial as on
from appliance.core.rollout.attempt import Attempt
from appliance.core.rollout.ledger import Change, Ending
from appliance.core.rollout.phase import SERVING, Phase
from appliance.core.rollout.reasons import Failed, Refusal, RolledBack
from appliance.core.rollout.trials import Trials
from appliance.core.rollout.version import Artifact, Version, VersionSpec
from appliance.core.rollout.wish import TrialWish


class Succession(Trials):
    """Does with names and workers what trials come to."""

    def _add(self, spec: VersionSpec, like: Version | None = None) -> Version:
        version = Version(spec=spec)
        self._do(do.Add(version, like.id if like is not None else None))
        return version

    def _place(self, version: Version, now_ns: int) -> None:
        """From now on ``version`` is what its name and number mean; what was before leaves."""
        previous = self.registry.put(version)
        self._do(do.Route(version.id), do.Touch())
        if previous is not None:
            self._leave(previous, now_ns)

    # --- what trials come to

    def _flip(self, attempt: Attempt, now_ns: int) -> None:
        version = attempt.version
        self._report("version ready", version)
        if version.untried:
            self._report("went live without the configured trial", version, reason=version.untried)
        self._take_over(version, now_ns)
        self._retire(now_ns)
        self._do(do.Touch())

    def _rest(self, attempts: list[Attempt], now_ns: int) -> None:
        """They are proven and have no room now: they serve out of memory, and a request brings them."""
        for attempt in attempts:
            version = attempt.version
            version.enter(Phase.LIVE)
            self._do(do.Rest(version.id))
            if attempt.fallen:
                self._came_out(attempt, Ending.LIVE, Phase.QUEUED, "it serves again", now_ns)
                self._do(do.Forgive(attempt.key))
            self._conclude(attempt, now_ns)
        for attempt in attempts:
            self._report("version ready", attempt.version, residency="cold")
            self._take_over(attempt.version, now_ns)
        self._retire(now_ns)
        self._do(do.Touch(), do.WakeAt(0))  # they may be what others are to be tried beside

    def _take_over(self, version: Version, now_ns: int) -> None:
        """It serves; where other files had its name and number until now, they leave."""
        version.waiting = None
        if self.registry.incoming.get(version.slot) is not version:
            return
        del self.registry.incoming[version.slot]
        previous = self.registry.put(version)
        self._do(do.Route(version.id, counted=previous is not None), do.Touch())
        if previous is not None:
            self._leave(previous, now_ns)

    def _roll_back(self, attempt: Attempt, reason: str, now_ns: int) -> None:
        version, before = attempt.version, attempt.before
        assert before is not None, "nothing to go back to"
        self._report("version rolled back", version, to=before.model.key, reason=reason)
        self._refuse_form(version, reason)
        if attempt.crashed:
            self._do(do.Close(version.id))
        if before.phase is Phase.STANDBY:
            before.enter(Phase.LIVE)
        if before.slot == version.slot:
            if not version.is_packed:
                self.registry.setbacks[version.slot] = RolledBack(why=reason)
            self._place(before, now_ns)
            return
        if self.registry.find(before.slot) is not before:
            before.retiring = True
            self._place(before, now_ns)
        self._place(self._tombstone(version, RolledBack(why=reason)), now_ns)

    def _tombstone(self, version: Version, refusal: Refusal) -> Version:
        """What its name and number mean when a version serves no more."""
        stone = self._add(replace(version.spec, id=self.registry.take_id()), version)
        stone.enter(Phase.FAILED)
        stone.refusal, stone.retiring = refusal, version.retiring
        return stone

    def _give_up(
        self, version: Version, reason: str, now_ns: int, *, noted: bool = False, form: bool = True
    ) -> None:
        if version.phase is Phase.FAILED:
            return  # another of its workers has said so
        attempt = self.attempts.get(version.id)
        if attempt is not None and attempt.keeps_before:
            self._step(attempt, on.Recalled(reason), now_ns)
            self._do(do.Close(version.id))  # what waits for it is for the other now
            return
        was = version.phase
        version.enter(Phase.FAILED)
        version.refusal = Failed(why=reason)
        self._report("version unavailable", version, reason=reason)
        if form:
            self._refuse_form(version, reason)
        self._do(do.Close(version.id), do.Unload(version.id))
        incoming = self.registry.incoming.get(version.slot) is version
        if incoming:
            del self.registry.incoming[version.slot]
            self.registry.versions.pop(version.id, None)
            if not version.is_packed:
                self.registry.failed[version.slot] = version
                self.registry.setbacks[version.slot] = Failed(why=reason)
        self._given_up(version, was, reason, now_ns, noted=noted)
        if incoming:
            self._do(do.Forget(version.id))
        self._retire(now_ns)
        self._do(do.Touch())

    # --- packed forms

    def _refuse_form(self, version: Version, reason: str) -> None:
        if version.is_packed:
            self._do(do.RefuseForm(version.id, reason))

    def lacks_form(self, version: Version) -> bool:
        """Whether it is here to stay, and runs from no form."""
        stays = self.registry.find(version.slot) is version and version.slot not in self.registry.incoming
        return stays and not version.retiring and not version.packed

    def _repack(self, version: Version, now_ns: int) -> None:
        """Its form was built: swap it for itself."""
        if not self.lacks_form(version):
            return
        spec = replace(version.spec, id=self.registry.take_id(), artifact=Artifact.PACKED)
        packed = self._add(spec)
        self.registry.versions[packed.id] = self.registry.incoming[version.slot] = packed
        self._try(packed, version, TrialWish(), now_ns, background=True)

    # --- leaving

    def _retire(self, now_ns: int) -> None:
        """Let unwanted versions go once what is wanted of the same name serves, or nothing of it is wanted. A version
        that should replace them and is broken keeps them serving."""
        retiring = [version for version in self.registry.named() if version.retiring]
        # What was to replace what serves goes first: it would be taken for its heir, where neither is wanted any more.
        for version in sorted(retiring, key=lambda each: each.phase in SERVING):
            if self.registry.find(version.slot) is not version:
                continue  # it went with another
            name = version.model.name
            others = [other for other in self.registry.of(name) if not other.retiring]
            serving = any(other.phase in SERVING for other in others)
            unwanted = not others and name not in self.registry.troubled
            if serving or unwanted or version.phase not in SERVING:
                if unwanted and version.phase in SERVING:
                    reason = "no version of the model is wanted any more"
                    self._withdrawn(name, version.model.version, version.identity, reason)
                self.registry.remove(version)
                self._do(do.Unroute(version.id), do.Touch())
                self._leave(version, now_ns)

    def _withdrawn(self, name: str, number: int, identity: str, reason: str) -> None:
        change = Change(
            at_ms=0,
            name=name,
            version=number,
            identity=identity,
            ending=Ending.WITHDRAWN,
            before=number,
            reason=reason,
        )
        self._do(do.Note(change=change, counted=False))

    def _leave(self, version: Version, now_ns: int) -> None:
        kept = any(each.keeps_before and each.before is version for each in self.attempts.values())
        if version.phase in SERVING and kept:
            version.enter(Phase.STANDBY)
            self._report("version kept to go back to", version)
            return
        was = version.phase
        version.enter(Phase.DRAINING)
        self._gone(version, was, now_ns)
        self.registry.leaving.append(version)
        self._do(do.WakeAt(0))

    def _let_go(self, drained: tuple[int, ...]) -> None:
        """Forget what leaves and has drained."""
        for version in [each for each in self.registry.leaving if each.id in drained]:
            self.registry.leaving.remove(version)
            version.enter(Phase.GONE)
            self._do(do.Close(version.id))
            if self.registry.versions.pop(version.id, None) is not None:
                self._report("version unloaded", version)
            if not self.registry.knows(version.identity):
                self._do(do.ForgetForm(version.identity))
            self._do(do.Unload(version.id), do.Forget(version.id))
