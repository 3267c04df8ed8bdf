"""Worker processes: the sections ``[workers]``, ``[restart]``, of those that crash, ``[placement]``, of models that
share one, and ``[arena]``, of the memory that they share with the daemon."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersConfig:
    """How workers run. ``cpus``: the i-th worker gets the i-th set, in turn; empty: no affinity, but those of a GPU get
    the processors nearest to it. A batch that runs longer than ``run_timeout_ms`` (a model's parameter of that name
    overrides it) or a load that takes longer than ``load_timeout_ms`` ends the worker. ``memory_limit_bytes`` bounds
    each worker's private memory, 0: unbounded.
    ``confinement`` is "required" where a kernel that cannot keep workers from everything is not to be served on."""

    threads: int = field(
        default=1, metadata={"min": 1, "max": 1024, "help": "threads that one model run may use"}
    )
    cpus: tuple[tuple[int, ...], ...] = field(
        default=(),
        metadata={
            "help": "processor sets, given to workers in turn, such as [[0], [1]]; empty: any, those of a GPU "
            "the nearest to it",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementConfig:
    """Limits of sharing."""

    max_processes: int = field(
        default=32, metadata={"min": 1, "help": "worker processes before small models start to share one"}
    )
    share_below_bytes: int = field(
        default=4 << 20,
        metadata={"min": 0, "unit": "bytes", "help": "only model files below this size may share"},
    )


PAGE_BYTES: Final = mmap.PAGESIZE
UNIT_BYTES: Final = 4096
"""What slots are multiples of, whatever pages the kernel has: one configuration is for all boxes of a fleet."""
MAX_BYTES: Final = 1 << 46


def class_problems(classes: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """What is wrong with size classes, given as (bytes per slot, slots)."""
    if not classes:
        yield "must hold at least one size class, such as [[4096, 1024]]"
    previous = 0
    for slot_bytes, count in classes:
        said = f"class [{slot_bytes}, {count}]"
        if slot_bytes < 1 or slot_bytes % UNIT_BYTES:
            yield f"{said} must have slots of a multiple of {UNIT_BYTES} bytes"
        if slot_bytes <= previous:
            yield f"{said} must have larger slots than the class before it, which has {previous} bytes"
        if count < 1:
            yield f"{said} must have at least one slot"
        previous = max(previous, slot_bytes)
    if sum(slot_bytes * count for slot_bytes, count in in_pages(classes)) > MAX_BYTES:
        yield f"all classes together must be at most {MAX_BYTES} bytes, which is what a process can address"


def in_pages(
    classes: tuple[tuple[int, int], ...], page_bytes: int = PAGE_BYTES
) -> tuple[tuple[int, int], ...]:
    """Size classes as a kernel with such pages can have them: slots of whole pages. Those that are the same then are
    one, with the slots of all."""
    slots: dict[int, int] = {}
    for slot_bytes, count in classes:
        whole = slot_bytes + -slot_bytes % page_bytes
        slots[whole] = slots.get(whole, 0) + count
    return tuple(slots.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaConfig:
    """``classes`` are (bytes per slot, slots), ascending; ``memory_limit_bytes`` bounds what is allocated at any
    time."""

    classes: tuple[tuple[int, int], ...] = field(
        default=(
            (4 << 10, 8192),
            (64 << 10, 2048),
            (1 << 20, 512),
            (8 << 20, 64),
            (16 << 20, 64),
            (32 << 20, 32),
            (64 << 20, 16),
            (128 << 20, 8),
        ),
        metadata={
            "help": "size classes as [bytes per slot, slots], ascending, in units of 4096; larger pages round up",
            "shape": "a list of pairs [bytes per slot, slots], such as [[4096, 1024], [65536, 64]]",
            "check": class_problems,
        },
    )
    memory_limit_bytes: int = field(
        default=1 << 30,
        metadata={"min": 1 << 20, "unit": "bytes", "help": "tensors of all requests under way, at most"},
    )

    @property
    def largest_bytes(self) -> int:
        """What one request may hold at most, however empty the arena is."""
        return min(self.memory_limit_bytes, self.classes[-1][0])
