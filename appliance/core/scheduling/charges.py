"""Sums of lane time by urgency: how much work is queued ahead of a key.

Charges are booked per priority level in buckets of about 2 ms and 134 ms of deadline, so that a sum up to a
deadline costs some tens of look-ups however many requests are queued. The bucket of the deadline asked for
counts whole, and so does the level when the deadline is far away: the answer is never too small, and at most
one fine bucket too large when the deadline is near. Coarse buckets that are empty are not kept; the fine ones of
another lie side by side in one list, because with many requests queued it is memory that a look-up waits for.
"""

from __future__ import annotations

from itertools import repeat

from appliance.domain.inference import NO_DEADLINE

FINE_SHIFT = 21
FAN_OUT_SHIFT = 6
FAN_OUT = 1 << FAN_OUT_SHIFT
LEVEL_SHIFT = 42
"""Place of the level in a bucket's number, above every deadline."""
LEVEL_SPAN = 1 << LEVEL_SHIFT
COARSE_SHIFT = FINE_SHIFT + FAN_OUT_SHIFT
FINE_READS_MAX = 96
COARSE_READS_MAX = 128
"""A deadline further away than so many coarse buckets (17 s) is answered with the whole level."""


class Charges:
    """The charges of everything queued in one group. ``total_ns`` and the levels include those without a
    deadline."""

    __slots__ = ("_coarse", "_endless", "_filled", "_fine", "_levels", "total_ns")

    def __init__(self) -> None:
        self.total_ns = 0
        self._levels: dict[int, int] = {}
        self._endless: dict[int, int] = {}
        """Of each level, what has no deadline."""
        self._fine: dict[int, list[int]] = {}
        """Of each coarse bucket, its fine ones."""
        self._filled = 0
        """Fine buckets that are not empty."""
        self._coarse: dict[int, int] = {}

    def add(self, level: int, deadline_ns: int, charge_ns: int) -> None:
        """Book the charge of a request; a negative one takes it back."""
        self.total_ns += charge_ns
        _book(self._levels, level, charge_ns)
        if deadline_ns >= NO_DEADLINE:
            _book(self._endless, level, charge_ns)
            return
        if not charge_ns:
            return
        bucket = (level << LEVEL_SHIFT) + (deadline_ns >> FINE_SHIFT)
        coarse = bucket >> FAN_OUT_SHIFT
        booked = self._coarse.get(coarse, 0)
        if not booked:
            self._fine[coarse] = [0] * FAN_OUT
        fine = self._fine[coarse]
        place = bucket & (FAN_OUT - 1)
        before = fine[place]
        after = fine[place] = before + charge_ns
        self._filled += (not before) - (not after)
        booked += charge_ns
        if booked:
            self._coarse[coarse] = booked
        else:
            del self._coarse[coarse], self._fine[coarse]

    def until(self, level: int, deadline_ns: int, now_ns: int) -> int:
        """At least the sum of all charges that are as urgent as this key or more and not late at
        ``now_ns``."""
        above_ns = 0
        for other, charge_ns in self._levels.items():
            if other < level:
                above_ns += charge_ns
        base = level << LEVEL_SHIFT
        first, last = base + (now_ns >> FINE_SHIFT), base + (deadline_ns >> FINE_SHIFT)
        first_coarse, coarse = first >> FAN_OUT_SHIFT, last >> FAN_OUT_SHIFT
        if coarse - first_coarse > COARSE_READS_MAX:
            return above_ns + self._levels.get(level, 0)
        if first_coarse < coarse:
            above_ns += sum(map(self._coarse.get, range(first_coarse, coarse), repeat(0)))
            first = coarse << FAN_OUT_SHIFT
        fine = self._fine.get(coarse)
        if fine is None:
            return above_ns
        base = coarse << FAN_OUT_SHIFT
        return above_ns + sum(fine[first - base : last - base + 1])

    def levels(self) -> list[tuple[int, int]]:
        """Each level with its whole charge, the most urgent one first."""
        return sorted(self._levels.items())

    def buckets(self, level: int, now_ns: int) -> list[tuple[int, int, int]]:
        """The charges of ``level`` that have a deadline in [now, ...), as (first deadline possible, end of
        them, sum), in order. When there are many, those not near are coarse, and those from the 128th on are
        one."""
        base = level << LEVEL_SHIFT
        if self._filled <= FINE_READS_MAX:
            order = sorted(
                coarse for coarse in self._fine if base <= coarse << FAN_OUT_SHIFT < base + LEVEL_SPAN
            )
            return [bucket for coarse in order for bucket in self._spread_fine(coarse, base)]
        first = base + (now_ns >> FINE_SHIFT)
        near = (first >> FAN_OUT_SHIFT) + 2
        found = self._spread_fine(near - 2, base, first & (FAN_OUT - 1)) + self._spread_fine(near - 1, base)
        base >>= FAN_OUT_SHIFT
        coarse, far = self._coarse, near + COARSE_READS_MAX
        found += [
            _spread(bucket - base, COARSE_SHIFT, coarse[bucket])
            for bucket in range(near, far)
            if bucket in coarse
        ]
        rest_ns = self._levels[level] - self._endless.get(level, 0) - sum([bucket[2] for bucket in found])
        if rest_ns:
            found.append(((far - base) << COARSE_SHIFT, NO_DEADLINE, rest_ns))
        return found

    def check_integrity(self) -> None:
        """Assert that resolutions and levels agree and nothing is negative."""
        finite = sum(sum(fine) for fine in self._fine.values())
        assert self._fine.keys() == self._coarse.keys(), "fine buckets of no coarse one"
        assert finite == sum(self._coarse.values()), "resolutions disagree"
        assert finite + sum(self._endless.values()) == self.total_ns, "buckets and the rest do not add up"
        assert all(charge > 0 for charge in self._coarse.values()), "empty bucket kept"
        charges = [charge for fine in self._fine.values() for charge in fine if charge]
        assert all(charge > 0 for charge in charges), "negative bucket"
        assert len(charges) == self._filled, "filled buckets miscounted"
        assert self.total_ns == sum(self._levels.values()), "levels do not add up"

    def _spread_fine(self, coarse: int, base: int, first: int = 0) -> list[tuple[int, int, int]]:
        """Those of the fine buckets of ``coarse`` that are not empty, from the place ``first`` on."""
        start = (coarse << FAN_OUT_SHIFT) - base
        return [
            _spread(start + place, FINE_SHIFT, charge_ns)
            for place, charge_ns in enumerate(self._fine.get(coarse, ()))
            if charge_ns and place >= first
        ]


def _spread(bucket: int, shift: int, charge_ns: int) -> tuple[int, int, int]:
    return bucket << shift, (bucket + 1) << shift, charge_ns


def _book(sums: dict[int, int], level: int, charge_ns: int) -> None:
    """Add to a level's sum; levels are as many as clients name, so that none is kept for nothing."""
    charged_ns = sums.get(level, 0) + charge_ns
    if charged_ns:
        sums[level] = charged_ns
    else:
        sums.pop(level, None)
