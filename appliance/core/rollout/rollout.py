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

from collections.abc import Iterable, Iterator

from appliance.core.rollout import actions as do
from appliance.core.rollout import events as told
from appliance.core.rollout.admission import Admission
from appliance.core.rollout.attempt import Attempt, Outcome, Steps
from appliance.core.rollout.catalog import CatalogVersion
from appliance.core.rollout.phase import Phase
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.reasons import Crashed, LoadRefused
from appliance.core.rollout.records import RecordsPort, have_served
from appliance.core.rollout.registry import Registry, Slot
from appliance.core.rollout.retries import Retries
from appliance.core.rollout.starts import Starts
from appliance.core.rollout.succession import Succession
from appliance.core.rollout.trials import Trials
from appliance.core.rollout.version import Version


class Rollout:
    """Of all versions on a box: tells its parts what happened, and carries out what trials come to."""

    def __init__(self, config: RolloutPolicy, records: RecordsPort) -> None:
        self.config = config
        self._records = records
        self.registry = Registry()
        self.trials = Trials(config, records, self.registry)
        self.succession = Succession(self.registry, self.trials)
        self.retries = Retries(config, records, self.registry)
        self._starts = Starts(config, self.trials, self.succession)
        self._admission = Admission(
            config, records, self.registry, self.trials, self.succession, self.retries
        )

    def step(self, event: told.Event, now_ns: int) -> list[do.Action]:
        """What is to be done now that ``event`` has happened."""
        return list(self.carry_out(self._steps(event, now_ns), now_ns))

    def carry_out(self, steps: Steps, now_ns: int) -> Iterator[do.Action]:
        """The actions among ``steps``, with those of every outcome in its place."""
        for each in steps:
            if isinstance(each, Outcome):
                yield from self.carry_out(self.succession.follow(each, now_ns), now_ns)
            else:
                yield each

    def _steps(self, event: told.Event, now_ns: int) -> Steps:
        match event:
            case told.Wanted():
                yield from self._admission.take(event, now_ns)
                yield from self._starts.start(now_ns)
                yield do.Touch()
            case told.Tick():
                yield from self._tick(event, now_ns)
            case told.Changed():
                yield from self.retries.plan(event.wall_ms, now_ns)
            case told.Stopping():
                for attempt in self.trials.attempts.values():
                    yield from self.trials.uncount(attempt, attempt.phase)
            case told.MemoryAnswered():
                yield from self._starts.memory_answered(event, now_ns)
            case told.AttemptsRecorded():
                yield from self._starts.recorded(event, now_ns)
            case told.Drained():
                yield from self.succession.let_go(event.versions)
            case _:
                yield from self._seen(event, now_ns)

    # --- what workers and requests say

    def _seen(self, event: told.VersionEvent, now_ns: int) -> Steps:
        version, attempt = self.registry.versions.get(event.version), self.trials.attempts.get(event.version)
        match event:
            case told.Loaded() if version is not None:
                _loaded(version, event)
            case told.Refused() if version is not None:
                # Its worker has judged its packed form, and then refused its own files.
                reason = LoadRefused(detail=event.reason, unsupported=event.unsupported)
                yield from self.succession.give_up(version, reason, now_ns, form=False)
            case told.Crashed() if version is not None:
                yield from self._crashed(version, attempt, event, now_ns)
            case told.FormDropped() if version is not None:
                version.drop_form(refused=event.refused)
            case told.FormBuilt() if version is not None:
                yield from self.succession.repack(version, event.compared, now_ns)
                yield from self._starts.start(now_ns)
            case told.Displaced() if version is not None:
                yield from self.succession.move(version, now_ns)
                yield from self._starts.start(now_ns)
            case told.Opened() if attempt is not None and attempt.phase is Phase.LOADING:
                yield from self.trials.take_place(attempt, now_ns)
                yield do.WakeAt(0)
            case told.Compared() if attempt is not None:
                yield from self.trials.step(attempt, event, now_ns)
            case told.Missed() if attempt is not None:
                attempt.missed += 1
            case told.FiguresRead() if attempt is not None:
                yield from self.trials.figures_read(attempt, event, now_ns)
            case _:
                return  # it has gone meanwhile

    def _crashed(self, version: Version, attempt: Attempt | None, event: told.Crashed, now_ns: int) -> Steps:
        if attempt is not None:
            yield from self.trials.step(attempt, event, now_ns)
            if version.id not in self.trials.attempts:
                return
        if event.repeated:
            yield from self.succession.give_up(version, Crashed(detail=event.detail, repeated=True), now_ns)

    def has_failed(self, slot: Slot) -> bool:
        """Whether what the source wants under a name and number was tried, or cannot even be read."""
        registry, version = self.registry, self.registry.find(slot)
        if version is None:
            return (slot[0], str(slot[1])) in registry.unreadable
        return (slot in registry.failed or version.phase is Phase.FAILED) and slot not in registry.by_hand

    def stand_in(self, name: str, candidates: Iterable[CatalogVersion]) -> CatalogVersion | None:
        """The first of ``candidates`` that is proven here, unless what serves ``name`` comes before it. Where nothing
        serves and none is proven, the first that has served here: it is loaded as what is not proven is, and so is held
        to its golden set, counted and watched."""
        current, candidates = self.registry.current(name), tuple(candidates)
        for entry in candidates:
            if current is not None and current.identity == entry.identity:
                return None
            proof = self._records.proof(entry.identity, entry.model)
            failed = self.has_failed((name, entry.model.version))
            if proof is not None and proof.proven and not failed:
                return entry
        if current is not None:
            return None
        served = have_served(self._records.history(name))
        fit = (each for each in candidates if not self.has_failed((name, each.model.version)))
        return next((each for each in fit if each.identity in served), None)

    def awaits_requests_of(self, version: int) -> Version | None:
        """The version before ``version``, if the requests that it would have taken, and ``version`` refuses as invalid,
        count as failures: it serves for the first time, may still be given up for that one, and nobody said that
        clients change along with it."""
        attempt = self.trials.attempts.get(version)
        if attempt is None or attempt.known or attempt.allowed or not attempt.keeps_before:
            return None
        return attempt.before

    @property
    def calm(self) -> bool:
        """Whether nothing loads and nothing is on trial, but for what waits for memory."""
        return all(each.live or each.stuck for each in self.trials.attempts.values())

    # --- time

    def _tick(self, event: told.Tick, now_ns: int) -> Steps:
        yield from self.trials.look(now_ns)
        yield from self._starts.start(now_ns, event.loading)
        yield from self._admission.try_what_left(event.wall_ms, now_ns)
        entry = yield from self.retries.take(now_ns)
        if entry is not None:
            yield do.Retried(entry.model.key)
            yield from self._admission.admit(entry, event.wall_ms, now_ns, again=True)


def _loaded(version: Version, event: told.Loaded) -> None:
    """Several workers may hold it: the slowest of them counts."""
    version.seeds, version.packed = version.seeds or event.seeds, event.packed
    known, proof = version.assessment, event.assessment
    if proof is not None and (known is None or proof.is_broken or proof.p50_ns > known.p50_ns):
        version.assessment = proof
