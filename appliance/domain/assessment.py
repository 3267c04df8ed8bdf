"""What a version proved before it served: how near its answers are to the golden ones, and how long its runs take."""

from __future__ import annotations

from typing import NamedTuple


class Deviation(NamedTuple):
    """How far off the golden answers an output was at most, over all cases; ``relative`` to the right value."""

    output: str
    absolute: float
    relative: float


class Assessment(NamedTuple):
    """What a version proved. ``worst`` per output of the ``cases`` golden cases. ``p50_ns`` and ``p99_ns`` of ``runs``
    runs of ``rows`` rows on the normal processor class; all 0 when nothing could be run. ``promised_ns`` is what its
    golden set promises of the latter and was not kept; 0: nothing is, or it was."""

    cases: int
    worst: tuple[Deviation, ...]
    rows: int
    runs: int
    p50_ns: int
    p99_ns: int
    promised_ns: int

    @property
    def is_broken(self) -> bool:
        """Whether a promise was not kept."""
        return self.promised_ns > 0
