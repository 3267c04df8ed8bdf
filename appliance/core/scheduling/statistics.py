"""What the scheduler tells about itself; values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatistics:
    """Sums over the scheduler between two steps: requests that wait, their bytes, and the batch keys that are open.
    ``queued_by_model`` holds models with something queued."""

    queued: int
    queued_bytes: int
    queued_by_model: dict[int, int]
    batch_keys: int
