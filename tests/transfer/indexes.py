"""The index of a stream, made the plain way."""

from __future__ import annotations

from appliance.domain.digest import digest_of
from appliance.transfer.pieces import PIECE_BYTES


def index_of(data: bytes) -> bytes:
    """The index of a stream that is in memory."""
    pieces = (data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))
    return b"".join(bytes.fromhex(digest_of(piece)) for piece in pieces)
