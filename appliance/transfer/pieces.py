"""The pieces of a stream, each verified by itself: their digests are its index."""

from __future__ import annotations

from typing import Final

from appliance.domain.digest import digest_of

PIECE_BYTES: Final = 1 << 20
DIGEST_BYTES: Final = 32


def piece_count(size: int) -> int:
    """How many pieces a stream of ``size`` bytes has."""
    return -(-size // PIECE_BYTES)


def index_bytes(size: int) -> int:
    """How many bytes the index of a stream of ``size`` bytes has."""
    return DIGEST_BYTES * piece_count(size)


class Index:
    """The digests of the pieces of a stream of ``size`` bytes."""

    def __init__(self, data: bytes, size: int) -> None:
        """Raise ValueError where ``data`` cannot be the index of such a stream."""
        if len(data) != index_bytes(size):
            raise ValueError(f"an index of {len(data)} bytes for a stream of {size}")
        self._data = data
        self.size = size

    def length(self, piece: int) -> int:
        """Bytes of a piece; the last one may be shorter."""
        return min(PIECE_BYTES, self.size - piece * PIECE_BYTES)

    def is_right(self, piece: int, data: bytes | bytearray | memoryview) -> bool:
        """Whether ``data`` is that piece."""
        digest = self._data[DIGEST_BYTES * piece : DIGEST_BYTES * (piece + 1)]
        return len(data) == self.length(piece) and bytes.fromhex(digest_of(data)) == digest
