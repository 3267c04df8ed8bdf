"""Repetitions in a sequence: blocks of things of equal kinds that follow one another several times.

Pure. Candidates come from where the same kinds follow again soon, and are compared by polynomial hashes (Karp and
Rabin), so that a sequence of some hundred thousand costs seconds; the work is bounded, and what lies beyond the bound
is not folded. Who asks has the last word on each block (``Same``), and says by ``crossing`` where one begins best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

FOLDED_MIN: Final = 4
"""Fewer things than that stay what they are."""
TRIES_MAX: Final = 4_000_000
COMPARED_MAX: Final = 4_000_000

_GRAMS: Final = ((1, 8), (8, 8), (64, 4))
"""So many of a kind after one another, and how many of their next places are tried."""
_MODULUS: Final = (1 << 61) - 1
_BASE: Final = 1_000_003


class Repeat(NamedTuple):
    """``times`` blocks of ``period`` things, from ``start`` on."""

    start: int
    period: int
    times: int

    @property
    def end(self) -> int:
        """The place after the last one."""
        return self.start + self.period * self.times


Same = Callable[[int, int, int, bool], bool]
"""Whether a block is as the one after it: (place of the one, place of the other, period, whether the one is the first
of all)."""


def find_repeats(kinds: Sequence[int], same: Same, crossing: Sequence[int]) -> list[Repeat]:
    """The repetitions in ``kinds`` from left to right, none in another. ``crossing[i]`` is what it costs to begin a
    block at ``i``: of the places where a repetition can begin it begins at the cheapest, of equal ones at the last."""
    search = _Search(kinds, same, crossing)
    found: list[Repeat] = []
    place = 0
    while place < len(kinds):
        repeat = search.at(place)
        if repeat is None:
            place += 1
        else:
            found.append(repeat)
            place = repeat.end
    return found


class _Search:
    def __init__(self, kinds: Sequence[int], same: Same, crossing: Sequence[int]) -> None:
        self._kinds = kinds
        self._same = same
        self._crossing = crossing
        self._tries_left = TRIES_MAX
        self._compared_left = COMPARED_MAX
        self._sums, self._powers = [0], [1]
        for kind in kinds:
            self._sums.append((self._sums[-1] * _BASE + kind + 1) % _MODULUS)
            self._powers.append(self._powers[-1] * _BASE % _MODULUS)
        self._next = [(self._successors(length), tries) for length, tries in _GRAMS]

    def at(self, place: int) -> Repeat | None:
        """The repetition at or shortly after ``place`` that covers most."""
        found = [self._stretch(place, period) for period in self._periods(place)]
        for period, length in sorted(found, key=lambda each: (-(each[1] // each[0]) * each[0], each[0])):
            if (length // period) * period < max(FOLDED_MIN, 2 * period):
                break
            repeat = self._confirmed(place, period, length)
            if repeat is not None:
                return repeat
        return None

    def _periods(self, place: int) -> list[int]:
        """Distances at which what is here may begin anew."""
        periods: dict[int, None] = {}
        for successors, tries in self._next:
            after = successors[place]
            for _ in range(tries):
                if after < 0 or self._tries_left <= 0:
                    break
                self._tries_left -= 1
                period = after - place
                if self._hash(place, period) == self._hash(after, period):
                    periods[period] = None
                after = successors[after]
        return list(periods)

    def _stretch(self, place: int, period: int) -> tuple[int, int]:
        """(``period``, how many things from ``place`` on are as those a period before them, with the first period)."""
        low, high = period, len(self._kinds) - place - period
        while low < high:
            middle = (low + high + 1) // 2
            if self._hash(place, middle) == self._hash(place + period, middle):
                low = middle
            else:
                high = middle - 1
        return period, low + period

    def _confirmed(self, place: int, period: int, length: int) -> Repeat | None:
        """The repetition within the ``length`` things from ``place`` on, where it begins best, as far as blocks are the
        same."""
        count = length // period
        last = place + length - count * period
        self._compared_left -= last + 1 - place
        start = min(range(place, last + 1), key=lambda each: (self._crossing[each], -each))
        real = 1
        while real < count and self._compared_left > 0:
            self._compared_left -= period
            one = start + (real - 1) * period
            if not self._same(one, one + period, period, real == 1):
                break
            real += 1
        repeat = Repeat(start, period, real)
        return repeat if real > 1 and real * period >= FOLDED_MIN else None

    def _hash(self, start: int, length: int) -> int:
        end = self._sums[min(start + length, len(self._kinds))]
        return (
            (end - self._sums[start] * self._powers[length]) % _MODULUS
            if start + length <= len(self._kinds)
            else -1
        )

    def _successors(self, length: int) -> list[int]:
        """For each place the next one where the same ``length`` kinds begin; -1 when there is none."""
        successors = [-1] * len(self._kinds)
        seen: dict[int, int] = {}
        for place in range(len(self._kinds) - length, -1, -1):
            gram = self._hash(place, length)
            successors[place] = seen.get(gram, -1)
            seen[gram] = place
        return successors
