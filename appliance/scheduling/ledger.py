"""Sums of lane time by urgency: how much work is queued ahead of a key.

Charges are booked per level in buckets of about 4 ms, 134 ms and 4.3 s of deadline, so that a sum up to a
deadline costs some tens of look-ups however many requests are queued. The bucket of the deadline asked for
counts whole, and so does the level when the deadline is far away: the answer is never too small, and at most
one fine bucket too large when the deadline is near. Empty buckets are not kept.
"""

from __future__ import annotations

from appliance.inference import NO_DEADLINE

FINE_SHIFT = 22
FAN_OUT_SHIFT = 5
MIDDLE_SHIFT = FINE_SHIFT + FAN_OUT_SHIFT
COARSE_SHIFT = MIDDLE_SHIFT + FAN_OUT_SHIFT
COARSE_READS_MAX = 64
"""A deadline further away than so many coarse buckets (4.6 minutes) is answered with the whole level."""


class LevelLedger:
    """The charges of one priority level. ``total_ns`` includes those without a deadline."""

    __slots__ = ("_coarse", "_fine", "_middle", "total_ns")

    def __init__(self) -> None:
        self.total_ns = 0
        self._fine: dict[int, int] = {}
        self._middle: dict[int, int] = {}
        self._coarse: dict[int, int] = {}

    def add(self, deadline_ns: int, charge_ns: int) -> None:
        """Book ``charge_ns``; a negative one takes a booking back."""
        self.total_ns += charge_ns
        if deadline_ns >= NO_DEADLINE or not charge_ns:
            return
        for table, bucket in (
            (self._fine, deadline_ns >> FINE_SHIFT),
            (self._middle, deadline_ns >> MIDDLE_SHIFT),
            (self._coarse, deadline_ns >> COARSE_SHIFT),
        ):
            booked = table.get(bucket, 0) + charge_ns
            if booked:
                table[bucket] = booked
            else:
                del table[bucket]

    def until(self, deadline_ns: int, now_ns: int) -> int:
        """At least the sum of all charges with a deadline in [now, ``deadline_ns``]."""
        first, coarse = now_ns >> COARSE_SHIFT, deadline_ns >> COARSE_SHIFT
        if coarse - first > COARSE_READS_MAX:
            return self.total_ns
        middle, fine = deadline_ns >> MIDDLE_SHIFT, deadline_ns >> FINE_SHIFT
        middle_first = max(coarse << FAN_OUT_SHIFT, now_ns >> MIDDLE_SHIFT)
        fine_first = max(middle << FAN_OUT_SHIFT, now_ns >> FINE_SHIFT)
        return (
            _sum(self._coarse, first, coarse)
            + _sum(self._middle, middle_first, middle)
            + _sum(self._fine, fine_first, fine + 1)
        )

    def check_integrity(self) -> None:
        """Assert that the three resolutions agree and nothing is negative."""
        finite = sum(self._fine.values())
        assert finite == sum(self._middle.values()) == sum(self._coarse.values()), "resolutions disagree"
        assert 0 <= finite <= self.total_ns, "more booked with a deadline than in all"
        assert all(charge > 0 for charge in self._fine.values()), "empty bucket kept"


def _sum(table: dict[int, int], first: int, end: int) -> int:
    get = table.get
    total = 0
    for bucket in range(first, end):
        charge = get(bucket)
        if charge:
            total += charge
    return total


class Ledger:
    """The charges of everything queued in one group."""

    __slots__ = ("_levels", "total_ns")

    def __init__(self) -> None:
        self.total_ns = 0
        self._levels: dict[int, LevelLedger] = {}

    def add(self, level: int, deadline_ns: int, charge_ns: int) -> None:
        """Book the charge of a request; a negative one takes it back."""
        self.total_ns += charge_ns
        ledger = self._levels.get(level)
        if ledger is None:
            ledger = self._levels[level] = LevelLedger()
        ledger.add(deadline_ns, charge_ns)

    def until(self, level: int, deadline_ns: int, now_ns: int) -> int:
        """At least the sum of all charges that are as urgent as this key or more."""
        total = 0
        for other, ledger in self._levels.items():
            if other < level:
                total += ledger.total_ns
            elif other == level:
                total += ledger.total_ns if deadline_ns >= NO_DEADLINE else ledger.until(deadline_ns, now_ns)
        return total

    def check_integrity(self) -> None:
        """Assert that levels add up."""
        for ledger in self._levels.values():
            ledger.check_integrity()
        assert self.total_ns == sum(ledger.total_ns for ledger in self._levels.values()), (
            "levels do not add up"
        )
