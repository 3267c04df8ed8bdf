"""Stepping through protobuf: windows over files, and files that change meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.repository.onnx.protobuf import (
    WINDOW_BYTES,
    FileSource,
    Malformed,
    MemorySource,
    Span,
    Walk,
    length_key,
    varint_key,
)


def _walked(data: bytes, descriptor: int | None = None, *, bulk: bool = False) -> list[tuple[int, int, int]]:
    source = MemorySource(data) if descriptor is None else FileSource(descriptor, len(data))
    return list(Walk(100_000).fields(Span(source, 0, len(data)), bulk=bulk))


@pytest.mark.parametrize("shift", range(24))
def test_fields_across_the_edges_of_windows(tmp_path: Path, shift: int) -> None:
    """Whatever byte of a field a window ends at, a file is read like memory."""
    field = b"\xfa\x01\x83\x01" + bytes(131) + b"\x18" + b"\xff" * 9 + b"\x01" + b"\x15abcd" + b"\x19abcdefgh"
    data = (
        b"\x20\x01" * (shift // 2) + b"\x82\x01\x00" * (shift % 2) + field * (4 * WINDOW_BYTES // len(field))
    )
    path = tmp_path / "data"
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        found = _walked(data, descriptor)
        assert found == _walked(data)
        assert found[-1][2] == len(data)
        assert _walked(data, descriptor, bulk=True) == [each for each in found if each[0] & 7 == 2]
    finally:
        os.close(descriptor)


def test_bulk_keeps_the_scalars_that_are_wanted() -> None:
    data = b"\x18\x01" * 3000 + b"\x08\x05\x10\x01\x70\x01" + b"\x1d\x70\x01\x70\x01" * 3000 + b"\x12\x01a"
    assert [key for key, _, _ in _walked(data, bulk=True)] == [
        varint_key(1),
        varint_key(2),
        varint_key(14),
        length_key(2),
    ]


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("high", [1 << 32, 1 << 33, 7 << 32, 1 << 35, 1 << 63])
@pytest.mark.parametrize("key", [varint_key(14), length_key(13)])
def test_a_key_of_more_bits_than_protobuf_reads_is_refused(key: int, high: int, bulk: bool) -> None:
    """protobuf drops the high bits and finds field 13 or 14: a tensor outside the file that nobody here has seen."""
    data = _varint(high | key) + b"\x01a"
    with pytest.raises(Malformed, match="has a number above 536870911"):
        _walked(data, bulk=bulk)
    assert [found for found, _, _ in _walked(_varint(key | 1 << 31) + b"\x01a"[: key & 7 or 1])] == [
        key | 1 << 31
    ]


def _varint(value: int) -> bytes:
    head = b""
    while value > 0x7F:
        head += bytes([value & 0x7F | 0x80])
        value >>= 7
    return head + bytes([value])


def test_a_file_that_becomes_shorter_is_an_error_and_nothing_worse(tmp_path: Path) -> None:
    path = tmp_path / "data"
    data = b"\x12\xff\x3f" + bytes(8191) + b"\x08\x01"
    path.write_bytes(data)
    with path.open("r+b") as file:
        source = FileSource(file.fileno(), len(data))
        steps = Walk(10).fields(Span(source, 0, len(data)))
        assert next(steps) == (length_key(2), 3, 8194)
        file.truncate(5000)
        with pytest.raises(Malformed, match="became shorter while it was read: byte 8194 is gone"):
            next(steps)
        with pytest.raises(Malformed, match="byte 5000 is gone"):
            source.read(4990, 5010)
