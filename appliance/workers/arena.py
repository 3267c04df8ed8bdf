"""The memory of tensors: size-classed slots, taken and given back in constant time, in a memory object for each group
of workers.

A slot is a place that is the same in every object, and has pages in one of them: that which the workers map that serve
its request, or one of the daemon's own while there are none. So there is one bound for all, and a request goes over to
another group by one copy, for which there is always room. Free slots are used last in, first out, rather in the object
that they were in, so that the touched set stays as small as the load. Idle slots from TRIM_FROM_BYTES up keep their
pages only up to ``kept_bytes``: beyond that those go back to the kernel that have been idle longest, whoever used them,
so that a group that was busy once leaves room to one that is. An object lasts as long as it has a worker or a slot.
Owner: the thread of the daemon's event loop.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final

from appliance.config.workers import PAGE_BYTES, ArenaConfig, class_problems, in_pages
from appliance.domain.errors import ConfigInvalid, Problem
from appliance.domain.tensor import ALIGNMENT, aligned
from appliance.workers.memory_object import MemoryObject

__all__ = ["ALIGNMENT", "Arena", "ArenaStatistics", "Slot", "aligned"]

TRIM_FROM_BYTES: Final = 64 << 10
KEPT_SHARE: Final = 8
"""The part of the arena that idle large slots may keep, which the next requests find warm: pages that are given back
and taken anew cost more than what is copied there. By default 128 MiB: two dozen pictures of 640 by 640."""
KEPT_LEAST_BYTES: Final = 32 << 20
"""Of a small arena they may keep as much as one of the largest requests takes, up to half of it."""
NO_GROUP: Final = -1


def _kept_of(limit_bytes: int) -> int:
    return max(limit_bytes // KEPT_SHARE, min(limit_bytes // 2, KEPT_LEAST_BYTES))


class Slot:
    """A piece of ``memory``: ``size`` usable bytes from ``offset``, of which the first ``touched`` may have pages, also
    those of earlier uses. Identity matters; made by the arena only."""

    __slots__ = ("level", "memory", "offset", "size", "touched")

    def __init__(self, offset: int, level: int, memory: MemoryObject) -> None:
        self.offset = offset
        self.level = level
        self.memory = memory
        self.size = 0
        self.touched = 0

    def view(self, nbytes: int) -> memoryview:
        """Its first bytes, writable."""
        return self.memory.view(self.offset, nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaStatistics:
    """``used_slots`` per class; bytes allocated now, and allowed; ``idle_kept_bytes`` of large slots that are free but
    resident; ``exhausted`` counts refusals."""

    used_slots: tuple[int, ...]
    allocated_bytes: int
    limit_bytes: int
    idle_kept_bytes: int
    exhausted: int


class _SizeClass:
    """Free slots of one size. ``warm`` ones keep their pages, by the object in which; ``cold`` ones have none; unused
    ones are not yet made."""

    __slots__ = ("cold", "count", "first", "made", "slot_bytes", "used", "warm")

    def __init__(self, first: int, slot_bytes: int, count: int) -> None:
        self.first = first
        self.slot_bytes = slot_bytes
        self.count = count
        self.made = 0
        self.used = 0
        self.warm: dict[MemoryObject, deque[Slot]] = {}
        self.cold: list[Slot] = []

    def keep(self, slot: Slot) -> None:
        """Note a free slot that keeps its pages."""
        kept = self.warm.get(slot.memory)
        if kept is None:
            kept = self.warm[slot.memory] = deque()
        kept.append(slot)

    def take(self, memory: MemoryObject, level: int) -> Slot:
        """A free slot for ``memory``: rather one that was there. One that has pages elsewhere is to lose them."""
        if kept := self.warm.get(memory):
            return kept.pop()
        if self.cold:
            return self.cold.pop()
        if self.made < self.count:
            self.made += 1
            return Slot(self.first + (self.made - 1) * self.slot_bytes, level, memory)
        return next(kept for kept in self.warm.values() if kept).pop()

    def discard(self, slot: Slot) -> None:
        """Give the pages of a slot back to the kernel."""
        slot.memory.discard(slot.offset, self.slot_bytes)
        slot.touched = 0


class Arena:
    """Allocator over memory objects of ``size`` bytes; ``own`` is the one that no worker has. Raises ConfigInvalid when
    the size classes make no sense. ``page_bytes`` are what memory is given and taken back in."""

    def __init__(
        self, config: ArenaConfig, kept_bytes: int | None = None, *, page_bytes: int = PAGE_BYTES
    ) -> None:
        self._config = config
        self._page_bytes = page_bytes
        self._kept_bytes = _kept_of(config.memory_limit_bytes) if kept_bytes is None else kept_bytes
        self._classes: list[_SizeClass] = []
        self.size = self._lay_out()
        self._objects: set[MemoryObject] = set()
        self._made = 0
        self.own = self._make(NO_GROUP)
        self.own.workers = 1  # the daemon
        self._by_group: dict[int, MemoryObject] = {}
        self._by_worker: dict[int, MemoryObject] = {}
        self._allocated = 0
        self._kept: OrderedDict[Slot, None] = OrderedDict()
        """Large slots that are free and have pages, from the one that has been idle longest."""
        self._idle_kept = 0
        self._exhausted = 0

    def _lay_out(self) -> int:
        if texts := tuple(class_problems(self._config.classes)):
            raise ConfigInvalid(
                Problem(file="configuration", key="arena.classes", text=text) for text in texts
            )
        position = 0
        for slot_bytes, count in in_pages(self._config.classes, self._page_bytes):
            self._classes.append(_SizeClass(position, slot_bytes, count))
            position += slot_bytes * count
        return position

    # --- who maps what

    def attach(self, worker: int, group: int) -> MemoryObject:
        """The object that a new worker shall map, as the others of its ``group`` do. Raises OSError."""
        memory = self._by_group.get(group)
        if memory is None:
            memory = self._by_group[group] = self._make(group)
        memory.workers += 1
        self._by_worker[worker] = memory
        return memory

    def detach(self, worker: int) -> None:
        """A worker's process has ended, or none was started. What still lies in the object of the last one of a group
        stays there until it is needed in another, or by nobody."""
        memory = self._by_worker.pop(worker, None)
        if memory is None:
            return
        memory.workers -= 1
        if not memory.workers:
            del self._by_group[memory.group]
            for size_class in self._classes:
                for slot in size_class.warm.pop(memory, ()):
                    self._unkeep(slot)
                    slot.touched = 0
                    size_class.cold.append(slot)
            self._close_unused(memory)

    def _make(self, group: int) -> MemoryObject:
        memory = MemoryObject(self._made, group, self.size)
        self._made += 1
        self._objects.add(memory)
        return memory

    def of_worker(self, worker: int) -> MemoryObject | None:
        """What a worker maps; None when it is gone."""
        return self._by_worker.get(worker)

    def of_group(self, group: int) -> MemoryObject:
        """Where a request for a group is put that no worker has yet."""
        return self._by_group.get(group, self.own)

    def _close_unused(self, memory: MemoryObject) -> None:
        if not memory.workers and not memory.slots:
            self._objects.remove(memory)
            memory.close()

    # --- slots

    def allocate(self, nbytes: int, memory: MemoryObject) -> Slot | None:
        """A slot of at least ``nbytes`` bytes of ``memory``, page-aligned; its contents are arbitrary. None when
        nothing fits now.

        A slot is charged, and may be used, for ``nbytes`` rounded up to whole pages.
        """
        charge = self._charge(nbytes)
        level = self._level_for(charge)
        if level is not None:
            return self._take(level, self._classes[level], charge, memory)
        self._exhausted += 1
        return None

    def has_room(self, nbytes: int) -> bool:
        """Whether ``allocate`` would give such a slot now."""
        return self._level_for(self._charge(nbytes)) is not None

    def _charge(self, nbytes: int) -> int:
        """What a slot for ``nbytes`` is charged: whole pages."""
        return (nbytes + self._page_bytes - 1) & -self._page_bytes or self._page_bytes

    def _level_for(self, charge: int) -> int | None:
        if self._allocated + charge <= self._config.memory_limit_bytes:
            for level, size_class in enumerate(self._classes):
                if charge <= size_class.slot_bytes and size_class.used < size_class.count:
                    return level
        return None

    def _take(self, level: int, size_class: _SizeClass, charge: int, memory: MemoryObject) -> Slot:
        slot = size_class.take(memory, level)
        self._unkeep(slot)
        if slot.touched and slot.memory is not memory:
            size_class.discard(slot)
        size_class.used += 1
        memory.slots += 1
        slot.memory, slot.size, slot.touched = memory, charge, max(slot.touched, charge)
        self._allocated += charge
        return slot

    def slots_for(self, nbytes: int) -> int:
        """How many slots there are of the smallest size that holds ``nbytes``; 0 when none does."""
        return next((each.count for each in self._classes if each.slot_bytes >= nbytes), 0)

    def move(self, slot: Slot, memory: MemoryObject, nbytes: int) -> None:
        """Have a slot be in ``memory`` from now on, with what its first ``nbytes`` bytes are."""
        before = slot.memory
        if before is memory:
            return
        memory.view(slot.offset, nbytes)[:] = slot.view(nbytes)
        self._classes[slot.level].discard(slot)
        slot.touched = slot.size
        before.slots -= 1
        memory.slots += 1
        slot.memory = memory
        self._close_unused(before)

    def free(self, slot: Slot) -> None:
        """Give a slot back; the caller must have dropped every view through which it could still be written."""
        charge = slot.size
        assert charge > 0, f"slot at {slot.offset} was freed twice"
        slot.size = 0
        self._allocated -= charge
        size_class = self._classes[slot.level]
        size_class.used -= 1
        slot.memory.slots -= 1
        if not slot.memory.workers:  # its pages go with it
            slot.touched = 0
            size_class.cold.append(slot)
            self._close_unused(slot.memory)
        elif size_class.slot_bytes < TRIM_FROM_BYTES:
            size_class.keep(slot)
        elif slot.touched <= self._kept_bytes:
            self._keep(slot, size_class)
        else:
            size_class.discard(slot)
            size_class.cold.append(slot)

    def _keep(self, slot: Slot, size_class: _SizeClass) -> None:
        """Keep the pages of a slot, and those of others as far as there is room beside them."""
        while self._idle_kept + slot.touched > self._kept_bytes:
            oldest = next(iter(self._kept))
            others = self._classes[oldest.level]
            first = others.warm[oldest.memory].popleft()
            assert first is oldest, "slots of one object are kept in another order than all are"
            self._unkeep(oldest)
            others.discard(oldest)
            others.cold.append(oldest)
        self._idle_kept += slot.touched
        self._kept[slot] = None
        size_class.keep(slot)

    def _unkeep(self, slot: Slot) -> None:
        """A slot is taken, or loses its pages: it counts no more."""
        if slot in self._kept:
            del self._kept[slot]
            self._idle_kept -= slot.touched

    def statistics(self) -> ArenaStatistics:
        """Counters and gauges of this moment."""
        return ArenaStatistics(
            used_slots=tuple(size_class.used for size_class in self._classes),
            allocated_bytes=self._allocated,
            limit_bytes=self._config.memory_limit_bytes,
            idle_kept_bytes=self._idle_kept,
            exhausted=self._exhausted,
        )

    def check_integrity(self) -> None:
        """Assert that every slot ever made is either used or free once, and that the sums are right."""
        kept: set[Slot] = set()
        for level, size_class in enumerate(self._classes):
            warm = [slot for slots in size_class.warm.values() for slot in slots]
            free = warm + size_class.cold
            offsets = {slot.offset for slot in free}
            assert len(offsets) == len(free), f"a slot of class {level} is free twice"
            assert len(free) + size_class.used == size_class.made <= size_class.count
            assert all(slot.level == level and slot.size == 0 for slot in free)
            assert all(slot.memory is memory for memory, slots in size_class.warm.items() for slot in slots)
            assert not any(slot.touched for slot in size_class.cold)
            assert all(memory.workers for memory in size_class.warm), "pages are kept that nobody uses"
            kept.update(warm if size_class.slot_bytes >= TRIM_FROM_BYTES else ())
        assert kept == self._kept.keys()
        assert sum(slot.touched for slot in kept) == self._idle_kept <= self._kept_bytes
        used = sum(size_class.used for size_class in self._classes)
        assert used == sum(memory.slots for memory in self._objects)
        assert all(memory.workers or memory.slots for memory in self._objects)
        assert 0 <= self._allocated <= self._config.memory_limit_bytes
        assert self._allocated == 0 or any(size_class.used for size_class in self._classes)

    def close(self) -> None:
        """Give everything back. Views that are still alive keep the mapping until they go."""
        for memory in self._objects:
            memory.close()
