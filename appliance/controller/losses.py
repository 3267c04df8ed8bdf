"""Numbers of an outbox that will not come, so that each is held or accounted for, once. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from appliance.fleet.records import Lost

UNEXPLAINED: Final = "unexplained"
"""The box went on beyond numbers of which it said nothing."""


class Loss(NamedTuple):
    """The numbers ``first`` to ``last`` of an epoch."""

    first: int
    last: int
    reason: str


def losses(start: int, end: int, lost: Sequence[Lost]) -> Iterator[Loss]:
    """What of the numbers from ``start`` up to and without ``end`` is lost, by what the box says of them: all of
    them, one after another; what was counted before stays as it was."""
    at = start
    for each in sorted(lost, key=lambda each: each.first):
        first, last = max(each.first, at), min(each.last, end - 1)
        if first > last:
            continue
        if first > at:
            yield Loss(at, first - 1, UNEXPLAINED)
        yield Loss(first, last, each.reason)
        at = last + 1
    if at < end:
        yield Loss(at, end - 1, UNEXPLAINED)
