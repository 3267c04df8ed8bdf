"""Who may load now: versions on their way to serving, started in turn, and counted before they are.

What replaces another waits for one of few places to load in the background; what is not proven on this box is counted
first, for good. Owner: the swaps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from appliance.core.memory.actions import GrantReservation, HoldReservation, RefuseReservation, Reply
from appliance.core.rollout.phase import Phase
from appliance.engine.control.board import Board
from appliance.engine.control.candidate import Candidate
from appliance.engine.control.tries import Tries
from appliance.engine.versions.routes import Served

WAITING: Final = frozenset({Phase.QUEUED, Phase.COUNTING, Phase.COUNTED})


class Launches:
    """Starts ``candidates``, at most ``places`` in the background at a time. ``rests`` says whether one that is proven
    begins out of memory, because there is no room for it, and ``rest`` does that; ``room`` says if there is memory to
    load a version in the place of another; ``failed`` is told of one that is not even started, and why; ``soon`` asks
    to be called again."""

    def __init__(
        self,
        *,
        candidates: Mapping[int, Candidate],
        places: int,
        tries: Tries,
        board: Board,
        rests: Callable[[Served], bool],
        rest: Callable[[Sequence[Candidate], int], None],
        room: Callable[[Served, Served | None, int], Reply],
        failed: Callable[[Candidate, str, int], None],
        report: Callable[..., None],
        soon: Callable[[], None],
    ) -> None:
        self._candidates = candidates
        self._places = places
        self._tries = tries
        self._board = board
        self._rests = rests
        self._rest = rest
        self._room = room
        self._failed = failed
        self._report = report
        self._soon = soon

    def start(self, now_ns: int) -> None:
        """Start what may start: first it is counted, unless it is proven."""
        fresh = [candidate for candidate in self._candidates.values() if candidate.phase in WAITING]
        if not fresh:
            return
        occupying = {model for model, each in self._candidates.items() if each.occupies}
        places = self._places - len(occupying | self._board.loading_aside())
        chosen: list[Candidate] = []
        resting: list[Candidate] = []
        full = False
        for candidate in fresh:
            if candidate.phase is Phase.QUEUED:
                if candidate.may_rest and self._rests(candidate.served):
                    resting.append(candidate)
                    continue
                if candidate.background and places <= 0:
                    continue
                if (full and not candidate.kept) or not self._has_room(candidate, now_ns):
                    candidate.served.deferred = True
                    full = full or not candidate.stuck  # later ones wait their turn, but not for the stuck
                    continue
                places -= candidate.background
            chosen.append(candidate)
        if resting:
            self._rest(resting, now_ns)
        uncounted = []
        for candidate in chosen:
            if candidate.phase is Phase.QUEUED:
                candidate.served.enter(Phase.COUNTED if candidate.known else Phase.COUNTING)
                if not candidate.known:
                    candidate.counted = True
                    uncounted.append(candidate)
        for again in (False, True):
            if counted := [candidate for candidate in uncounted if candidate.again is again]:
                identities = [candidate.served.record_key for candidate in counted]
                self._tries.count(identities, partial(self._counted, counted), again=again)
        self._begin([candidate for candidate in chosen if candidate.phase is Phase.COUNTED], now_ns)

    def _has_room(self, candidate: Candidate, now_ns: int) -> bool:
        if now_ns < candidate.again_ns:
            return False
        reply = self._room(candidate.served, candidate.before, now_ns)
        refused = reply if isinstance(reply, RefuseReservation) else None
        candidate.again_ns = refused.again_ns if refused is not None else 0
        candidate.kept = isinstance(reply, HoldReservation)
        self._board.waits(candidate, refused.reason if refused is not None else None)
        return isinstance(reply, GrantReservation)

    def _counted(self, candidates: Sequence[Candidate], problem: str) -> None:
        for candidate in candidates:
            if candidate.phase is not Phase.COUNTING:
                continue  # it left meanwhile
            candidate.served.enter(Phase.COUNTED)
            if problem and (candidate.before is not None or candidate.again):
                candidate.problem = f"its try cannot be counted: {problem}"
        if problem:
            self._report("tries cannot be counted", error=problem)
        self._soon()

    def _begin(self, ready: Sequence[Candidate], now_ns: int) -> None:
        groups: dict[bool, list[Served]] = {}
        for candidate in ready:
            candidate.began_ns = now_ns
            if not candidate.problem:
                candidate.served.enter(Phase.LOADING)
                groups.setdefault(candidate.trial.tries, []).append(candidate.served)
        for alone, fresh in sorted(groups.items()):
            self._board.start(fresh, now_ns, alone=alone)
        for candidate in ready:
            if candidate.problem:
                self._failed(candidate, candidate.problem, now_ns)
