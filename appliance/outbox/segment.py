"""The bytes of a segment: a header, then records and marks, each with a checksum over its sequence number.

    header   8 bytes "EAOUTBX1" | 16 bytes epoch | u64 first sequence number | u64 sure number | u32 crc32 of these
    record   u32 length (1 to RECORD_BYTES_MAX) | u32 crc32 of (u64 sequence number | length | payload) | payload
    mark     u32 0 | u32 crc32 of (u64 sequence number of the next record | u32 0) | u64 that number

Numbers are little-endian. A mark is written after all before it was synced, so what it stands behind is on the disk.
What does not check is where reading stops: the tail that a crash left, or damage, which a mark behind it proves. From
the sure number to the first one there is no record: writes of them failed, or a crash cut them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from zlib import crc32

MAGIC: Final = b"EAOUTBX1"
RECORD_BYTES_MAX: Final = 1 << 20
_HEADER: Final = struct.Struct("<8s16sQQ")
_SUM: Final = struct.Struct("<I")
_RECORD: Final = struct.Struct("<II")
_NUMBER: Final = struct.Struct("<QI")
_MARKED: Final = struct.Struct("<Q")
HEADER_BYTES: Final = _HEADER.size + _SUM.size
OVERHEAD_BYTES: Final = _RECORD.size
MARK_BYTES: Final = _RECORD.size + _MARKED.size
_ZEROS: Final = re.compile(rb"\0{4,}")
_ZEROS_OF_LENGTH: Final = 4
_ZEROS_OF_SUM: Final = 4
"""So many of a run of zeros may be the beginning of a mark's sum."""


@dataclass(frozen=True, slots=True)
class Header:
    """Which numbers a segment holds: those of ``epoch`` from ``first`` on; from ``sure`` to it there is no record."""

    epoch: str
    first: int
    sure: int


@dataclass(frozen=True, slots=True)
class Contents:
    """What a segment holds: its payloads, numbered from ``header.first``; up to which number they are marked, and up to
    which a mark behind damage proves that there were some; how many bytes follow that do not check, but for zeros at
    the end, which a crash leaves."""

    header: Header
    payloads: tuple[bytes, ...]
    marked: int
    proven: int = 0
    rest_bytes: int = 0

    @property
    def end(self) -> int:
        """The number after its last one."""
        return self.header.first + len(self.payloads)

    def between(self, first: int, end: int) -> tuple[bytes, ...]:
        """The payloads of those numbers, as far as they are here."""
        begin = self.header.first
        return self.payloads[max(first - begin, 0) : max(end - begin, 0)]


def encode_header(header: Header) -> bytes:
    """The bytes that a segment begins with."""
    data = _HEADER.pack(MAGIC, bytes.fromhex(header.epoch), header.first, header.sure)
    return data + _SUM.pack(crc32(data))


def encode_record(number: int, payload: bytes) -> bytes:
    """A record with the sequence ``number``. Raises ValueError for a payload that is empty or too long."""
    if not 1 <= len(payload) <= RECORD_BYTES_MAX:
        raise ValueError(f"a record of {len(payload)} bytes; 1 to {RECORD_BYTES_MAX} can be kept")
    return _RECORD.pack(len(payload), _sum(number, payload)) + payload


def encode_mark(number: int) -> bytes:
    """All before the sequence ``number`` is on the disk."""
    return _RECORD.pack(0, _sum(number, b"")) + _MARKED.pack(number)


def decode(data: bytes) -> Contents | None:
    """What a whole segment holds, as far as it checks; None where not even its header does."""
    if (
        len(data) < HEADER_BYTES
        or _SUM.pack(crc32(data[: _HEADER.size])) != data[_HEADER.size : HEADER_BYTES]
    ):
        return None
    magic, epoch, first, sure = _HEADER.unpack_from(data)
    if magic != MAGIC:
        return None
    at, number, marked, found = HEADER_BYTES, first, first, list[bytes]()
    while at + OVERHEAD_BYTES <= len(data):
        length, told = _RECORD.unpack_from(data, at)
        if not length:
            if _mark_at(data, at) != number:
                break
            marked = number
            at += MARK_BYTES
            continue
        payload = data[at + OVERHEAD_BYTES : at + OVERHEAD_BYTES + length]
        if length > RECORD_BYTES_MAX or len(payload) != length or _sum(number, payload) != told:
            break
        at += OVERHEAD_BYTES + length
        found.append(payload)
        number += 1
    rest = len(data[at:].rstrip(b"\0"))
    proven = proven_in(data, at) if rest else 0
    return Contents(Header(epoch.hex(), first, sure), tuple(found), marked, proven, rest)


def proven_in(data: bytes, at: int = 0) -> int:
    """Up to which number there were records, as marks from ``at`` on say; 0: there are none."""
    return max(_marks(data, at), default=0)


def _marks(data: bytes, at: int) -> Iterator[int]:
    """The numbers of all marks from ``at`` on, wherever they stand."""
    for run in _ZEROS.finditer(data, at):
        last = run.end() - _ZEROS_OF_LENGTH
        for place in range(max(last - _ZEROS_OF_SUM, run.start()), last + 1):
            if number := _mark_at(data, place):
                yield number


def _mark_at(data: bytes, at: int) -> int:
    """The number of the mark at ``at``; 0: there is none."""
    if at + MARK_BYTES > len(data):
        return 0
    (number,) = _MARKED.unpack_from(data, at + OVERHEAD_BYTES)
    return number if data[at : at + OVERHEAD_BYTES] == _RECORD.pack(0, _sum(number, b"")) else 0


def _sum(number: int, payload: bytes) -> int:
    return crc32(payload, crc32(_NUMBER.pack(number, len(payload))))
