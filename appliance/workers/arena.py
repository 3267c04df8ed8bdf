"""One shared memory object for tensors: size-classed slots, taken and given back in constant time.

Sparse: a page costs memory only once it was touched. Free slots are used last in, first out, so that the touched set
stays as small as the load. Idle slots from TRIM_FROM_BYTES up keep their pages only up to ``kept_bytes``; beyond that
their pages go back to the kernel when they are freed. The memory cannot be resized through its descriptor.
Owner: the thread of the daemon's event loop.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from dataclasses import dataclass
from typing import Final

from appliance.config.workers import PAGE_BYTES, ArenaConfig, class_problems
from appliance.domain.errors import ConfigInvalid, Problem
from appliance.domain.tensor import ALIGNMENT, aligned

__all__ = ["ALIGNMENT", "Arena", "ArenaStatistics", "Slot", "aligned"]

TRIM_FROM_BYTES: Final = 64 << 10
KEPT_BYTES: Final = 32 << 20
"""Idle memory of large slots that stays resident: two of the largest images, which the next request finds warm."""

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def _charge(nbytes: int) -> int:
    """What a slot for ``nbytes`` is charged: whole pages."""
    return (nbytes + PAGE_BYTES - 1) & -PAGE_BYTES or PAGE_BYTES


class Slot:
    """A piece of the arena: ``size`` usable bytes from ``offset``. Identity matters; made by the arena only."""

    __slots__ = ("level", "offset", "size")

    def __init__(self, offset: int, level: int) -> None:
        self.offset = offset
        self.level = level
        self.size = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaStatistics:
    """``used_slots`` per class; bytes allocated now, at most so far, and allowed; ``idle_kept_bytes`` of large slots
    that are free but resident; ``exhausted`` counts refusals."""

    used_slots: tuple[int, ...]
    allocated_bytes: int
    allocated_bytes_max: int
    limit_bytes: int
    idle_kept_bytes: int
    exhausted: int


class _SizeClass:
    """Free slots of one size. ``warm`` ones keep their pages, ``cold`` ones have none; unused ones are not yet made."""

    __slots__ = ("cold", "count", "first", "made", "slot_bytes", "used", "warm")

    def __init__(self, first: int, slot_bytes: int, count: int) -> None:
        self.first = first
        self.slot_bytes = slot_bytes
        self.count = count
        self.made = 0
        self.used = 0
        self.warm: list[tuple[Slot, int]] = []
        self.cold: list[Slot] = []


class Arena:
    """Allocator over one memory object of ``size`` bytes behind descriptor ``fd``. Raises ConfigInvalid when the size
    classes make no sense."""

    def __init__(self, config: ArenaConfig, kept_bytes: int = KEPT_BYTES) -> None:
        self._config = config
        self._kept_bytes = kept_bytes
        self._classes: list[_SizeClass] = []
        self.size = self._lay_out()
        self.fd = os.memfd_create("appliance-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, self.size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
        self._map = mmap.mmap(self.fd, self.size)
        self._view = memoryview(self._map)
        self._allocated = 0
        self._allocated_max = 0
        self._idle_kept = 0
        self._exhausted = 0

    def _lay_out(self) -> int:
        if texts := tuple(class_problems(self._config.classes)):
            raise ConfigInvalid(
                Problem(file="configuration", key="arena.classes", text=text) for text in texts
            )
        position = 0
        for slot_bytes, count in self._config.classes:
            self._classes.append(_SizeClass(position, slot_bytes, count))
            position += slot_bytes * count
        return position

    @property
    def memory(self) -> memoryview:
        """All of the arena as writable bytes."""
        return self._view

    def allocate(self, nbytes: int) -> Slot | None:
        """A slot of at least ``nbytes`` bytes, page-aligned; its contents are arbitrary. None when nothing fits now.

        A slot is charged, and may be used, for ``nbytes`` rounded up to whole pages.
        """
        charge = _charge(nbytes)
        level = self._level_for(charge)
        if level is not None:
            return self._take(level, self._classes[level], charge)
        self._exhausted += 1
        return None

    def has_room(self, nbytes: int) -> bool:
        """Whether ``allocate`` would give such a slot now."""
        return self._level_for(_charge(nbytes)) is not None

    def _level_for(self, charge: int) -> int | None:
        if self._allocated + charge <= self._config.memory_limit_bytes:
            for level, size_class in enumerate(self._classes):
                if charge <= size_class.slot_bytes and size_class.used < size_class.count:
                    return level
        return None

    def _take(self, level: int, size_class: _SizeClass, charge: int) -> Slot:
        if size_class.warm:
            slot, resident = size_class.warm.pop()
            self._idle_kept -= resident
        elif size_class.cold:
            slot = size_class.cold.pop()
        else:
            slot = Slot(size_class.first + size_class.made * size_class.slot_bytes, level)
            size_class.made += 1
        size_class.used += 1
        slot.size = charge
        self._allocated += charge
        if self._allocated > self._allocated_max:
            self._allocated_max = self._allocated
        return slot

    def slots_for(self, nbytes: int) -> int:
        """How many slots there are of the smallest size that holds ``nbytes``; 0 when none does."""
        return next((count for size, count in self._config.classes if size >= nbytes), 0)

    def free(self, slot: Slot) -> None:
        """Give a slot back; the caller must have dropped every view through which it could still be written."""
        charge = slot.size
        assert charge > 0, f"slot at {slot.offset} was freed twice"
        slot.size = 0
        self._allocated -= charge
        size_class = self._classes[slot.level]
        size_class.used -= 1
        if size_class.slot_bytes < TRIM_FROM_BYTES:
            size_class.warm.append((slot, 0))
        elif self._idle_kept + charge <= self._kept_bytes:
            self._idle_kept += charge
            size_class.warm.append((slot, charge))
        else:
            self._map.madvise(mmap.MADV_REMOVE, slot.offset, size_class.slot_bytes)
            size_class.cold.append(slot)

    def view(self, offset: int, nbytes: int) -> memoryview:
        """Writable bytes of the arena; both ends must lie inside one slot of the caller's."""
        return self._view[offset : offset + nbytes]

    def statistics(self) -> ArenaStatistics:
        """Counters and gauges of this moment."""
        return ArenaStatistics(
            used_slots=tuple(size_class.used for size_class in self._classes),
            allocated_bytes=self._allocated,
            allocated_bytes_max=self._allocated_max,
            limit_bytes=self._config.memory_limit_bytes,
            idle_kept_bytes=self._idle_kept,
            exhausted=self._exhausted,
        )

    def check_integrity(self) -> None:
        """Assert that every slot ever made is either used or free once, and that the sums are right."""
        kept = 0
        for level, size_class in enumerate(self._classes):
            free = [slot for slot, _ in size_class.warm] + size_class.cold
            offsets = {slot.offset for slot in free}
            assert len(offsets) == len(free), f"a slot of class {level} is free twice"
            assert len(free) + size_class.used == size_class.made <= size_class.count
            assert all(slot.level == level and slot.size == 0 for slot in free)
            kept += sum(resident for _, resident in size_class.warm)
        assert kept == self._idle_kept <= self._kept_bytes
        assert 0 <= self._allocated <= self._config.memory_limit_bytes
        assert self._allocated == 0 or any(size_class.used for size_class in self._classes)

    def close(self) -> None:
        """Give everything back. Views that are still alive keep the mapping until they go."""
        os.close(self.fd)
        try:
            self._view.release()
            self._map.close()
        except BufferError:
            pass  # a view is still held; the mapping ends with it
