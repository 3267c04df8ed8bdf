"""The sections ``[workers]`` and ``[restart]`` of the configuration: how workers run, and what becomes of those that
crash."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersConfig:
    """How workers run. ``cpus``: the i-th worker gets the i-th set, in turn; empty: no affinity. A batch that runs
    longer than ``run_timeout_ms`` (a model's parameter of that name overrides it) or a load that takes longer than
    ``load_timeout_ms`` ends the worker. ``memory_limit_bytes`` bounds each worker's private memory, 0: unbounded.
    ``confinement`` is "required" where a kernel that cannot keep workers from everything is not to be served on."""

    threads: int = field(
        default=1, metadata={"min": 1, "max": 1024, "help": "threads that one model run may use"}
    )
    cpus: tuple[tuple[int, ...], ...] = field(
        default=(),
        metadata={
            "help": "processor sets, given to workers in turn, such as [[0], [1]]; empty: any",
            "shape": "a list of lists of CPU numbers, such as [[0], [1]]",
        },
    )
    run_timeout_ms: int = field(
        default=10_000,
        metadata={"min": 1, "unit": "ms", "help": "a batch that runs longer ends its worker"},
    )
    load_timeout_ms: int = field(
        default=120_000,
        metadata={"min": 1, "unit": "ms", "help": "a model that loads longer ends its worker"},
    )
    memory_limit_bytes: int = field(
        default=0, metadata={"min": 0, "unit": "bytes", "help": "private memory of one worker; 0: unbounded"}
    )
    confinement: str = field(
        default="auto",
        metadata={
            "choices": ("auto", "required"),
            "help": "auto: workers are kept from what this kernel can keep them from; required: and without all of "
            "it nothing is served",
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartConfig:
    """Patience with crashing workers."""

    quarantine_after: int = field(
        default=2, metadata={"min": 1, "help": "crashes of one model version before it is quarantined"}
    )
    restart_delay_ms: int = field(
        default=50,
        metadata={"min": 0, "unit": "ms", "help": "wait before the second restart in a row; doubles"},
    )
