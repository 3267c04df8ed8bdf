"""Rollouts that run, brought on while the controller serves: where their devices are is looked at, what that means is
decided by ``fleet.rollout``, and what changes is one transaction. Nothing of them is kept in memory, so that one that
was killed goes on; where none runs, a step is one look at a small table. How long devices served is told by its clock:
where that is set forward, they are to stay anew."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from msgspec import MsgspecError

from appliance.controller.fleet_store import DatabaseTrouble, FleetStore
from appliance.controller.publishing import Publisher
from appliance.controller.releases import Releases
from appliance.controller.rollout_rows import (
    Kept,
    change,
    forget_stays,
    looks_at,
    remember,
    rollouts_in,
    scopes_of,
    still,
    wish_of,
    wished_otherwise,
)
from appliance.controller.wishing import make_ready
from appliance.fleet.rollout import Rollout, State, step

WHO = "controller"
"""In the audit log: nobody asked for it."""
CLOCK_SET_MS: Final = 10_000
"""What the clock goes more than time does between two steps, where somebody set it."""


class Stepped(NamedTuple):
    """Rollouts of which something is to be told: a wave began, or they run no more."""

    told: Sequence[Rollout]
    error: str = ""


class RolloutSteps:
    """See the module. Owner: one task; blocks: off the event loop."""

    def __init__(
        self,
        store: FleetStore,
        publisher: Publisher,
        releases: Releases,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._releases = releases
        self._monotonic_s = monotonic_s
        self._ahead_ms: float | None = None
        """How far the clock was ahead of the time that passes, at the last step."""

    def step(self, now_ms: int) -> Stepped:
        """Bring all on that run. Raises nothing: ``error`` says what stood in the way of one, which is tried again."""
        told, error = list[Rollout](), ""
        try:
            self._mind_clock(now_ms)
            with self._store.look() as rows:
                running = rollouts_in(rows, state=State.RUNNING)
        except (DatabaseTrouble, MsgspecError) as trouble:
            return Stepped(told, str(trouble))
        for kept in running:
            try:
                if (moved := self._step(kept, now_ms)) is not None:
                    told.append(moved)
            except Exception as trouble:  # noqa: BLE001  a defect holds up its own rollout alone
                error = f"{kept.rollout.what}: {str(trouble) or type(trouble).__name__}"
        return Stepped(told, error)

    def _mind_clock(self, now_ms: int) -> None:
        ahead_ms = now_ms - 1000 * self._monotonic_s()
        if self._ahead_ms is not None and ahead_ms - self._ahead_ms > CLOCK_SET_MS:
            forget_stays(self._store)
        self._ahead_ms = ahead_ms

    def _step(self, kept: Kept, now_ms: int) -> Rollout | None:
        before = kept.rollout
        with self._store.look() as rows:
            looks = looks_at(rows, self._publisher, before)
            other = wished_otherwise(rows, kept)
        remember(self._store, kept, looks)
        after, wish = step(before, looks, other, now_ms)
        if after == before:
            return None
        if wish:
            key, scopes = {"in_group": wish}, scopes_of(wish)
            make_ready(self._store, self._releases, after.model, wish_of(after), key, scopes)
        with self._store.transaction() as rows:
            if not still(rows, kept) or wished_otherwise(rows, kept) != other:
                return None  # it is looked at again
            after = change(rows, kept, after, wish, WHO, now_ms)
        moved = after.state is not before.state or len(after.begun) > len(before.begun)
        return after if moved else None
