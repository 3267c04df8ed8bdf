"""When a model that is queued for loading will be there.

The queue is played ahead: loads start in its order, none before the one ahead of it, each when a place for loading is
free and enough memory is. Memory becomes free when those that may be put out may be, and each model that was loaded
meanwhile may be put out after its hold. That is the list scheduling of ``admission`` with memory as a second resource,
and without backfilling, so that nothing delays what was promised before. With exact costs, and nothing in use that is
in the way, nothing arrives later than was said.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple


class Queued(NamedTuple):
    """A load to come: memory it needs beside what it has, all of its memory, its time, and how long it then stays."""

    missing_bytes: int
    bytes: int
    cost_ns: int
    hold_ns: int


def arrival_ns(
    queue: Iterable[Queued],
    places_ns: list[int],
    free_bytes: int,
    freed: list[tuple[int, int]],
    leave_ns: int,
    now_ns: int,
) -> int | None:
    """When the last of ``queue`` is there; None when the memory is never enough.

    ``places_ns`` is when each place for loading is free, ``freed`` are (time, bytes) of memory that can be had, given
    back in ``leave_ns``; both are used up.
    """
    heapq.heapify(places_ns)
    heapq.heapify(freed)
    start_ns = end_ns = now_ns
    for load in queue:
        start_ns = max(start_ns, heapq.heappop(places_ns))
        while free_bytes < load.missing_bytes:
            if not freed:
                return None
            at_ns, size_bytes = heapq.heappop(freed)
            start_ns = max(start_ns, at_ns + leave_ns)
            free_bytes += size_bytes
        free_bytes -= load.missing_bytes
        end_ns = start_ns + load.cost_ns
        heapq.heappush(places_ns, end_ns)
        heapq.heappush(freed, (end_ns + load.hold_ns, load.bytes))
    return end_ns
