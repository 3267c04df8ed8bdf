"""Bounds and constants of the scheduler; values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingConfig:
    """Bounds of all queues together and of one model, and the constants of planning.

    Queue bounds count what is queued, not what runs, in requests and in bytes of input.
    ``max_queued_per_model`` holds for a priority level whose queue policy has no bound of its own.

    ``margin_ns`` is kept free before every deadline for what happens outside the worker: the way in, the way
    out and the loop between. ``prefetch_below_ns``: a lane whose batches are shorter gets the next one before
    it is idle. ``quantile`` of the learned service time is what plans use. ``plan_tolerance`` says how much
    dearer per row than the best size the batch that plans assume may be. ``probe_after_refusals``: after so
    many requests of a shape in a row were refused for their deadline without one having run, one is let
    through on an idle lane, so that a wrong estimate can correct itself (0: never).
    """

    max_queued_requests: int = 20_000
    max_queued_bytes: int = 1 << 30
    max_queued_per_model: int = 4_000
    margin_ns: int = 1_000_000
    prefetch_below_ns: int = 5_000_000
    quantile: float = 0.9
    plan_tolerance: float = 0.05
    probe_after_refusals: int = 64
