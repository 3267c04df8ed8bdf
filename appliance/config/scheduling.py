"""The ``[scheduling]`` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingConfig:
    """Bounds of all queues together and of one model, and the constants of planning.

    Queue bounds count what is queued, not what runs, in requests and in bytes of input.
    ``max_queued_per_model`` holds for a priority level whose queue policy has no bound of its own.

    ``margin_ns`` is kept free before every deadline for what happens outside the worker: the way in, the way
    out and the loop between. ``prefetch_ns``: so long before a lane should be free it is sent its next batch,
    if that is full (0: never before). ``quantile`` of the learned service time is what plans use.
    ``plan_tolerance`` says how much dearer per row than the best size the batch that plans assume may be.
    ``probe_after_refusals``: after so many requests of a shape in a row were refused for their deadline
    without one having run, one is let through on an idle lane, so that a wrong estimate can correct itself
    (0: never); the first one at once, where none has run yet.
    """

    max_queued_requests: int = field(
        default=20_000, metadata={"min": 1, "help": "requests queued in the whole appliance"}
    )
    max_queued_bytes: int = field(
        default=1 << 30,
        metadata={"min": 1, "unit": "bytes", "help": "input bytes queued in the whole appliance"},
    )
    max_queued_per_model: int = field(
        default=4_000,
        metadata={"min": 1, "help": "requests queued per model and level that has no bound of its own"},
    )
    margin_ns: int = field(
        default=1_000_000,
        metadata={"min": 0, "unit": "ns", "help": "kept free before each deadline for the way in and out"},
    )
    prefetch_ns: int = field(
        default=3_000_000,
        metadata={
            "min": 0,
            "unit": "ns",
            "help": "how long before a worker is free its next full batch is sent",
        },
    )
    quantile: float = field(
        default=0.9,
        metadata={"min": 0.01, "max": 0.999, "help": "quantile of the learned service time that plans use"},
    )
    plan_tolerance: float = field(
        default=0.05,
        metadata={
            "min": 0,
            "max": 1,
            "help": "how much dearer per row the planned batch may be than the best",
        },
    )
    probe_after_refusals: int = field(
        default=64,
        metadata={"min": 0, "help": "refusals in a row after which one request is tried anyway; 0: never"},
    )
