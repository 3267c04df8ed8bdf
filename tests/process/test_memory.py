"""What processes cost in memory: exact for those that were asked, near for the others, and cheap."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from appliance.process import memory
from appliance.process.memory import (
    EXACT_AGE_NS,
    EXACT_AT_ONCE,
    MOVED_BYTES,
    MemorySamples,
    Resident,
    free_bytes,
    memory_bytes,
    private_bytes,
    resident_of,
    unshared_bytes,
)

MIB = 1 << 20
SECOND = 1_000_000_000


ODD = {
    "nothing": b"",
    "no fields": b"\n\n:\n",
    "no numbers": b"RssAnon:\nRssFile:  kB\nPrivate_Clean: x kB\n1 x\n",
    "one of two": b"Name: x\nRssAnon:\t     12 kB\nPrivate_Dirty: 12 kB\n",
    "no text": b"RssAnon: \xff\xfe kB\n\0\0",
    "twice": b"RssAnon: 12 kB\nRssAnon: 99 kB\nPrivate_Clean: 12 kB\nPrivate_Clean: 99 kB\n",
}


@pytest.mark.parametrize("said", ODD)
def test_what_the_kernel_does_not_tell_counts_as_nothing(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "odd"
    odd.write_bytes(ODD[said])
    monkeypatch.setattr(memory, "open", lambda _, *how, **more: odd.open(*how, **more), raising=False)
    told = 12 << 10 if said in ("one of two", "twice") else 0
    assert resident_of(os.getpid()) == Resident(told, 0)
    assert unshared_bytes(os.getpid()) == told
    assert private_bytes(os.getpid()) == 0
    assert memory_bytes(tmp_path, odd, odd) == free_bytes(tmp_path, odd, odd) == 0


class Box:
    """Processes that share 30 bytes each and have more for themselves; counts what is asked of the kernel."""

    def __init__(self, processes: int) -> None:
        self.now_ns = 10 * SECOND
        self.own = dict.fromkeys(range(1, processes + 1), 10)
        self.asked = 0
        self.closed: set[int] = set()
        """Of these the kernel does not tell what they share."""
        self.leaving: dict[int, int] = {}
        """What a process lets go just before it is asked."""
        self.files = dict.fromkeys(self.own, 0)
        """Pages of files among what each has for itself; ``twice``: that are mapped once more."""
        self.twice = dict.fromkeys(self.own, 0)
        self.samples = MemorySamples(lambda: self.now_ns, SECOND, self.resident, self.alone)

    def resident(self, pid: int) -> Resident:
        if pid not in self.own:
            return Resident(0, 0)
        return Resident(self.own[pid] - self.files[pid] + 30, self.files[pid] + self.twice[pid])

    def alone(self, pid: int) -> int:
        self.asked += 1
        self.own[pid] -= self.leaving.pop(pid, 0)
        return 0 if pid in self.closed else self.own[pid] - self.twice[pid]

    def look(self, after_ns: int = 2 * SECOND) -> list[int]:
        self.now_ns += after_ns
        return [self.samples.private_bytes(pid) for pid in self.own]


def test_few_processes_are_asked_at_a_time_and_all_are_told_right() -> None:
    box = Box(40)
    assert box.look() == [10] * 40
    assert box.asked == EXACT_AT_ONCE
    for _ in range(40):
        box.look(SECOND + 1)
    assert box.asked == 40, "once each"
    box.look(EXACT_AGE_NS)
    assert box.asked == 40 + EXACT_AT_ONCE, "and again when that was long ago"


def test_what_a_process_lets_go_is_seen_at_the_next_look() -> None:
    box = Box(2)
    assert box.look() == [10, 10]
    box.own[1] = 2
    assert box.look(SECOND // 2) == [10, 10]
    assert box.look() == [2, 10]
    assert box.asked == 2


def test_a_process_that_cannot_be_asked_shares_nothing() -> None:
    box = Box(EXACT_AT_ONCE)
    box.closed = {1}
    for _ in range(3):
        assert box.look() == [40, *[10] * (EXACT_AT_ONCE - 1)]
    box.closed = {2}
    assert box.look(EXACT_AGE_NS + 1)[:2] == [10, 40], "what was found out is old"


def test_what_a_process_lets_go_while_it_is_asked_is_shared_only_until_the_next_look() -> None:
    """A quick session ends between the two readings: that would be taken off what comes later."""
    box = Box(1)
    box.own[1] = 3 * MOVED_BYTES
    box.leaving[1] = 2 * MOVED_BYTES
    box.look()
    for now in (MOVED_BYTES, 3 * MOVED_BYTES, 3 * MOVED_BYTES + 1, 2 * MOVED_BYTES + 1):
        box.own[1] = now
        assert box.look() == [now]
    assert box.asked == 3, "anew where much has changed"


def test_copies_in_the_place_of_what_was_mapped_twice_are_its_own() -> None:
    """As much in all as before, and nothing of it shared."""
    box = Box(1)
    box.own[1], box.files[1], box.twice[1] = 4 * MOVED_BYTES, 3 * MOVED_BYTES, 3 * MOVED_BYTES
    assert box.look() == [MOVED_BYTES], "as the kernel counts"
    box.own[1], box.files[1], box.twice[1] = 7 * MOVED_BYTES, 0, 0
    assert box.look() == [7 * MOVED_BYTES]


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder that is in no tmpfs, as that for tests may be: the kernel counts its files as shared memory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


def test_what_a_process_maps_twice_is_shared_only_as_long(on_disk: Path) -> None:
    """A session that is made while another of the same file is there: the kernel counts those pages as shared."""
    path = on_disk / "weights"
    path.write_bytes(os.urandom(4 * MOVED_BYTES))
    clock = iter(range(10 * SECOND, 1000 * SECOND, 2 * SECOND))
    samples = MemorySamples(lambda: next(clock))

    def mapped(file: BinaryIO) -> mmap.mmap:
        view = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE | mmap.MAP_POPULATE, mmap.PROT_READ)
        assert any(view[offset] for offset in range(0, len(view), mmap.PAGESIZE))
        return view

    with path.open("rb") as file, mapped(file):
        with mapped(file):
            samples.private_bytes(os.getpid())
        once = samples.private_bytes(os.getpid())
    assert once - samples.private_bytes(os.getpid()) > 3 * MOVED_BYTES


def test_a_process_that_is_gone_takes_nothing() -> None:
    box = Box(1)
    box.look()
    box.now_ns += 2 * SECOND
    box.own.clear()
    assert box.samples.private_bytes(1) == 0
    assert resident_of(1 << 30).bytes == unshared_bytes(1 << 30) == 0


def test_mapped_files_count_while_they_are_in_memory_and_forked_pages_are_shared(tmp_path: Path) -> None:
    """A child that maps a file of its own and shares everything else with this process."""
    path, heap = tmp_path / "weights", bytes(os.urandom(1)) * (16 * MIB)
    path.write_bytes(os.urandom(4 * MIB))
    done, told = os.pipe(), os.pipe()
    child = os.fork()
    if not child:  # nothing here may allocate much: that would be its own
        with path.open("rb") as file:
            view = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
        total = sum(view[offset] for offset in range(0, len(view), mmap.PAGESIZE))
        os.write(told[1], b"x" if total else b"y")
        os.read(done[0], 1)
        os._exit(0)
    try:
        assert os.read(told[0], 1) == b"x"
        alone = unshared_bytes(child)
        assert alone >= 4 * MIB
        assert resident_of(child).bytes - alone >= len(heap), "what it was forked with"
    finally:
        os.write(done[1], b"x")
        os.waitpid(child, 0)
        for descriptor in (*done, *told):
            os.close(descriptor)
