"""By what the scheduler goes: what the operator sets, and the constants of planning."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.config.engine import SchedulingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning(SchedulingConfig):
    """The ``[scheduling]`` section with constants of its own. What each of these is for stands behind it."""

    margin_ns: int = 1_000_000
    """Kept free before every deadline for what happens outside the worker: the way in, the way out and the loop between
    take less than a millisecond on the slowest box that is served."""
    prefetch_ns: int = 3_000_000
    """So long before a lane should be free it is sent its next batch, if that is full (0: never before): longer than a
    hand-over takes, shorter than most batches run."""
    quantile: float = 0.9
    """Of the learned service time that plans use: the mean would miss every second deadline, the tail would refuse too
    much."""
    plan_tolerance: float = 0.05
    """How much dearer per row than the best size the batch that plans assume may be: smaller batches answer earlier."""
    probe_after_refusals: int = 8
    """After so many requests of a batch key in a row were refused for their deadline without one having run, for so
    many times as long as one should take, one is let through on an idle lane, so that a wrong estimate can correct
    itself (0: never); sooner while fewer have run, the first one at once. So a ninth at most is let through of what is
    late indeed, and has a ninth of such a lane's time."""
