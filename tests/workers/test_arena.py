"""The arena: sizes, reuse, bounds, and memory that goes back."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.config.workers import ArenaConfig
from appliance.domain.errors import ConfigInvalid
from appliance.workers.arena import ALIGNMENT, Arena, Slot

KIB, MIB = 1 << 10, 1 << 20
CONFIG = ArenaConfig(classes=((4 * KIB, 4), (64 * KIB, 3), (MIB, 3)), memory_limit_bytes=2 * MIB + 512 * KIB)


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(CONFIG, kept_bytes=MIB)
    yield made
    made.check_integrity()
    made.close()


def take(arena: Arena, nbytes: int) -> Slot:
    slot = arena.allocate(nbytes)
    assert slot is not None
    return slot


def resident_bytes(arena: Arena) -> int:
    """Memory that the object really takes."""
    return os.fstat(arena.fd).st_blocks * 512


@pytest.mark.parametrize(
    ("nbytes", "size", "used"),
    [
        (0, 4 * KIB, (1, 0, 0)),
        (1, 4 * KIB, (1, 0, 0)),
        (4 * KIB, 4 * KIB, (1, 0, 0)),
        (4 * KIB + 1, 8 * KIB, (0, 1, 0)),
        (64 * KIB, 64 * KIB, (0, 1, 0)),
        (600 * KIB, 600 * KIB, (0, 0, 1)),
    ],
)
def test_the_smallest_class_that_fits(arena: Arena, nbytes: int, size: int, used: tuple[int, ...]) -> None:
    slot = take(arena, nbytes)
    assert (slot.size, slot.offset % ALIGNMENT, slot.offset % mmap.PAGESIZE) == (size, 0, 0)
    assert arena.statistics().used_slots == used
    assert arena.statistics().allocated_bytes == size
    arena.free(slot)
    assert arena.statistics().allocated_bytes == 0


def test_an_exhausted_class_borrows_from_the_next(arena: Arena) -> None:
    slots = [take(arena, 10) for _ in range(8)]
    assert arena.statistics().used_slots == (4, 3, 1)
    for slot in slots:
        arena.free(slot)


def test_nothing_fits(arena: Arena) -> None:
    assert arena.allocate(MIB + 1) is None
    slots = [take(arena, MIB), take(arena, MIB)]
    assert arena.allocate(MIB) is None, "the limit leaves 512 KiB"
    slots.append(take(arena, 500 * KIB))
    assert arena.statistics().exhausted == 2
    for slot in slots:
        arena.free(slot)


def test_the_last_freed_is_the_next_taken(arena: Arena) -> None:
    first, second = take(arena, 1), take(arena, 1)
    arena.free(first)
    arena.free(second)
    assert take(arena, 1) is second
    assert take(arena, 1) is first
    arena.free(first)
    arena.free(second)


def test_freeing_twice_is_a_programmer_error(arena: Arena) -> None:
    slot = take(arena, 1)
    arena.free(slot)
    with pytest.raises(AssertionError, match="freed twice"):
        arena.free(slot)


def test_views_are_the_memory_behind_the_descriptor(arena: Arena) -> None:
    slot = take(arena, 100)
    arena.view(slot.offset, 5)[:] = b"hello"
    assert os.pread(arena.fd, 5, slot.offset) == b"hello"
    assert bytes(arena.memory[slot.offset : slot.offset + 5]) == b"hello"
    arena.free(slot)


def test_an_untouched_arena_takes_no_memory(arena: Arena) -> None:
    assert arena.size == 4 * 4 * KIB + 3 * 64 * KIB + 3 * MIB
    assert resident_bytes(arena) == 0


def test_memory_goes_back_after_a_burst(arena: Arena) -> None:
    slots = [take(arena, MIB), take(arena, MIB)]
    for slot in slots:
        arena.view(slot.offset, MIB)[:] = b"\x01" * MIB
    assert resident_bytes(arena) == 2 * MIB
    for slot in slots:
        arena.free(slot)
    assert resident_bytes(arena) == MIB
    assert arena.statistics().idle_kept_bytes == MIB
    again = take(arena, MIB)
    assert again is slots[0], "the slot that still has its pages comes first"
    assert arena.view(again.offset, MIB) == b"\x01" * MIB
    arena.free(again)


def test_nobody_can_shrink_it_under_our_feet(arena: Arena) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fd, 0)
    assert fcntl.fcntl(arena.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK


@pytest.mark.parametrize("classes", [(), ((1000, 4),), ((8192, 1), (4096, 1)), ((4096, 0),)])
def test_classes_that_make_no_sense(classes: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ConfigInvalid, match="class"):
        Arena(ArenaConfig(classes=classes))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2 * MIB), st.integers(0, 7)), max_size=60))
def test_any_order_of_taking_and_freeing(steps: list[tuple[int, int]]) -> None:
    """Slots never overlap, never lose what was written, and all come back."""
    arena = Arena(CONFIG, kept_bytes=MIB)
    taken: list[tuple[Slot, bytes]] = []
    for number, (nbytes, victim) in enumerate(steps):
        slot = arena.allocate(nbytes)
        if slot is None:
            if taken:
                arena.free(taken.pop(victim % len(taken))[0])
        else:
            mark = bytes([number + 1]) * slot.size
            arena.view(slot.offset, slot.size)[:] = mark
            taken.append((slot, mark))
        arena.check_integrity()
        assert all(arena.view(slot.offset, slot.size) == mark for slot, mark in taken)
    for slot, _ in taken:
        arena.free(slot)
    arena.check_integrity()
    assert arena.statistics().allocated_bytes == 0
    arena.close()
