"""The rollout of versions: what is wanted, tried, serves, is gone back to, is tried again, and leaves. Pure.

``step(event, now_ns)`` takes what happened and gives what is to be done, in that order; some of it (memory, figures,
what is counted on the disk) is answered by an event. Rules:

* as soon as a model was ready once, something serves it until nothing of it is wanted;
* a version that is not proven here is counted on the disk before it is loaded, and out after so many attempts;
* a version proves itself beside the one that serves, which stays until it has done so: that is a proposal. An order
  (``CatalogVersion.order``) of a version that is proven here is carried out at once, and compared with nothing;
* few versions load in the background at a time, each when there is memory for it.
"""

from __future__ import annotations

from typing import Final

from appliance.core.rollout import actions as do
from appliance.core.rollout import events as told
from appliance.core.rollout import trial as on
from appliance.core.rollout.attempt import Attempt
from appliance.core.rollout.catalog import CatalogVersion
from appliance.core.rollout.ledger import Change, Ending, Ledger
from appliance.core.rollout.phase import ON_ITS_WAY, SERVING, Phase
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.reasons import Refusal
from appliance.core.rollout.registry import Slot, is_of, is_repaired
from appliance.core.rollout.retries import Due, Retries
from appliance.core.rollout.standing import has_fallen, pause_ms, refusal_of
from appliance.core.rollout.starts import Starts
from appliance.core.rollout.trials import change_of
from appliance.core.rollout.version import Version, VersionSpec

MS_NS: Final = 1_000_000
GIVEN_UP: Final = frozenset({Ending.GIVEN_UP, Ending.REFUSED, Ending.ROLLED_BACK, Ending.POSTPONED})
"""Endings by which a version does not serve."""


class Rollout(Starts):
    """Of all versions on a box. Its attributes are to be read only."""

    def __init__(self, config: RolloutPolicy, ledger: Ledger) -> None:
        super().__init__(config, ledger)
        self.retries = Retries()
        self._applied = False
        self._calm = False
        """Whether the first load is over."""

    def step(self, event: told.Event, now_ns: int) -> list[do.Action]:
        """What is to be done now that ``event`` has happened."""
        match event:
            case told.Wanted():
                self._wanted(event, now_ns)
            case told.Tick():
                self._tick(event, now_ns)
            case told.Changed():
                self._plan_retries(event.wall_ms, now_ns)
            case told.Stopping():
                for attempt in self.attempts.values():
                    self._uncount(attempt, attempt.phase)
            case told.MemoryAnswered():
                self._memory_answered(event, now_ns)
            case told.AttemptsRecorded():
                self._recorded(event, now_ns)
            case told.Drained():
                self._let_go(event.versions)
            case _:
                self._seen(event, now_ns)
        actions, self.actions = self.actions, []
        return actions

    # --- what workers and requests say

    def _seen(
        self,
        event: told.Loaded
        | told.Opened
        | told.Refused
        | told.Crashed
        | told.Compared
        | told.Missed
        | told.FiguresRead
        | told.FormBuilt
        | told.FormDropped,
        now_ns: int,
    ) -> None:
        version, attempt = self.registry.versions.get(event.version), self.attempts.get(event.version)
        match event:
            case told.Loaded() if version is not None:
                _loaded(version, event)
            case told.Refused() if version is not None:
                # Its worker has judged its packed form, and then refused its own files.
                self._give_up(version, event.reason, now_ns, form=False)
            case told.Crashed() if version is not None:
                self._crashed(version, attempt, event, now_ns)
            case told.FormDropped() if version is not None:
                version.drop_form(refused=event.refused)
            case told.FormBuilt() if version is not None:
                self._repack(version, now_ns)
                self._start(now_ns)
            case told.Opened() if attempt is not None and attempt.phase is Phase.LOADING:
                self._take_place(attempt, now_ns)
                self._do(do.WakeAt(0))
            case told.Compared() if attempt is not None:
                self._step(attempt, on.Compared(event.difference), now_ns)
            case told.Missed() if attempt is not None:
                attempt.missed += 1
            case told.FiguresRead() if attempt is not None:
                self._figures_read(attempt, event, now_ns)
            case _:
                return  # it has gone meanwhile

    def _crashed(self, version: Version, attempt: Attempt | None, event: told.Crashed, now_ns: int) -> None:
        if attempt is not None:
            attempt.crashed = True
            self._step(attempt, on.Crashed(event.detail), now_ns)
            if version.id not in self.attempts:
                return
        if event.repeated:
            self._give_up(version, f"quarantined after repeated crashes: {event.detail}", now_ns)

    def awaits_requests_of(self, version: int) -> Version | None:
        """The version before ``version``, if the requests that it would have taken, and ``version`` refuses as invalid,
        count as failures: where a trial would have shown that before, and it serves for the first time."""
        attempt = self.attempts.get(version)
        if attempt is None or attempt.known or not (attempt.keeps_before and attempt.version.untried):
            return None
        return attempt.before

    @property
    def calm(self) -> bool:
        """Whether nothing loads and nothing is on trial, but for what waits for memory."""
        return all(each.live or each.stuck for each in self.attempts.values())

    # --- time

    def _tick(self, event: told.Tick, now_ns: int) -> None:
        self._loading = event.loading
        self._look(now_ns)
        self._start(now_ns)
        self._retry(event.wall_ms, now_ns)

    # --- what is tried again

    def _plan_retries(self, wall_ms: int, now_ns: int) -> None:
        """Names mean something else: see what is left to be tried, and when."""
        before, self.retries.due = self.retries.due, {}
        for entry in self.retries.wanted:
            version = self._left_alone(entry)
            due = before.get(entry.identity)
            if version is not None and due is None:
                due = self._first_try(entry, version, wall_ms, now_ns)
            if version is not None and due is not None:
                self.retries.due[entry.identity] = due._replace(entry=entry)
        self._wake()

    def _left_alone(self, entry: CatalogVersion) -> Version | None:
        """What stands for ``entry``, if it was given up and nothing else of its model serves or may."""
        version = self.registry.find((entry.model.name, entry.model.version))
        if version is None or version.phase is not Phase.FAILED:
            return None
        if entry.trial is not None and entry.trial.hold:
            return None
        others = self.registry.of(entry.model.name)
        return None if any(other.phase in ON_ITS_WAY | SERVING for other in others) else version

    def _first_try(self, entry: CatalogVersion, version: Version, wall_ms: int, now_ns: int) -> Due | None:
        left_ms = pause_ms(self.ledger.standing(entry.identity), self.config, wall_ms)
        if left_ms is None:
            return None
        self._report("version will be tried again", version, in_s=left_ms // 1_000)
        change = change_of(version, Ending.POSTPONED)
        self._do(do.Note(change=change, again_at_ms=wall_ms + left_ms, counted=False))
        return Due(now_ns + left_ms * MS_NS, wall_ms + left_ms, entry)

    def _wake(self) -> None:
        if self.retries.due:
            self._do(do.WakeAt(min(due.at_ns for due in self.retries.due.values())))

    def _retry(self, wall_ms: int, now_ns: int) -> None:
        """Try the next one, if it is time and no other is being tried."""
        retries = self.retries
        if not retries.due or self._retrying:
            return
        due = min(retries.due.values(), key=lambda due: due.at_ns)
        if due.at_ns > now_ns:
            self._wake()
            return
        del retries.due[due.entry.identity]
        retries.trying = due.entry
        self._do(do.Retried(due.entry.model.key))
        self._admit(due.entry, wall_ms, now_ns, again=True)

    @property
    def _retrying(self) -> bool:
        trying = self.retries.trying
        version = (
            self.registry.find((trying.model.name, trying.model.version)) if trying is not None else None
        )
        if version is None or (version.phase in ON_ITS_WAY and version.waiting is not None):
            return False  # it waits for memory that may never come
        return version.id in self.attempts

    # --- what is wanted

    def _wanted(self, event: told.Wanted, now_ns: int) -> None:
        """Work towards a catalog: new and changed versions load, unwanted ones leave when they can be spared."""
        registry, catalog = self.registry, event.catalog
        self._calm = self._calm or (bool(registry.versions) and registry.settled)
        registry.troubled = {problem.name: problem.reason for problem in catalog.problems}
        wanted = {(entry.model.name, entry.model.version): entry for entry in catalog.versions}
        if not self._applied:
            self._applied = True
            self._found_withdrawn({name for name, _ in wanted} | registry.troubled.keys())
        registry.by_hand = frozenset(slot for slot, entry in wanted.items() if entry.by_hand)
        for entry in wanted.values():
            self._go_back(entry, now_ns)
        for version in registry.named():
            version.retiring = version.slot not in wanted
        for slot in [slot for slot in registry.incoming if slot not in wanted]:
            self._leave(registry.incoming.pop(slot), now_ns)
        for slot in (registry.failed.keys() | registry.setbacks.keys()) - wanted.keys():
            registry.failed.pop(slot, None)
            registry.setbacks.pop(slot, None)
        for slot, entry in wanted.items():
            self._want(slot, entry, event, now_ns)
        self._retire(now_ns)
        self.retries.wanted = tuple(wanted.values())
        self._start(now_ns)
        self._do(do.Touch())

    def _want(self, slot: Slot, entry: CatalogVersion, event: told.Wanted, now_ns: int) -> None:
        registry = self.registry
        asked = not {entry.model.name, entry.model.key}.isdisjoint(event.asked)
        current = self._withdraw(slot, entry, now_ns) or registry.incoming.get(slot) or registry.find(slot)
        if current is None or not is_of(current, entry):
            self._admit(entry, event.wall_ms, now_ns, asked=asked)
        elif current.phase is not Phase.FAILED:
            current.refresh(entry.fingerprint)
            self._renew(current, entry.trial, now_ns)
        elif self._may_try_again(current, entry, asked, event.wall_ms):
            self._admit(entry, event.wall_ms, now_ns, asked=asked or is_repaired(current, entry))

    def _withdraw(self, slot: Slot, entry: CatalogVersion, now_ns: int) -> Version | None:
        """What serves, if that is what is wanted, and what was to take its place is not."""
        current, new = self.registry.find(slot), self.registry.incoming.get(slot)
        if current is None or current.phase not in SERVING or not is_of(current, entry):
            return None
        self.registry.setbacks.pop(slot, None)
        if new is None:
            return current
        if is_of(new, entry):
            return None
        del self.registry.incoming[slot]
        self._leave(new, now_ns)
        return current

    def _go_back(self, entry: CatalogVersion, now_ns: int) -> None:
        """What is wanted may be what is kept to go back to: nothing failed."""
        name, number = entry.model.name, entry.model.version
        current = self.registry.find((name, number))
        if current is not None and is_of(current, entry):
            return
        for attempt in list(self.attempts.values()):
            if attempt.keeps_before and attempt.before is not None and is_of(attempt.before, entry):
                attempt.blameless = True
                self._step(attempt, on.Recalled(f"version {number} is wanted again"), now_ns)
                return

    def _may_try_again(self, given_up: Version, entry: CatalogVersion, asked: bool, wall_ms: int) -> bool:
        """Whether a version that was given up is to be loaded once more now: because an operator asks, or its package
        was repaired, or its pause is over; where nothing else serves it has its turn with the others for that."""
        if asked or is_repaired(given_up, entry):
            return True
        standing = self.ledger.standing(entry.identity)
        if self.retries.next_try_ms(given_up) or pause_ms(standing, self.config, wall_ms) != 0:
            return False
        return refusal_of(standing, self.config, entry.model) is None

    def _admit(
        self, entry: CatalogVersion, wall_ms: int, now_ns: int, *, asked: bool = False, again: bool = False
    ) -> None:
        """A new version; it takes its name and number at once unless other files of them serve. ``asked``: by an
        operator; ``again``: although it was given up."""
        registry, slot = self.registry, (entry.model.name, entry.model.version)
        current, pending = registry.find(slot), registry.incoming.pop(slot, None)
        registry.setbacks.pop(slot, None)
        if pending is not None:
            self._leave(pending, now_ns)
        serving = current is not None and current.phase in SERVING
        failed = registry.failed.pop(slot, None)
        if serving and failed is not None and is_of(failed, entry):
            if not self._may_try_again(failed, entry, asked, wall_ms):
                assert failed.refusal is not None, "it was given up"
                registry.failed[slot], registry.setbacks[slot] = failed, failed.refusal
                return
            asked = asked or is_repaired(failed, entry)
        standing = self.ledger.standing(entry.identity)
        fallen = has_fallen(standing) or self._was_withdrawn(entry.model.name)
        if asked:
            self._do(do.Forgive(entry.identity))
        refusal = None if again or asked else refusal_of(standing, self.config, entry.model)
        spec = VersionSpec(
            id=registry.take_id(), model=entry.model, fingerprint=entry.fingerprint, identity=entry.identity
        )
        version = Version(spec=spec)
        if refusal is not None:
            self._refuse(version, refusal)
        if refusal is not None and serving:
            registry.setbacks[slot] = refusal
            return
        self._do(do.Add(version, current.id if current is not None and not serving else None))
        if serving:
            registry.incoming[slot] = version
        else:
            self._place(version, now_ns)
        if refusal is not None:
            return
        registry.versions[version.id] = version
        before = current if serving else registry.current(entry.model.name)
        background = before is not None or self._calm
        self._try(
            version,
            before,
            entry.trial,
            now_ns,
            background=background,
            order=entry.order,
            again=again,
            fallen=fallen,
        )

    def _refuse(self, version: Version, refusal: Refusal) -> None:
        """It is not tried at all; its history says so once, also where it was the daemon's own end that used up its
        attempts, which could not be written down."""
        version.enter(Phase.FAILED)
        version.refusal = refusal
        told_of = [each for each in self.ledger.history(version.model.name) if _is_of(each, version)]
        if not told_of or told_of[-1].ending not in GIVEN_UP:
            self._do(do.Note(change=change_of(version, Ending.GIVEN_UP), refusal=refusal))

    def _was_withdrawn(self, name: str) -> bool:
        """Whether that is the last that its history says of a model."""
        history = self.ledger.history(name)
        return bool(history) and history[-1].ending is Ending.WITHDRAWN

    def _found_withdrawn(self, wanted: set[str]) -> None:
        """What served when the daemon ended, and is of no ``wanted`` model now, was withdrawn while nothing could write
        that down."""
        history = self.ledger.history("")
        identities = {(change.name, change.version): change.identity for change in history}
        for change in {change.name: change for change in history}.values():
            if change.after and change.name not in wanted:
                reason = "no version of the model was wanted any more when the appliance started"
                identity = identities.get((change.name, change.after), "")
                self._withdrawn(change.name, change.after, identity, reason)


def _is_of(change: Change, version: Version) -> bool:
    same = (change.identity, change.artifact) == (version.identity, version.spec.artifact)
    return same and change.ending is not Ending.ABANDONED


def _loaded(version: Version, event: told.Loaded) -> None:
    """Several workers may hold it: the slowest of them counts."""
    version.seeds, version.packed = version.seeds or event.seeds, event.packed
    known, proof = version.assessment, event.assessment
    if proof is not None and (known is None or proof.failure or proof.p50_ns > known.p50_ns):
        version.assessment = proof
