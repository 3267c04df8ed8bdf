"""Digests of packages and blobs: BLAKE3-256 as lower-case hexadecimal, of a whole and of its pieces of 4 MiB.

The only place that knows the hash library. Sums release the interpreter's lock while they take in large buffers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blake3 import blake3

PIECE_BYTES: Final = 4 << 20
"""Bytes of a piece; the last one of a file may be shorter. A file of no bytes has no pieces."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """What a run of bytes came to."""

    size: int
    digest: str
    pieces: tuple[str, ...]


def digest_of(data: bytes | bytearray | memoryview) -> str:
    """The digest of ``data``."""
    return blake3(data).hexdigest()


def is_digest(text: str) -> bool:
    """Whether ``text`` has the form of a digest."""
    return _DIGEST.fullmatch(text) is not None


def piece_count(size: int) -> int:
    """How many pieces ``size`` bytes have."""
    return -(-size // PIECE_BYTES)


def digests_of_file(path: str | Path) -> Digests:
    """The digests of what is in a file. Raises OSError."""
    digester = Digester()
    with open(path, "rb", buffering=0) as file:
        while data := file.read(PIECE_BYTES):
            digester.update(data)
    return digester.finish()


class Digester:
    """Sums bytes as they come: the whole and, when ``pieces`` is wanted, each piece of it."""

    def __init__(self, *, pieces: bool = True) -> None:
        self._whole = blake3()
        self._piece = blake3()
        self._in_piece = 0
        self._done: list[str] = []
        self._pieces = pieces
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._size

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Take in the next bytes."""
        view = memoryview(data).cast("B")
        self._size += len(view)
        self._whole.update(view)
        while self._pieces and len(view):
            part = view[: PIECE_BYTES - self._in_piece]
            self._piece.update(part)
            self._in_piece += len(part)
            view = view[len(part) :]
            if self._in_piece == PIECE_BYTES:
                self._end_piece()

    def finish(self) -> Digests:
        """The digests of everything taken in; ``pieces`` is empty when they were not wanted. Call it once."""
        if self._in_piece:
            self._end_piece()
        return Digests(size=self._size, digest=self._whole.hexdigest(), pieces=tuple(self._done))

    def _end_piece(self) -> None:
        self._done.append(self._piece.hexdigest())
        self._piece = blake3()
        self._in_piece = 0
