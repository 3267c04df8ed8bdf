"""What a machine wrote to its disk, in order, and disks on which the last of it was lost, as at a power cut.

QEMU's ``blklogwrites`` records it in the form of Linux' dm-log-writes (a page of the kernel's documents): a sector that
describes the log, then for each write a sector that describes it, and its data.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

MAGIC: Final = 0x6A736677736872
SECTOR: Final = 512
FLUSH, FUA, DISCARD = 1, 2, 4
_HEAD: Final = struct.Struct("<QQQI")
_ENTRY: Final = struct.Struct("<QQQQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """``size`` bytes at ``offset`` of the disk, which are at ``data`` of the log; nothing for a mere flush."""

    offset: int
    size: int
    data: int
    flags: int


def writes(log: BinaryIO) -> Iterator[Write]:
    """All that the log has; what was being noted when the machine ended is left out."""
    magic, _, count, sector = _HEAD.unpack(log.read(_HEAD.size))
    if magic != MAGIC:
        raise ValueError("this is no log of writes")
    position, end = sector, os.fstat(log.fileno()).st_size
    for _ in range(count):
        log.seek(position)
        said = log.read(_ENTRY.size)
        if len(said) < _ENTRY.size:
            return
        at, sectors, flags, kept = _ENTRY.unpack(said)
        position += sector
        size = 0 if flags & DISCARD else sectors * sector
        if position + size > end:
            return
        yield Write(offset=at * sector, size=sectors * sector, data=position, flags=flags)
        position += -(-max(kept, size) // sector) * sector


def left_by_a_power_cut(disk: Path, log: Path, seed: int, after: int = 0) -> tuple[int, int]:
    """Do to ``disk`` what the log says up to a moment, but for a half of what had not been flushed then. ``seed``
    chooses both; the moment is not before the log had ``after`` bytes, and one at which much had not been flushed.
    Gives how many writes were done, and how many were lost."""
    with log.open("rb") as file, disk.open("r+b") as target:
        known = list(writes(file))
        chosen = random.Random(seed)
        flushed, end = _moment(known, chosen, after)
        done = 0
        for number, each in enumerate(known[:end]):
            if number > flushed and not each.flags & FUA and chosen.random() < 0.5:
                continue
            done += 1
            if each.size and not each.flags & DISCARD:
                file.seek(each.data)
                os.pwrite(target.fileno(), file.read(each.size), each.offset)
    return done, end - done


def _moment(known: Sequence[Write], chosen: random.Random, after: int) -> tuple[int, int]:
    """The last flush before it, and how many writes had been begun."""
    last, moments = -1, []
    for number, each in enumerate(known):
        if each.flags & FLUSH:
            last = number
        if each.data >= after:
            moments.append((last, number + 1))
    most = max((end - flushed for flushed, end in moments), default=0)
    return chosen.choice(
        [each for each in moments if 2 * (each[1] - each[0]) >= most] or [(last, len(known))]
    )
