"""What may load now: versions on their way to serving, started in turn, and counted before they are.

What replaces another version waits for one of few places to load in the background; what is not proven on this box is
counted first, for good. Memory is asked for, for one version after the other, since each answer changes the next.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from appliance.core.rollout import actions as do
from appliance.core.rollout import events as told
from appliance.core.rollout.attempt import Attempt, Steps
from appliance.core.rollout.phase import Phase
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.reasons import LoadRefused, NotCounted
from appliance.core.rollout.succession import Succession
from appliance.core.rollout.trials import Trials

WAITING: Final = frozenset({Phase.QUEUED, Phase.COUNTING, Phase.COUNTED})


@dataclass(slots=True, kw_only=True)
class Round:
    """Those that are asked for in turn. ``places`` are left for loading in the background; ``full``: one waits for
    memory, and later ones wait their turn; ``chosen`` and ``resting`` are to load, or to serve without."""

    queue: deque[Attempt]
    places: int
    full: bool = False
    chosen: list[Attempt] = field(default_factory=list)
    resting: list[Attempt] = field(default_factory=list)


class Starts:
    """Starts attempts, at most ``config.loads`` in the background at a time."""

    def __init__(self, config: RolloutPolicy, trials: Trials, succession: Succession) -> None:
        self._config = config
        self._trials = trials
        self._succession = succession
        self._loading: frozenset[int] = frozenset()
        """What loads in the background, wanted or not, as was told last, and what was started since."""
        self._round: Round | None = None

    def start(self, now_ns: int, loading: frozenset[int] | None = None) -> Steps:
        """Start what may start, and the trials of what has waited for its place until now. ``loading``: what loads in
        the background by now."""
        if loading is not None:
            self._loading = loading
        fresh = [attempt for attempt in self._trials.attempts.values() if attempt.phase in WAITING]
        if fresh and self._round is None:
            occupied = {
                version for version, each in self._trials.attempts.items() if each.occupies
            } | self._loading
            self._round = Round(queue=deque(fresh), places=self._config.loads - len(occupied))
            yield from self._go_on(self._round, now_ns)
        for attempt in list(self._trials.attempts.values()):
            if attempt.phase is Phase.PARKED and attempt.version.id in self._trials.attempts:
                yield from self._trials.take_place(attempt, now_ns)

    def _go_on(self, round_: Round, now_ns: int) -> Steps:
        """Ask for the next one's memory, until all were asked for."""
        while round_.queue:
            attempt = round_.queue[0]
            if self._trials.attempts.get(attempt.version.id) is attempt and attempt.phase is Phase.QUEUED:
                may_load = not attempt.contender.background or round_.places > 0
                turn = now_ns >= attempt.again_ns and (attempt.kept or not round_.full)
                if attempt.may_rest or (may_load and turn):
                    before = attempt.before.id if attempt.before is not None else None
                    reserve = may_load and turn
                    yield do.ReserveMemory(attempt.version.id, before, attempt.may_rest, reserve)
                    return
                if may_load:
                    self._defer(round_, attempt)
            elif self._trials.attempts.get(attempt.version.id) is attempt:
                round_.chosen.append(attempt)
            round_.queue.popleft()
        self._round = None
        yield from self._end_round(round_, now_ns)

    def memory_answered(self, event: told.MemoryAnswered, now_ns: int) -> Steps:
        round_ = self._round
        assert round_ is not None, "nobody asked for memory"
        attempt = round_.queue.popleft()
        assert attempt.version.id == event.version, "another one was asked for"
        if self._trials.attempts.get(event.version) is not attempt:
            pass  # it left meanwhile
        elif event.refused:
            yield from self._succession.give_up(
                attempt.version, LoadRefused(detail=event.refused, homeless=True), now_ns, form=False
            )
        elif event.rests:
            round_.resting.append(attempt)
        elif event.there:
            yield from self._trials.waits(attempt, None)
            attempt.again_ns, attempt.kept = event.again_ns, event.kept
            round_.places -= attempt.contender.background
            round_.chosen.append(attempt)
        elif event.asked:
            attempt.again_ns, attempt.kept = event.again_ns, event.kept
            yield from self._trials.waits(attempt, event.reason)
            self._defer(round_, attempt)
        elif not attempt.contender.background or round_.places > 0:
            self._defer(round_, attempt)
        yield from self._go_on(round_, now_ns)

    def _defer(self, round_: Round, attempt: Attempt) -> None:
        attempt.version.deferred = True
        round_.full = round_.full or not attempt.stuck  # later ones wait their turn, but not for the stuck

    def _end_round(self, round_: Round, now_ns: int) -> Steps:
        if resting := [each for each in round_.resting if each.phase is Phase.QUEUED]:
            yield from self._succession.rest(resting, now_ns)
        uncounted = []
        for attempt in round_.chosen:
            if attempt.phase is Phase.QUEUED:
                attempt.version.enter(Phase.COUNTED if attempt.known else Phase.COUNTING)
                if not attempt.known:
                    attempt.counted = True
                    uncounted.append(attempt)
        for again in (False, True):
            if counted := [attempt for attempt in uncounted if attempt.contender.again is again]:
                versions = tuple(attempt.version.id for attempt in counted)
                keys = tuple(attempt.key for attempt in counted)
                yield do.RecordAttempts(versions, keys, again)
        yield from self._load([each for each in round_.chosen if each.phase is Phase.COUNTED], now_ns)

    def recorded(self, event: told.AttemptsRecorded, now_ns: int) -> Steps:
        attempts = [self._trials.attempts.get(version) for version in event.versions]
        ready = [each for each in attempts if each is not None and each.phase is Phase.COUNTING]
        for attempt in ready:
            attempt.version.enter(Phase.COUNTED)
        if event.problem is None:
            yield from self._load(ready, now_ns)
        else:
            yield do.Report("tries cannot be counted", {"error": event.problem})
            # What has nothing to go on serving in its place is loaded all the same.
            spared = [each for each in ready if each.before is not None or each.contender.again]
            yield from self._load([each for each in ready if each not in spared], now_ns)
            for attempt in spared:
                attempt.began_ns = now_ns
                yield from self._trials.fail(attempt, NotCounted(problem=event.problem), now_ns)
        yield do.WakeAt(0)

    def _load(self, ready: list[Attempt], now_ns: int) -> Steps:
        groups: dict[bool, list[int]] = {}
        for attempt in ready:
            attempt.began_ns = now_ns
            attempt.version.enter(Phase.LOADING)
            groups.setdefault(attempt.trial.tries, []).append(attempt.version.id)
        for alone, versions in sorted(groups.items()):
            self._loading |= {
                version for version in versions if self._trials.attempts[version].contender.background
            }
            yield do.Load(tuple(versions), alone)
