"""What may load now: versions on their way to serving, started in turn, and counted before they are. The rollout's
third storey.

What replaces another version waits for one of few places to load in the background; what is not proven on this box is
counted first, for good. Memory is asked for, for one version after the other, since each answer changes the next.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from appliance.core.rollout import actions as do
from appliance.core.rollout import events as told
from appliance.core.rollout.attempt import Attempt
from appliance.core.rollout.ledger import Ledger
from appliance.core.rollout.phase import Phase
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.succession import Succession

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


class Starts(Succession):
    """Starts attempts, at most ``config.loads`` in the background at a time."""

    def __init__(self, config: RolloutPolicy, ledger: Ledger) -> None:
        super().__init__(config, ledger)
        self._loading: frozenset[int] = frozenset()
        """What loads in the background, wanted or not, as was told last, and what was started since."""
        self._round: Round | None = None

    def _start(self, now_ns: int) -> None:
        """Start what may start, and the trials of what has waited for its place until now."""
        fresh = [attempt for attempt in self.attempts.values() if attempt.phase in WAITING]
        if fresh and self._round is None:
            occupied = {version for version, each in self.attempts.items() if each.occupies} | self._loading
            self._round = Round(queue=deque(fresh), places=self.config.loads - len(occupied))
            self._go_on(self._round, now_ns)
        for attempt in list(self.attempts.values()):
            if attempt.phase is Phase.PARKED and attempt.version.id in self.attempts:
                self._take_place(attempt, now_ns)

    def _go_on(self, round_: Round, now_ns: int) -> None:
        """Ask for the next one's memory, until all were asked for."""
        while round_.queue:
            attempt = round_.queue[0]
            if self.attempts.get(attempt.version.id) is attempt and attempt.phase is Phase.QUEUED:
                may_load = not attempt.background or round_.places > 0
                turn = now_ns >= attempt.again_ns and (attempt.kept or not round_.full)
                if attempt.may_rest or (may_load and turn):
                    before = attempt.before.id if attempt.before is not None else None
                    reserve = may_load and turn
                    self._do(do.ReserveMemory(attempt.version.id, before, attempt.may_rest, reserve))
                    return
                if may_load:
                    self._defer(round_, attempt)
            elif self.attempts.get(attempt.version.id) is attempt:
                round_.chosen.append(attempt)
            round_.queue.popleft()
        self._round = None
        self._end_round(round_, now_ns)

    def _memory_answered(self, event: told.MemoryAnswered, now_ns: int) -> None:
        round_ = self._round
        assert round_ is not None, "nobody asked for memory"
        attempt = round_.queue.popleft()
        assert attempt.version.id == event.version, "another one was asked for"
        if self.attempts.get(event.version) is not attempt:
            pass  # it left meanwhile
        elif event.rests:
            round_.resting.append(attempt)
        elif event.there:
            self._waits(attempt, None)
            attempt.again_ns, attempt.kept = event.again_ns, event.kept
            round_.places -= attempt.background
            round_.chosen.append(attempt)
        elif event.asked:
            attempt.again_ns, attempt.kept = event.again_ns, event.kept
            self._waits(attempt, event.reason)
            self._defer(round_, attempt)
        elif not attempt.background or round_.places > 0:
            self._defer(round_, attempt)
        self._go_on(round_, now_ns)

    def _defer(self, round_: Round, attempt: Attempt) -> None:
        attempt.version.deferred = True
        round_.full = round_.full or not attempt.stuck  # later ones wait their turn, but not for the stuck

    def _end_round(self, round_: Round, now_ns: int) -> None:
        if resting := [each for each in round_.resting if each.phase is Phase.QUEUED]:
            self._rest(resting, now_ns)
        uncounted = []
        for attempt in round_.chosen:
            if attempt.phase is Phase.QUEUED:
                attempt.version.enter(Phase.COUNTED if attempt.known else Phase.COUNTING)
                if not attempt.known:
                    attempt.counted = True
                    uncounted.append(attempt)
        for again in (False, True):
            if counted := [attempt for attempt in uncounted if attempt.again is again]:
                versions = tuple(attempt.version.id for attempt in counted)
                keys = tuple(attempt.key for attempt in counted)
                self._do(do.RecordAttempts(versions, keys, again))
        self._begin([each for each in round_.chosen if each.phase is Phase.COUNTED], now_ns)

    def _recorded(self, event: told.AttemptsRecorded, now_ns: int) -> None:
        attempts = [self.attempts.get(version) for version in event.versions]
        ready = [each for each in attempts if each is not None and each.phase is Phase.COUNTING]
        for attempt in ready:
            attempt.version.enter(Phase.COUNTED)
            if event.problem and (attempt.before is not None or attempt.again):
                attempt.problem = f"its try cannot be counted: {event.problem}"
        if event.problem:
            self._do(do.Report("tries cannot be counted", {"error": event.problem}))
        self._begin(ready, now_ns)
        self._do(do.WakeAt(0))

    def _begin(self, ready: list[Attempt], now_ns: int) -> None:
        groups: dict[bool, list[int]] = {}
        for attempt in ready:
            attempt.began_ns = now_ns
            if not attempt.problem:
                attempt.version.enter(Phase.LOADING)
                groups.setdefault(attempt.trial.tries, []).append(attempt.version.id)
        for alone, versions in sorted(groups.items()):
            self._loading |= {version for version in versions if self.attempts[version].background}
            self._do(do.Load(tuple(versions), alone))
        for attempt in ready:
            if attempt.problem:
                self._fail(attempt, attempt.problem, now_ns)
