"""Disks that a power cut left are made of what was written: what was flushed is there, a half of the rest is not."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.image.write_log import DISCARD, FLUSH, FUA, MAGIC, SECTOR, left_by_a_power_cut


def log_of(path: Path, *entries: tuple[int, bytes, int]) -> Path:
    """Of writes to sectors, with their flags."""
    data = struct.pack("<QQQI", MAGIC, 1, len(entries), SECTOR).ljust(SECTOR, b"\0")
    for sector, content, flags in entries:
        sectors = 9 if flags & DISCARD else len(content) // SECTOR
        data += struct.pack("<QQQQ", sector, sectors, flags, len(content)).ljust(SECTOR, b"\0") + content
    path.write_bytes(data)
    return path


def test_what_was_flushed_stays_and_of_the_rest_some_is_lost(tmp_path: Path) -> None:
    count = 64
    kept = [(number, bytes([1]) * SECTOR, 0) for number in range(count)]
    later = [(number, bytes([2]) * SECTOR, 0) for number in range(count)]
    forced = (count, bytes([3]) * SECTOR, FUA)
    log = log_of(tmp_path / "log", *kept, (0, b"", DISCARD), (0, b"", FLUSH), forced, *later)
    seen = set()
    for seed in range(5):
        disk = tmp_path / "disk"
        disk.write_bytes(bytes((count + 1) * SECTOR))
        done, lost = left_by_a_power_cut(disk, log, seed, after=(2 * count + 4) * SECTOR)
        data = disk.read_bytes()
        found = bytes(data[number * SECTOR] for number in range(count + 1))
        assert set(found[:count]) == {1, 2}, "what was flushed is there, and of the rest some"
        assert found[count] == 3
        assert done == len(kept) + 3 + found.count(2)
        assert lost > 0
        seen.add(found)
    assert len(seen) == 5
