"""The budget of the link in use: asks it for each few bytes, waits as it says, and keeps what was spent.

What was spent is written together with a little that is not spent yet, and again when that is used up: so a kill costs
that little, and nothing is forgotten. Owner: the event loop.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from appliance.domain.errors import ArtefactError
from appliance.durable import Folder, read_whole, replace_file
from appliance.sync import contact_plan
from appliance.sync.box import Box, link_state
from appliance.sync.budget import AGAIN_S, MODELS, Bound, Budget, LinkTerms, Verdict, billing_month
from appliance.sync.contact_plan import Pass
from appliance.sync.link import LinkFailed, LinkTrouble
from appliance.sync.plan import Reason, Waiting, Waits

FILE: Final = "spent.json"
TEMPORARY: Final = "spent.new"
BYTES_MAX: Final = 1 << 20
AHEAD_BYTES: Final = 1 << 20
"""What is written as spent before it is."""
WAITED_FOR: Final = frozenset({Bound.RATE, Bound.URGENT})
"""Bounds that pass while one waits; for others the transfer ends, and the plan says why."""
_REASONS: Final = {Bound.WINDOW: Reason.WINDOW, Bound.MONTH: Reason.BUDGET}
_WORDS: Final = {
    Bound.OFF: "the operator turned the link off ('appliance sync link')",
    Bound.METERED: "the link is metered, and models do not go over such a one",
    Bound.CONTACT: "the contact plan has no link now",
    Bound.WINDOW: "the window for transfers is closed",
    Bound.MONTH: "the bytes of this billing month are spent",
}


class Spending:
    """See the module. Raises OSError when what was spent cannot be read."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._budget = Budget(spent_in(box.folder))
        self._ahead = 0
        self._plan: tuple[object, tuple[Pass, ...] | None] = (None, None)

    async def spend(self, what: str, size: int) -> None:
        """Return when so many bytes of the class ``what`` may go, and count them. Raises LinkFailed where none may go
        for longer than one waits."""
        while True:
            verdict = self._budget.ask(what, size, self._box.fleet, self._terms(), *self._now())
            if verdict.bound is Bound.NONE:
                self._ahead -= size
                if self._ahead < 0:
                    self._keep(AHEAD_BYTES)
                return
            if verdict.bound not in WAITED_FOR:
                raise LinkFailed(
                    LinkTrouble.REFUSED, _WORDS[verdict.bound], verdict.bound, int(verdict.wait_s)
                )
            await asyncio.sleep(verdict.wait_s)

    async def spend_on_models(self, size: int) -> None:
        """The same for what a transfer brings."""
        await self.spend(MODELS, size)

    def blocked(self, what: str) -> Verdict:
        """What stands in the way of that class altogether."""
        return self._budget.blocked(what, self._box.fleet, self._terms(), self._now()[0])

    def waits(self) -> Waits:
        """Why no models may be transferred now."""
        return waits_of(self.blocked(MODELS))

    def left_bytes(self) -> int:
        """What is left of the month; -1: there is no bound."""
        return self._budget.left_bytes(self._box.fleet, self._now()[0])

    def close(self) -> None:
        """Write what was spent, and no more than that."""
        self._keep(0)

    def _keep(self, ahead: int) -> None:
        """A disk that will not have it is no reason to stop."""
        spent = {month: dict(classes) for month, classes in self._budget.spent.items()}
        of_now = spent.setdefault(billing_month(self._now()[0], self._box.fleet.month_day), {})
        of_now[MODELS] = of_now.get(MODELS, 0) + ahead
        with suppress(OSError):
            replace_file(self._box.folder, FILE, TEMPORARY, msgspec.json.encode(spent))
            self._ahead = ahead

    def _now(self) -> tuple[int, float]:
        return self._box.wall_ms(), self._box.clock.monotonic_s()

    def _terms(self) -> LinkTerms:
        return LinkTerms(state=link_state(self._box.settings.state), passes=self._passes())

    def _passes(self) -> tuple[Pass, ...] | None:
        """The contact plan, read again when its file is another one."""
        place = self._box.fleet.contact_plan
        if not place:
            return None
        with suppress(OSError):
            stamp = (place, Path(place).stat().st_mtime_ns)
            if stamp != self._plan[0]:
                self._plan = (stamp, passes_in(place))
        return self._plan[1]


def waits_of(verdict: Verdict) -> Waits:
    """What stands in the way of a transfer, for plans."""
    if verdict.bound is Bound.NONE:
        return None
    reason = _REASONS.get(verdict.bound, Reason.LINK)
    again_s = None if verdict.wait_s == AGAIN_S else verdict.wait_s
    return Waiting(reason=reason, text=_WORDS[verdict.bound], again_s=again_s)


def passes_in(place: str) -> tuple[Pass, ...] | None:
    """The contact plan in that file; None where there is none, or it cannot be read any more: it was checked at the
    start."""
    try:
        return contact_plan.passes_in(place) if place else None
    except (ArtefactError, ValueError):
        return None


def spent_in(folder: Folder) -> dict[str, dict[str, int]]:
    """What was kept as spent, by billing month and class; nothing where that cannot be read. Raises OSError."""
    data = read_whole(folder, FILE, BYTES_MAX)
    try:
        return msgspec.json.decode(data, type=dict[str, dict[str, int]]) if data else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
