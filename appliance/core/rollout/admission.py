"""What comes to be wanted on a box, or is wanted no more, and what that begins and ends."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from appliance.core.rollout import actions as do
from appliance.core.rollout import events as told
from appliance.core.rollout import trial as on
from appliance.core.rollout.attempt import Contender, Step, Steps, held_back
from appliance.core.rollout.catalog import CatalogVersion, is_on_trial
from appliance.core.rollout.phase import SERVING, Phase
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.reasons import (
    COMPARED,
    Failed,
    InterfaceChanged,
    RolledBack,
    Setback,
    WantedAgain,
)
from appliance.core.rollout.records import Change, Ending, RecordsPort
from appliance.core.rollout.registry import Registry, Slot, is_of, is_repaired
from appliance.core.rollout.retries import Retries, has_fallen, pause_ms, setback_of
from appliance.core.rollout.succession import Succession, withdrawn
from appliance.core.rollout.trials import Trials
from appliance.core.rollout.version import Version, VersionSpec

GIVEN_UP: Final = frozenset({Ending.GIVEN_UP, Ending.REFUSED, Ending.ROLLED_BACK, Ending.POSTPONED})
"""Endings by which a version does not serve."""


class Admission:
    """Takes in catalogs. Owner: the rollout."""

    def __init__(
        self,
        config: RolloutPolicy,
        records: RecordsPort,
        registry: Registry,
        trials: Trials,
        succession: Succession,
        retries: Retries,
    ) -> None:
        self._config = config
        self._records = records
        self._registry = registry
        self._trials = trials
        self._succession = succession
        self._retries = retries
        self._applied = False
        self._calm = False
        """Whether the first load is over."""

    def take(self, event: told.Wanted, now_ns: int) -> Steps:
        """Work towards a catalog: new and changed versions load, unwanted ones leave when they can be spared."""
        registry, catalog = self._registry, event.catalog
        self._calm = self._calm or (bool(registry.versions) and registry.settled)
        registry.troubled = {problem.name: problem.reason for problem in catalog.problems}
        registry.unreadable = frozenset((problem.name, problem.version) for problem in catalog.problems)
        wanted = {(entry.model.name, entry.model.version): entry for entry in catalog.versions}
        if not self._applied:
            self._applied = True
            yield from self._found_withdrawn({name for name, _ in wanted} | registry.troubled.keys())
        registry.by_hand = frozenset(slot for slot, entry in wanted.items() if entry.by_hand)
        registry.uninstalled = catalog.uninstalled
        for entry in wanted.values():
            yield from self._go_back(entry, now_ns)
        for version in registry.named():
            wish = wanted.get(version.slot)
            # What is only on trial has served until now, and not for longer than it has to.
            version.retiring = wish is None or (is_on_trial(wish) and version.phase in SERVING)
        for slot in [slot for slot in registry.incoming if slot not in wanted]:
            yield from self._succession.leave(registry.incoming.pop(slot), now_ns)
        for slot in (registry.failed.keys() | registry.setbacks.keys()) - wanted.keys():
            registry.failed.pop(slot, None)
            registry.setbacks.pop(slot, None)
        for slot, entry in wanted.items():
            yield from self._want(slot, entry, event, now_ns)
        yield from self._trials.spare_comparison(now_ns)
        yield from self._succession.retire(now_ns)
        self._retries.wanted = tuple(wanted.values())

    def _want(self, slot: Slot, entry: CatalogVersion, event: told.Wanted, now_ns: int) -> Steps:
        registry = self._registry
        asked = not {entry.model.name, entry.model.key}.isdisjoint(event.asked)
        current = (
            (yield from self._withdraw(slot, entry, now_ns))
            or registry.incoming.get(slot)
            or registry.find(slot)
        )
        if current is None or not is_of(current, entry):
            yield from self.admit(entry, event.wall_ms, now_ns, asked=asked)
        elif current.phase is not Phase.FAILED:
            current.refresh(entry.fingerprint)
            yield from self._renew(current, entry, now_ns)
        elif self._may_try_again(current, entry, asked, event.wall_ms):
            renewed = is_repaired(current, entry) or self._lost_rival(current)
            yield from self.admit(entry, event.wall_ms, now_ns, asked=asked or renewed)

    def _renew(self, current: Version, entry: CatalogVersion, now_ns: int) -> Steps:
        """What is here already may be wanted otherwise: what was only on trial is to serve, and clients may change
        along by now, or not any more."""
        attempt = self._trials.attempts.get(current.id)
        if attempt is not None:
            attempt.free = self._is_free(entry, attempt.before)
            held = None if attempt.live else self._held_back(entry, attempt.before)
            if held is not None:
                yield from self._succession.give_up(current, held, now_ns)
                return
        yield from self._trials.renew(current, entry, now_ns)

    def _withdraw(
        self, slot: Slot, entry: CatalogVersion, now_ns: int
    ) -> Generator[Step, None, Version | None]:
        """What serves, if that is what is wanted, and what was to take its place is not."""
        current, new = self._registry.find(slot), self._registry.incoming.get(slot)
        if current is None or current.phase not in SERVING or not is_of(current, entry):
            return None
        self._registry.setbacks.pop(slot, None)
        if new is None:
            return current
        if is_of(new, entry):
            return None
        del self._registry.incoming[slot]
        yield from self._succession.leave(new, now_ns)
        return current

    def _go_back(self, entry: CatalogVersion, now_ns: int) -> Steps:
        """What is wanted may be what is kept to go back to: nothing failed."""
        name, number = entry.model.name, entry.model.version
        current = self._registry.find((name, number))
        if is_on_trial(entry) or (current is not None and is_of(current, entry)):
            return
        for attempt in list(self._trials.attempts.values()):
            if attempt.keeps_before and attempt.before is not None and is_of(attempt.before, entry):
                yield from self._trials.step(attempt, on.Recalled(WantedAgain(version=number)), now_ns)
                return

    def _may_try_again(self, given_up: Version, entry: CatalogVersion, asked: bool, wall_ms: int) -> bool:
        """Whether a version that was given up is to be loaded once more now: because an operator asks, or its package
        was repaired, or its pause is over; where nothing else serves it has its turn with the others for that. What was
        held back for its interface is, once it may change that; a pause is of no use to what would come to the same."""
        setback = given_up.setback
        if isinstance(setback.why if isinstance(setback, Failed) else setback, InterfaceChanged):
            return self._held_back(entry, self._registry.current(entry.model.name)) is None
        if asked or is_repaired(given_up, entry) or self._lost_rival(given_up):
            return True
        if isinstance(setback, Failed) and setback.lasting:
            return False
        standing = self._records.standing(entry.identity)
        if self._retries.next_try_ms(given_up) or pause_ms(standing, self._config, wall_ms) != 0:
            return False
        return setback_of(standing, self._config, entry.model) is None

    def try_what_left(self, wall_ms: int, now_ns: int) -> Steps:
        """What is to be on trial may have served until now, and left."""
        for entry in self._retries.wanted:
            slot = (entry.model.name, entry.model.version)
            if is_on_trial(entry) and self._registry.find(slot) is None:
                yield from self.admit(entry, wall_ms, now_ns)

    def _lost_rival(self, given_up: Version) -> bool:
        """Whether a version was given up only beside one that is uninstalled by now."""
        setback = given_up.setback
        compared = isinstance(setback, Failed | RolledBack) and isinstance(setback.why, COMPARED)
        return compared and self._registry.is_uninstalled(self._registry.current(given_up.model.name))

    def admit(
        self, entry: CatalogVersion, wall_ms: int, now_ns: int, *, asked: bool = False, again: bool = False
    ) -> Steps:
        """A new version; it takes its name and number at once unless other files of them serve. ``asked``: by an
        operator; ``again``: although it was given up."""
        registry, slot = self._registry, (entry.model.name, entry.model.version)
        current, pending = registry.find(slot), registry.incoming.pop(slot, None)
        registry.setbacks.pop(slot, None)
        if pending is not None:
            yield from self._succession.leave(pending, now_ns)
        serving = current is not None and current.phase in SERVING
        failed = registry.failed.pop(slot, None)
        if serving and failed is not None and is_of(failed, entry):
            if not self._may_try_again(failed, entry, asked, wall_ms):
                assert failed.setback is not None, "it was given up"
                registry.failed[slot], registry.setbacks[slot] = failed, failed.setback
                return
            asked = asked or is_repaired(failed, entry)
        standing = self._records.standing(entry.identity)
        fallen = has_fallen(standing) or self._was_withdrawn(entry.model.name)
        if asked:
            yield do.Forgive(entry.identity)
        before = current if serving else registry.current(entry.model.name)
        setback = None if again or asked else setback_of(standing, self._config, entry.model)
        setback = setback or self._held_back(entry, before)
        spec = VersionSpec(
            id=registry.take_id(), model=entry.model, fingerprint=entry.fingerprint, identity=entry.identity
        )
        version = Version(spec=spec)
        if setback is not None:
            yield from self._refuse(version, setback)
            if serving:
                registry.setbacks[slot] = setback
            else:
                yield from self._take_slot(version, current, now_ns)
            return
        yield from self._take_slot(version, current, now_ns)
        registry.versions[version.id] = version
        contender = Contender(
            version=version,
            before=before,
            wish=entry.trial,
            background=before is not None or self._calm,
            order=entry.order,
            again=again,
            fallen=fallen,
            free=self._is_free(entry, before),
            allowed=entry.may_change_interface,
        )
        self._trials.begin(contender, now_ns)

    def _take_slot(self, version: Version, current: Version | None, now_ns: int) -> Steps:
        """Have its name and number, at once or, where ``current`` serves under them, when that has left."""
        if current is not None and current.phase in SERVING:
            yield do.Add(version, None)
            self._registry.incoming[version.slot] = version
        else:
            yield do.Add(version, None if current is None else current.id)
            yield from self._succession.place(version, now_ns)

    def _held_back(self, entry: CatalogVersion, before: Version | None) -> InterfaceChanged | None:
        """Why a version must not take the place of ``before``: clients of that could not talk to it. What an operator
        gave by hand may, as may what is proven here: it served clients. What is only on trial serves none."""
        if before is None or (entry.model.version < before.model.version and not before.retiring):
            return None  # requests that name no version do not reach it
        return None if self._is_free(entry, before) else held_back(entry.model, before.model)

    def _is_free(self, entry: CatalogVersion, before: Version | None) -> bool:
        """Whether clients of what serves do not keep a version from taking its place. A proof is of files, and tells
        nothing of the same ones with another configuration."""
        proof = self._records.proof(entry.identity, entry.model)
        same = before is not None and before.identity == entry.identity
        return (
            entry.may_change_interface
            or (proof is not None and proof.proven and not same)
            or is_on_trial(entry)
        )

    def _refuse(self, version: Version, setback: Setback) -> Steps:
        """It is not tried at all; its history says so once, also where it was the daemon's own end that used up its
        attempts, which could not be written down."""
        version.enter(Phase.FAILED)
        version.setback = setback
        told_of = [each for each in self._records.history(version.model.name) if _is_of(each, version)]
        if not told_of or told_of[-1].ending not in GIVEN_UP:
            yield do.note(version, Ending.GIVEN_UP, setback)

    def _was_withdrawn(self, name: str) -> bool:
        """Whether that is the last that its history says of a model."""
        history = self._records.history(name)
        return bool(history) and history[-1].ending is Ending.WITHDRAWN

    def _found_withdrawn(self, wanted: set[str]) -> Steps:
        """What served when the daemon ended, and is of no ``wanted`` model now, was withdrawn while nothing could write
        that down."""
        history = self._records.history("")
        identities = {(change.name, change.version): change.identity for change in history}
        for change in {change.name: change for change in history}.values():
            if change.after and change.name not in wanted:
                identity = identities.get((change.name, change.after), "")
                yield withdrawn(change.name, change.after, identity, at_start=True)


def _is_of(change: Change, version: Version) -> bool:
    same = (change.identity, change.artifact) == (version.identity, version.spec.artifact)
    return same and change.ending is not Ending.ABANDONED
