"""Room in the interpreter's heap for what fills up while the daemon serves.

Tables with a bound, such as the history and the timers of versions that are watched, grow with the first thousand swaps
of a day. Their memory is taken at the start: what serves asks the system for none, and what is left behind by a change
can be told from what only filled up.
"""

from __future__ import annotations

from typing import Final

RESERVE_BYTES: Final = 2 << 20
"""What a thousand swaps add to the tables takes a quarter of this; the rest is for what each has for a while."""

_HALF_ARENA_BITS: Final = 19
"""Of the address: wherever an arena of 1 MiB begins, it has one such block as a whole."""
_PIECE: Final = 400
"""Bytes of one piece: arenas are for objects of at most 512 bytes, header and all."""


def reserve(nbytes: int) -> list[bytes]:
    """Have the allocator take ``nbytes`` of arenas from the system and keep them, empty but for the objects that this
    gives: one at least in each arena of 1 MiB (CPython 3.10 and later), so that none goes back while they are kept.
    With another allocator there is less of an effect, or none."""
    pieces = [bytes(_PIECE) for _ in range(nbytes // _PIECE)]
    kept = {id(piece) >> _HALF_ARENA_BITS: piece for piece in pieces}
    return list(kept.values())
