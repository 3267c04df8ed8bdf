"""Bounds and constants of the scheduler and of residency; values only."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyPolicy:
    """Bounds of loading and waiting."""

    loads_at_once: int = field(
        default=2, metadata={"min": 1, "help": "models that are loaded at the same time while requests wait"}
    )
    waiting_requests_max: int = field(
        default=1_000, metadata={"min": 0, "help": "requests that wait for models to be loaded"}
    )
    waiting_bytes_max: int = field(
        default=256 << 20,
        metadata={
            "min": 0,
            "unit": "bytes",
            "help": "input bytes of requests that wait for models to be loaded",
        },
    )
    hold_factor: float = field(
        default=1.0,
        metadata={
            "min": 0,
            "max": 100,
            "help": "how many times its load time a model stays after it was loaded",
        },
    )
    retry_ns: int = field(
        default=5_000_000,
        metadata={
            "min": 1,
            "unit": "ns",
            "help": "how often a load looks for room when all models are in use",
        },
    )
    backoff_ns: int = field(
        default=1_000_000_000,
        metadata={"min": 1, "unit": "ns", "help": "pause after failed loads of a model; doubled by each"},
    )
    backoff_ns_max: int = field(
        default=60_000_000_000, metadata={"min": 1, "unit": "ns", "help": "longest pause after failed loads"}
    )
