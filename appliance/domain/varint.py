"""Numbers as protobuf writes them."""

from __future__ import annotations


def encode_varint(value: int) -> bytes:
    """``value``, which is not negative, in protobuf's base-128 encoding."""
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    digits.append(value)
    return bytes(digits)
