"""What operators ask of rollouts: to begin one, to halt it, to have it go on, to take it back. What becomes of one that
runs, ``rollout_steps`` decides by and by. Blocks: off the event loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from appliance.controller import tables
from appliance.controller.fleet_store import FleetStore, Rows, View
from appliance.controller.people import Unknown
from appliance.controller.publishing import Publisher
from appliance.controller.releases import NoRelease, Releases, release
from appliance.controller.rollout_rows import (
    Kept,
    before_in,
    begin_anew,
    change,
    forget_old,
    looks_at,
    rollouts_in,
    scopes_of,
    still,
    wish_of,
)
from appliance.controller.schemas import ResumeRequest, RolloutRequest
from appliance.controller.wishing import make_ready
from appliance.domain.errors import OperatorError
from appliance.fleet.places import REVOKED
from appliance.fleet.rollout import (
    GROUPS_MAX,
    OPEN,
    Rollout,
    State,
    Wave,
    begun,
    halted,
    plan_problems,
    refused_text,
    seen,
    some_of,
)

HALTS: Final = frozenset({State.RUNNING})
MEANT_MOST: Final = 10
"""Groups for which one is looked for that may be meant."""
TAKES_BACK: Final = OPEN | {State.DONE}


class Rollouts:
    """See the module."""

    def __init__(self, store: FleetStore, publisher: Publisher, releases: Releases) -> None:
        self._store = store
        self._publisher = publisher
        self._releases = releases

    def all(self, model: str) -> list[Rollout]:
        """Those of the model that are kept, or of all where it is "", the oldest first, as they were at the last
        look."""
        with self._store.look() as rows:
            return [each.rollout for each in rollouts_in(rows, **({"model": model} if model else {}))]

    def start(self, request: RolloutRequest, who: str, now_ms: int) -> Rollout:
        """The first wave is wished the version, and the others follow. A halted one of the model is over. Raises
        NoRelease and OperatorError, with all that is wrong."""
        groups = tuple(group for wave in request.waves for group in wave)
        with self._store.look() as rows:
            _check(rows, request)
        rollout = _planned(request, who, now_ms)
        make_ready(
            self._store,
            self._releases,
            rollout.model,
            wish_of(rollout),
            {"in_group": groups},
            scopes_of(groups),
        )
        with self._store.transaction() as rows:
            _check(rows, request)
            rollout = msgspec.structs.replace(rollout, number=rows.count_up("rollout"))
            for other in rollouts_in(rows, model=request.model, state=State.HALTED):
                reason = f"rollout {rollout.number} took its place"
                _end(rows, other, State.STOPPED, reason, who, now_ms)
            first = Kept(rollout, before_in(rows, rollout.model, groups), "")
            after, wish = begun(rollout, now_ms)
            change(rows, first, after, wish, who, now_ms)
            forget_old(rows)
        return after

    def halt(self, model: str, who: str, now_ms: int) -> Rollout:
        """Nothing further is wished until it goes on. Raises Unknown and OperatorError."""
        with self._store.transaction() as rows:
            kept = _newest(rows, model, HALTS)
            after = halted(kept.rollout, f"by {who}", now_ms)
            change(rows, kept, after, (), who, now_ms)
        return after

    def stop(self, model: str, who: str, now_ms: int) -> Rollout:
        """It is over, and what it wished stays. Raises Unknown and OperatorError."""
        with self._store.transaction() as rows:
            return _end(rows, _newest(rows, model, OPEN), State.STOPPED, f"by {who}", who, now_ms)

    def back(self, model: str, who: str, now_ms: int) -> Rollout:
        """Its groups are wished what they were before, where they are wished its version still. Raises Unknown,
        OperatorError, and NoRelease where what was before was withdrawn."""
        with self._store.transaction() as rows:
            return _end(rows, _newest(rows, model, TAKES_BACK), State.BACK, f"by {who}", who, now_ms)

    def resume(self, model: str, request: ResumeRequest, who: str, now_ms: int) -> Rollout:
        """It goes on, with what is said otherwise. Groups of waves that began are wished the version again where
        somebody wished for another one, and what others are wished now counts as what was before; devices are to stay
        anew, where it had halted. Raises Unknown, and OperatorError where it would halt at once."""
        said = {name: value for name, value in msgspec.structs.asdict(request).items() if value is not None}
        with self._store.look() as rows:
            kept = _newest(rows, model, frozenset(State))
            if kept.rollout.state not in OPEN:
                raise OperatorError(
                    f"{kept.rollout.what} is {kept.rollout.state} and does not go on: begin another, by 'appliance "
                    "fleet rollout' with MODEL=VERSION and --wave"
                )
            after = msgspec.structs.replace(kept.rollout, **said)
            after = seen(after, looks_at(rows, self._publisher, after))
        _check_resume(kept.rollout, after, said)
        with self._store.transaction() as rows:
            if not still(rows, kept):
                raise OperatorError(f"{after.what} has changed meanwhile; look at it, and do it again")
            if kept.rollout.state is State.RUNNING:
                change(rows, kept, after, (), who, now_ms)
                return after
            after = msgspec.structs.replace(after, state=State.RUNNING, since_ms=now_ms, reason="")
            wished = before_in(rows, model, [group for wave in after.waves for group in wave.groups])
            strayed = [group for group in after.groups if _is_other(wished[group], after)]
            begin_anew(rows, after, strayed)
            before = {**wished, **{group: kept.before[group] for group in after.groups}}
            change(rows, kept._replace(before=before), after, strayed, who, now_ms)
        return after


def _is_other(wish: Any, rollout: Rollout) -> bool:
    return wish is None or wish.version != rollout.version


def _planned(request: RolloutRequest, who: str, now_ms: int) -> Rollout:
    """The rollout, whose number is yet to come."""
    return Rollout(
        number=0,
        model=request.model,
        version=request.version,
        waves=tuple(Wave(groups=groups) for groups in request.waves),
        by=who,
        at_ms=now_ms,
        stay_s=request.stay_s,
        share=request.share,
        allow=request.allow,
        back=request.back,
        interface_change=request.interface_change,
        downgrade=request.downgrade,
        since_ms=now_ms,
    )


def _check(rows: View, request: RolloutRequest) -> None:
    """Raise OperatorError with all that is wrong."""
    if problems := list(_start_problems(rows, request)):
        raise OperatorError(f"the rollout cannot begin: {'; '.join(problems)}")


def _start_problems(rows: View, request: RolloutRequest) -> Iterator[str]:
    yield from plan_problems(request.waves, request.stay_s, request.share)
    try:
        release(rows, request.model, request.version)
    except NoRelease as error:
        yield str(error)
    groups = tuple(dict.fromkeys(group for wave in request.waves for group in wave))
    if len(groups) > GROUPS_MAX:
        return  # the database takes no statement about so many
    found = rows.all(tables.devices, "in_group", "state", in_group=groups)
    there = {row.in_group for row in found if row.state != REVOKED}
    if empty := [group for group in groups if group not in there]:
        yield f"no device is in: {some_of([*_as_meant(rows, empty)])}"
    for kept in rollouts_in(rows, model=request.model, state=State.RUNNING):
        rollout, end = kept.rollout, f"'appliance fleet rollout {request.model} --stop'"
        yield f"rollout {rollout.number}, to version {rollout.version}, runs already; end it first, by {end}"


def _as_meant(rows: View, empty: Sequence[str]) -> Iterator[str]:
    """The groups that no device is in, the first few with the one that may be meant."""
    found = rows.all(tables.devices, "in_group", "state")
    known = sorted({row.in_group for row in found if row.state != REVOKED})
    for number, group in enumerate(empty):
        near = get_close_matches(group, known, n=1) if number < MEANT_MOST else []
        yield f"{group} (did you mean '{near[0]}'?)" if near else group


def _check_resume(before: Rollout, after: Rollout, said: Mapping[str, Any]) -> None:
    """Raise OperatorError where it cannot go on so."""
    waves = [wave.groups for wave in after.waves]
    if problems := list(plan_problems(waves, after.stay_s, after.share)):
        raise OperatorError(f"{after.what} cannot go on: {'; '.join(problems)}")
    if before.state is State.RUNNING and not said:
        raise OperatorError(f"{after.what} runs already")
    if after.refused > after.allow:
        raise OperatorError(
            f"{after.what} would halt at once: {refused_text(after)}; allow {after.refused:,}"
        )


def _newest(rows: View, model: str, states: frozenset[State]) -> Kept:
    """The newest rollout of the model. Raises Unknown, and OperatorError unless it is in one of the ``states``."""
    if not (found := rollouts_in(rows, model=model)):
        raise Unknown(f"there is no rollout of '{model}'")
    if (state := found[-1].rollout.state) not in states:
        raise OperatorError(f"{found[-1].rollout.what} is {state}: there is nothing to do")
    return found[-1]


def _end(rows: Rows, kept: Kept, state: State, reason: str, who: str, now_ms: int) -> Rollout:
    after = msgspec.structs.replace(kept.rollout, state=state, since_ms=now_ms, reason=reason)
    return change(rows, kept, after, (), who, now_ms)
