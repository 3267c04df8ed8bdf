"""Which versions leave the disk when there is no room: those whose loss is expected to cost the least per byte. Pure.

The loss of a version is what it costs to fetch it again, times how likely that is. Bytes count when no other version
has them: blobs that a kept version shares are not freed. (Greedy-dual by cost and size, Cao and Irani 1997, without the
ageing: rates come from outside.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A version that may go. ``blobs`` are its sizes by digest, ``rate_per_s`` how often it is expected to be used,
    ``fetch_s`` how long it takes to come again."""

    name: str
    version: int
    blobs: Mapping[str, int]
    rate_per_s: float
    fetch_s: float

    @property
    def loss(self) -> float:
        """Seconds of fetching per second that its absence is expected to cost."""
        return self.rate_per_s * self.fetch_s


def choose(
    candidates: Sequence[Candidate], kept: Collection[str], needed: int
) -> tuple[Candidate, ...] | None:
    """Versions that together free at least ``needed`` bytes; None when all of them do not. ``kept`` are digests of
    blobs that stay whatever is chosen."""
    rest = {(each.name, each.version): each for each in candidates}
    holders = Counter(digest for each in candidates for digest in each.blobs)
    holders.update(kept)
    chosen: list[Candidate] = []
    free = 0
    while free < needed:
        if not rest:
            return None
        best = min(rest.values(), key=lambda each: _price(each, holders, needed - free))
        del rest[best.name, best.version]
        free += _gain(best, holders)
        holders.subtract(best.blobs.keys())
        chosen.append(best)
    return tuple(_needed(chosen, holders, free - needed))


def _needed(chosen: Sequence[Candidate], holders: Counter[str], spare: int) -> Sequence[Candidate]:
    """The chosen, without those whose bytes are not needed after all; the dearest loss is spared first. One that is
    spared keeps blobs for others, which may be spared then."""
    left = sorted(chosen, key=lambda one: (-one.loss, one.name, one.version))
    while True:
        for each in left:
            bytes_back = sum(size for digest, size in each.blobs.items() if not holders[digest])
            if bytes_back <= spare:
                spare -= bytes_back
                holders.update(each.blobs.keys())
                left.remove(each)
                break
        else:
            return left


def _gain(candidate: Candidate, holders: Counter[str]) -> int:
    """Bytes that only it still has."""
    return sum(size for digest, size in candidate.blobs.items() if holders[digest] == 1)


def _price(candidate: Candidate, holders: Counter[str], lacking: int) -> tuple[bool, float, str, int]:
    """Loss per byte that its going would free now, of those that are lacking; what frees nothing comes last."""
    gain = min(_gain(candidate, holders), lacking)
    loss = candidate.loss / gain if gain else candidate.loss
    return (not gain, loss, candidate.name, candidate.version)
