"""What may go over the link now: one budget for everything, as bytes by class. Pure: time comes in, verdicts go out.

Bounded are the rate, the bytes of a billing month, the times at which models may be transferred, and what goes over a
link that is metered, off, or only there when a satellite passes. The more urgent class goes first: whoever sends asks
again for each few kilobytes, and is told to wait while a more urgent one is about to. The rate is a token bucket.

Months are by the wall clock, and each is counted by itself, so a clock that steps to another month and back finds there
what was spent; only a month that no clock of this box ever showed begins at nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from appliance.config.fleet import TRAFFIC, FleetConfig
from appliance.fleet.windows import opens_in_s, window_of
from appliance.sync.contact_plan import Pass, next_in_s, pass_at

CONTROL, TELEMETRY, MODELS = TRAFFIC
FREE: Final = "free"
METERED: Final = "metered"
OFF: Final = "off"
LINK_STATES: Final = (FREE, METERED, OFF)
"""What an operator may say of the link."""
MONTHS_KEPT: Final = 14
YIELD_S: Final = 0.1
"""How long who is less urgent waits before it asks again."""
AGAIN_S: Final = 60.0
"""The same for what no time is known for."""
BURST_S: Final = 0.25
BURST_BYTES_LEAST: Final = 16 << 10

Spent = Mapping[str, Mapping[str, int]]
"""Bytes by billing month, as "2026-11" (when it began), and class."""


class Bound(StrEnum):
    """What stands in the way."""

    NONE = ""
    OFF = "off"
    METERED = "metered"
    CONTACT = "contact"
    WINDOW = "window"
    MONTH = "month"
    RATE = "rate"
    URGENT = "urgent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether the bytes that were asked for may go (``bound`` NONE), or what stands in the way, and in how many seconds
    to ask again."""

    bound: Bound = Bound.NONE
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTerms:
    """What is known of the link beside the configuration: the operator's word, of LINK_STATES, and the contact
    plan (None: there is none, and so a link at any time)."""

    state: str = FREE
    passes: Sequence[Pass] | None = None


class Budget:
    """See the module. ``spent`` is what was kept of an earlier process. Owner: its caller."""

    def __init__(self, spent: Spent | None = None) -> None:
        self._spent = {month: dict(classes) for month, classes in (spent or {}).items()}
        self._tokens = float(BURST_BYTES_LEAST)
        self._filled_s: float | None = None
        self._waiting: dict[str, float] = {}
        """Until when, in monotonic seconds, each class is taken to be about to send."""

    def ask(
        self, what: str, size: int, config: FleetConfig, link: LinkTerms, wall_ms: int, now_s: float
    ) -> Verdict:
        """Whether ``size`` bytes of the class ``what`` may go now; if so they are counted."""
        verdict = self._allowed(what, size, config, link, wall_ms)
        if verdict.bound is Bound.NONE:
            verdict = self._turn(what, config, now_s)
        if verdict.bound is Bound.NONE:
            verdict = self._paced(size, _rate(config, link, wall_ms), now_s)
        if verdict.bound is Bound.RATE:
            self._waiting[what] = now_s + verdict.wait_s + 2 * YIELD_S
        elif verdict.bound is not Bound.URGENT:
            self._waiting.pop(what, None)
        if verdict.bound is Bound.NONE:
            self._count(what, size, billing_month(wall_ms, config.month_day))
        return verdict

    def blocked(self, what: str, config: FleetConfig, link: LinkTerms, wall_ms: int) -> Verdict:
        """What stands in the way of the class ``what`` altogether, for plans and people; the rate does not."""
        return self._allowed(what, 1, config, link, wall_ms)

    def left_bytes(self, config: FleetConfig, wall_ms: int) -> int:
        """What is left of the month; -1: there is no bound."""
        if not config.month_bytes:
            return -1
        return max(0, config.month_bytes - self.spent_bytes(billing_month(wall_ms, config.month_day)))

    def spent_bytes(self, month: str) -> int:
        """What was spent in that month, of all classes."""
        return sum(self._spent.get(month, {}).values())

    @property
    def spent(self) -> Spent:
        """To be kept for the next process."""
        return {month: dict(classes) for month, classes in self._spent.items()}

    def _allowed(self, what: str, size: int, config: FleetConfig, link: LinkTerms, wall_ms: int) -> Verdict:
        if link.state == OFF:
            return Verdict(bound=Bound.OFF, wait_s=AGAIN_S)
        if link.state == METERED and what not in config.metered:
            return Verdict(bound=Bound.METERED, wait_s=AGAIN_S)
        if link.passes is not None and pass_at(link.passes, wall_ms) is None:
            wait_s = next_in_s(link.passes, wall_ms)
            return Verdict(bound=Bound.CONTACT, wait_s=AGAIN_S if wait_s is None else wait_s)
        if what == MODELS and (wait_s := _window_s(config, wall_ms)) != 0.0:
            return Verdict(bound=Bound.WINDOW, wait_s=AGAIN_S if wait_s is None else wait_s)
        left = self.left_bytes(config, wall_ms)
        if 0 <= left < size and what != CONTROL:
            return Verdict(bound=Bound.MONTH, wait_s=month_ends_in_s(wall_ms, config.month_day))
        return Verdict()

    def _turn(self, what: str, config: FleetConfig, now_s: float) -> Verdict:
        """Wait while a class that goes before this one is about to send."""
        for other in before(what, config.priorities):
            if self._waiting.get(other, 0.0) > now_s:
                return Verdict(bound=Bound.URGENT, wait_s=YIELD_S)
        return Verdict()

    def _paced(self, size: int, rate: int, now_s: float) -> Verdict:
        if not rate:
            return Verdict()
        most = max(BURST_BYTES_LEAST, rate * BURST_S, size)
        passed = 0.0 if self._filled_s is None else max(0.0, now_s - self._filled_s)
        self._tokens, self._filled_s = min(most, self._tokens + passed * rate), now_s
        if self._tokens < size:
            return Verdict(bound=Bound.RATE, wait_s=(size - self._tokens) / rate)
        self._tokens -= size
        return Verdict()

    def _count(self, what: str, size: int, month: str) -> None:
        classes = self._spent.setdefault(month, {})
        classes[what] = classes.get(what, 0) + size
        for old in sorted(self._spent)[: max(0, len(self._spent) - MONTHS_KEPT)]:
            if old != month:
                del self._spent[old]


def before(what: str, priorities: Sequence[str]) -> Collection[str]:
    """The classes that go before ``what``; one that is not named goes last."""
    return priorities[: priorities.index(what)] if what in priorities else priorities


def billing_month(wall_ms: int, day: int) -> str:
    """The month that began last on that ``day``, in UTC."""
    return _began(datetime.fromtimestamp(wall_ms / 1000, UTC), day).strftime("%Y-%m")


def month_ends_in_s(wall_ms: int, day: int) -> float:
    """In how many seconds the next billing month begins."""
    now = datetime.fromtimestamp(wall_ms / 1000, UTC)
    following = (_began(now, day).replace(day=1) + timedelta(days=32)).replace(day=day)
    return (following - now).total_seconds()


def _began(now: datetime, day: int) -> datetime:
    """When the billing month of ``now`` began; ``day`` is one that each month has."""
    this = now.replace(day=day, hour=0, minute=0, second=0, microsecond=0)
    return this if this <= now else (this.replace(day=1) - timedelta(days=1)).replace(day=day)


def _window_s(config: FleetConfig, wall_ms: int) -> float | None:
    return opens_in_s([window_of(each) for each in config.windows], wall_ms) if config.windows else 0.0


def _rate(config: FleetConfig, link: LinkTerms, wall_ms: int) -> int:
    """Bytes per second at most; 0: there is no bound."""
    now = pass_at(link.passes, wall_ms) if link.passes is not None else None
    bounds = [each for each in (config.rate_bytes_per_s, now.bytes_per_s if now else 0) if each]
    return min(bounds, default=0)
