"""What the accountant tells about itself; values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStatistics:
    """Sums of one device as of now. ``left_bytes`` is what reservations and leaving versions leave of the budget for
    models that serve, which take ``used_bytes``; ``other_bytes`` is what those others take, above the budget or not."""

    budget_bytes: int
    left_bytes: int
    used_bytes: int
    leaving_bytes: int
    other_bytes: int
    arriving: int
    waiting_models: int
    waiting_requests: int
    waiting_bytes: int
    span_ns: int
