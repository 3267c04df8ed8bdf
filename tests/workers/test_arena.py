"""The arena: sizes, reuse, bounds, memory that goes back, and objects that hold no other group's tensors."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.config.workers import ArenaConfig, class_problems, in_pages
from appliance.domain.errors import ConfigInvalid
from appliance.workers.arena import ALIGNMENT, Arena, Slot
from appliance.workers.memory_object import MemoryObject

KIB, MIB = 1 << 10, 1 << 20
K, M = mmap.PAGESIZE // 4, mmap.PAGESIZE << 8
"""The same where pages have 4 KiB; elsewhere classes grow with the pages."""
CONFIG = ArenaConfig(classes=((4 * K, 4), (64 * K, 3), (M, 3)), memory_limit_bytes=2 * M + 512 * K)


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(CONFIG, kept_bytes=M)
    yield made
    made.check_integrity()
    made.close()


def take(arena: Arena, nbytes: int, memory: MemoryObject | None = None) -> Slot:
    slot = arena.allocate(nbytes, memory or arena.own)
    assert slot is not None
    return slot


@pytest.mark.parametrize("page", [each for each in (16 * KIB, 64 * KIB) if each % mmap.PAGESIZE == 0])
def test_a_kernel_with_larger_pages_takes_the_same_configuration(page: int) -> None:
    """As those for 64-bit ARM have."""
    config = ArenaConfig(classes=((4 * KIB, 4), (64 * KIB, 3), (MIB, 3)), memory_limit_bytes=2 * MIB)
    assert not list(class_problems(config.classes))
    arena = Arena(config, kept_bytes=MIB, page_bytes=page)
    assert arena.size == sum(size * count for size, count in in_pages(config.classes, page))
    slots = [take(arena, nbytes) for nbytes in (1, 4 * KIB, 4 * KIB + 1, 64 * KIB, 600 * KIB)]
    assert all(slot.offset % page == slot.size % page == 0 for slot in slots)
    assert arena.statistics().allocated_bytes == 3 * page + 64 * KIB + -(-600 * KIB // page) * page
    for slot in slots:
        slot.view(slot.size)[:] = b"x" * slot.size
        arena.free(slot)
    arena.check_integrity()
    arena.close()


def test_classes_that_large_pages_make_the_same_are_one() -> None:
    classes = ((4 * KIB, 8), (8 * KIB, 4), (20 * KIB, 2), (64 * KIB, 1))
    assert in_pages(classes, 4 * KIB) == classes
    assert in_pages(classes, 16 * KIB) == ((16 * KIB, 12), (32 * KIB, 2), (64 * KIB, 1))
    assert in_pages(classes, 64 * KIB) == ((64 * KIB, 15),)


def resident_bytes(memory: MemoryObject) -> int:
    """Memory that the object really takes."""
    return os.fstat(memory.fd).st_blocks * 512


@pytest.mark.parametrize(
    ("nbytes", "size", "used"),
    [
        (0, 4 * K, (1, 0, 0)),
        (1, 4 * K, (1, 0, 0)),
        (4 * K, 4 * K, (1, 0, 0)),
        (4 * K + 1, 8 * K, (0, 1, 0)),
        (64 * K, 64 * K, (0, 1, 0)),
        (600 * K, 600 * K, (0, 0, 1)),
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
    assert arena.allocate(M + 1, arena.own) is None
    slots = [take(arena, M), take(arena, M)]
    assert arena.allocate(M, arena.own) is None, "the limit leaves 512 KiB"
    slots.append(take(arena, 500 * K))
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
    slot.view(5)[:] = b"hello"
    assert os.pread(slot.memory.fd, 5, slot.offset) == b"hello"
    assert bytes(slot.memory.view(slot.offset, 5)) == b"hello"
    arena.free(slot)


def test_an_untouched_arena_takes_no_memory(arena: Arena) -> None:
    assert arena.size == 4 * 4 * K + 3 * 64 * K + 3 * M
    assert resident_bytes(arena.own) == 0


def test_memory_goes_back_after_a_burst(arena: Arena) -> None:
    slots = [take(arena, M), take(arena, M)]
    for slot in slots:
        slot.view(M)[:] = b"\x01" * M
    assert resident_bytes(arena.own) == 2 * M
    for slot in slots:
        arena.free(slot)
    assert resident_bytes(arena.own) == M
    assert arena.statistics().idle_kept_bytes == M
    again = take(arena, M)
    assert again is slots[1], "the slot that still has its pages comes first"
    assert again.view(M) == b"\x01" * M
    arena.free(again)


def test_what_was_used_last_keeps_its_pages_whoever_used_it(arena: Arena) -> None:
    first, second = arena.attach(1, 7), arena.attach(2, 8)
    for memory in (first, second):
        slot = take(arena, M, memory)
        slot.view(M)[:] = b"x" * M
        arena.free(slot)
    assert (resident_bytes(first), resident_bytes(second)) == (0, M), (
        "a group that is idle left nothing to the other"
    )
    assert arena.statistics().idle_kept_bytes == M


def test_a_slot_that_had_more_pages_counts_all_of_them(arena: Arena) -> None:
    memory = arena.attach(1, 7)
    for nbytes in (M, 100 * K):
        slot = take(arena, nbytes, memory)
        slot.view(nbytes)[:] = b"x" * nbytes
        arena.free(slot)
    assert arena.statistics().idle_kept_bytes == resident_bytes(memory) == M


@pytest.mark.parametrize(
    "nbytes", [8 * MIB + 1, 16 * MIB, 20 * MIB, 31 * MIB, 33 * MIB, 64 * MIB, 100 * MIB, 128 * MIB]
)
def test_large_tensors_are_refused_for_the_limit_and_not_for_slots(nbytes: int) -> None:
    config = ArenaConfig()
    arena = Arena(config)
    while arena.allocate(nbytes, arena.own) is not None:
        pass
    assert arena.statistics().allocated_bytes > config.memory_limit_bytes // 2
    arena.close()


@pytest.mark.parametrize(
    ("limit", "kept"), [(1024, 128), (512, 64), (256, 32), (128, 32), (64, 32), (32, 16)]
)
def test_a_small_arena_keeps_what_a_large_request_takes(limit: int, kept: int) -> None:
    arena = Arena(ArenaConfig(memory_limit_bytes=limit * MIB))
    memory = arena.attach(1, 7)
    slots = [take(arena, 4 * MIB, memory) for _ in range(limit // 8)]
    for slot in slots:
        arena.free(slot)
    assert arena.statistics().idle_kept_bytes == kept * MIB
    arena.close()


def test_nobody_can_shrink_it_under_our_feet(arena: Arena) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(arena.own.fd, 0)
    assert fcntl.fcntl(arena.own.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK


@pytest.mark.parametrize("classes", [(), ((1000, 4),), ((8192, 1), (4096, 1)), ((4096, 0),)])
def test_classes_that_make_no_sense(classes: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ConfigInvalid, match="class"):
        Arena(ArenaConfig(classes=classes))


def test_workers_of_a_group_have_one_object_and_others_another(arena: Arena) -> None:
    mine, same, other = arena.attach(1, 7), arena.attach(2, 7), arena.attach(3, 8)
    assert mine is same is arena.of_group(7) is arena.of_worker(2)
    assert other is arena.of_group(8)
    assert len({arena.own, mine, other}) == len({arena.own.number, mine.number, other.number}) == 3
    assert arena.of_group(9) is arena.own
    assert arena.of_worker(4) is None


def test_a_slot_has_pages_in_one_object_at_a_time(arena: Arena) -> None:
    """Whatever the groups: nobody sees what another has left, and all together take no more than one would."""
    mine, other = arena.attach(1, 7), arena.attach(2, 8)
    slots = [take(arena, 4 * K, mine) for _ in range(4)]
    for slot in slots:
        slot.view(4 * K)[:] = b"\x01" * 4 * K
        arena.free(slot)
    assert resident_bytes(mine) == 16 * K
    theirs = take(arena, 4 * K, other)
    assert theirs in slots, "there is none that was never used"
    assert theirs.view(4 * K) == bytes(4 * K)
    assert resident_bytes(mine) == 12 * K
    assert take(arena, 4 * K, mine).view(4 * K) == b"\x01" * 4 * K
    arena.check_integrity()


def test_a_slot_moves_with_what_is_in_it_also_where_nothing_is_free(arena: Arena) -> None:
    mine, other = arena.attach(1, 7), arena.attach(2, 8)
    slots = [take(arena, 4 * K, mine) for _ in range(4)]
    view = slots[2].view(4 * K)
    view[:] = b"\x01" * 4 * K
    before = slots[2].offset
    arena.move(slots[2], other, 100)
    assert view == bytes(4 * K), "nothing is left where it was"
    assert (slots[2].memory, slots[2].offset) == (other, before)
    assert slots[2].view(4 * K) == b"\x01" * 100 + bytes(4 * K - 100)
    arena.check_integrity()


def is_closed(memory: MemoryObject) -> bool:
    try:
        memory.view(0, 1)
    except ValueError:
        return True
    return False


def test_an_object_goes_with_the_last_worker_and_the_last_slot(arena: Arena) -> None:
    mine = arena.attach(1, 7)
    arena.attach(2, 7)
    used, waiting, idle = (take(arena, 64 * K, mine) for _ in range(3))
    arena.free(idle)
    assert arena.statistics().idle_kept_bytes == 64 * K
    arena.detach(1)
    assert arena.of_group(7) is mine
    arena.detach(2)
    arena.check_integrity()
    assert arena.statistics().idle_kept_bytes == 0
    assert arena.of_group(7) is arena.own
    again = arena.attach(3, 7)
    assert again is not mine, "what a worker left is no other's"
    arena.move(waiting, again, 0)
    assert not is_closed(mine)
    arena.free(used)
    assert is_closed(mine)
    assert not is_closed(again)
    arena.free(waiting)
    arena.detach(3)
    assert is_closed(again)
    assert not is_closed(arena.own)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2 * M), st.integers(0, 7), st.integers(0, 3)), max_size=60))
def test_any_order_of_taking_moving_and_freeing(steps: list[tuple[int, int, int]]) -> None:
    """Slots never overlap, never lose what was written, and all come back, whatever group they are for and whether it
    has a worker."""
    arena = Arena(CONFIG, kept_bytes=M)
    taken: list[tuple[Slot, bytes]] = []
    for number, (nbytes, victim, group) in enumerate(steps):
        if number % 5 == 4:
            if arena.of_worker(group) is None:
                arena.attach(group, group // 2)
            else:
                arena.detach(group)
        if number % 3 == 2 and taken:
            arena.move(taken[0][0], arena.of_group(group), taken[0][0].size)
        slot = arena.allocate(nbytes, arena.of_group(group // 2))
        if slot is None:
            if taken:
                arena.free(taken.pop(victim % len(taken))[0])
        else:
            mark = bytes([number + 1]) * slot.size
            slot.view(slot.size)[:] = mark
            taken.append((slot, mark))
        arena.check_integrity()
        assert all(slot.view(slot.size) == mark for slot, mark in taken)
    for slot, _ in taken:
        arena.free(slot)
    arena.check_integrity()
    assert arena.statistics().allocated_bytes == 0
    arena.close()
