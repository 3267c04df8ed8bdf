"""The ``[arena]`` section of the configuration: shared memory between the daemon and its workers."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

PAGE_BYTES: Final = mmap.PAGESIZE


MAX_BYTES: Final = 1 << 46


def class_problems(classes: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """What is wrong with size classes, given as (bytes per slot, slots)."""
    if not classes:
        yield "must hold at least one size class, such as [[4096, 1024]]"
    previous = 0
    for slot_bytes, count in classes:
        said = f"class [{slot_bytes}, {count}]"
        if slot_bytes < 1 or slot_bytes % PAGE_BYTES:
            yield f"{said} must have slots of whole pages, which are {PAGE_BYTES} bytes here"
        if slot_bytes <= previous:
            yield f"{said} must have larger slots than the class before it, which has {previous} bytes"
        if count < 1:
            yield f"{said} must have at least one slot"
        previous = max(previous, slot_bytes)
    if sum(slot_bytes * count for slot_bytes, count in classes) > MAX_BYTES:
        yield f"all classes together must be at most {MAX_BYTES} bytes, which is what a process can address"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaConfig:
    """``classes`` are (bytes per slot, slots), ascending; ``memory_limit_bytes`` bounds what is allocated at any
    time."""

    classes: tuple[tuple[int, int], ...] = field(
        default=((4 << 10, 8192), (64 << 10, 2048), (1 << 20, 512), (16 << 20, 32), (128 << 20, 4)),
        metadata={
            "help": "size classes as [bytes per slot, slots], ascending, in whole pages",
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
