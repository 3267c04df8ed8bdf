"""Sums of lane time by urgency: how much work is queued ahead of a key.

Charges are booked per priority level in buckets of about 2 ms and 134 ms of deadline, so that a sum up to a
deadline costs some tens of look-ups however many requests are queued. The bucket of the deadline asked for
counts whole, and so does the level when the deadline is far away: the answer is never too small, and at most
one fine bucket too large when the deadline is near. Empty buckets are not kept.
"""

from __future__ import annotations

from itertools import repeat

from appliance.inference import NO_DEADLINE

FINE_SHIFT = 21
FAN_OUT_SHIFT = 6
LEVEL_SHIFT = 42
"""Place of the level in a bucket's number, above every deadline."""
COARSE_READS_MAX = 128
"""A deadline further away than so many coarse buckets (17 s) is answered with the whole level."""


class Ledger:
    """The charges of everything queued in one group. ``total_ns`` and the levels include those without a
    deadline."""

    __slots__ = ("_coarse", "_endless", "_fine", "_levels", "total_ns")

    def __init__(self) -> None:
        self.total_ns = 0
        self._levels: dict[int, int] = {}
        self._endless: dict[int, int] = {}
        """Of each level, what has no deadline."""
        self._fine: dict[int, int] = {}
        self._coarse: dict[int, int] = {}

    def add(self, level: int, deadline_ns: int, charge_ns: int) -> None:
        """Book the charge of a request; a negative one takes it back."""
        self.total_ns += charge_ns
        self._levels[level] = self._levels.get(level, 0) + charge_ns
        if deadline_ns >= NO_DEADLINE:
            self._endless[level] = self._endless.get(level, 0) + charge_ns
            return
        if not charge_ns:
            return
        bucket = (level << LEVEL_SHIFT) + (deadline_ns >> FINE_SHIFT)
        booked = self._fine.get(bucket, 0) + charge_ns
        if booked:
            self._fine[bucket] = booked
        else:
            del self._fine[bucket]
        bucket >>= FAN_OUT_SHIFT
        booked = self._coarse.get(bucket, 0) + charge_ns
        if booked:
            self._coarse[bucket] = booked
        else:
            del self._coarse[bucket]

    def until(self, level: int, deadline_ns: int, now_ns: int) -> int:
        """At least the sum of all charges that are as urgent as this key or more and not late at
        ``now_ns``."""
        above_ns = 0
        if len(self._levels) > 1:
            above_ns = sum(charge for other, charge in self._levels.items() if other < level)
        base = level << LEVEL_SHIFT
        first, last = base + (now_ns >> FINE_SHIFT), base + (deadline_ns >> FINE_SHIFT)
        first_coarse, coarse = first >> FAN_OUT_SHIFT, last >> FAN_OUT_SHIFT
        if coarse - first_coarse > COARSE_READS_MAX:
            return above_ns + self._levels.get(level, 0)
        if first_coarse < coarse:
            above_ns += sum(map(self._coarse.get, range(first_coarse, coarse), repeat(0)))
            first = coarse << FAN_OUT_SHIFT
        return above_ns + sum(map(self._fine.get, range(first, last + 1), repeat(0)))

    def levels(self) -> list[tuple[int, int]]:
        """Each level with its whole charge, the most urgent one first."""
        return sorted(self._levels.items())

    def buckets(self, level: int, now_ns: int) -> list[tuple[int, int]]:
        """The charges of ``level`` that have a deadline, as (deadline not later than any of them, sum), in
        order: fine ones first, then coarse ones, of which those from the 128th on are one."""
        base = level << LEVEL_SHIFT
        first = base + (now_ns >> FINE_SHIFT)
        near = (first >> FAN_OUT_SHIFT) + 2
        far_end = near + COARSE_READS_MAX
        fine, coarse = self._fine, self._coarse
        found = [
            ((at - base) << FINE_SHIFT, fine[at]) for at in range(first, near << FAN_OUT_SHIFT) if at in fine
        ]
        rest = self._levels[level] - self._endless.get(level, 0) - sum([charge for _, charge in found])
        if not rest:
            return found
        shift = FINE_SHIFT + FAN_OUT_SHIFT
        base >>= FAN_OUT_SHIFT
        for at in range(near, far_end):
            charge = coarse.get(at)
            if charge:
                found.append(((at - base) << shift, charge))
                rest -= charge
        if rest:
            found.append(((far_end - base) << shift, rest))
        return found

    def check_integrity(self) -> None:
        """Assert that resolutions and levels agree and nothing is negative."""
        finite = sum(self._fine.values())
        assert finite == sum(self._coarse.values()), "resolutions disagree"
        assert finite + sum(self._endless.values()) == self.total_ns, "buckets and the rest do not add up"
        assert all(charge > 0 for charge in self._fine.values()), "empty bucket kept"
        assert self.total_ns == sum(self._levels.values()), "levels do not add up"
