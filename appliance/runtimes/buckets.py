"""Sizes to which batches are filled up, so that a device sees few of them: a shape that is new to it costs it as much
as hundreds of runs.

They are the powers of two and what lies half-way, so that no batch of three rows or more is made larger by a half. The
rows that fill up are zeros; what a model says of them is thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.runtimes.runtime import Feed, Produced


def bucket(rows: int, most: int) -> int:
    """The size that ``rows`` are filled up to, of batches of at most ``most`` rows."""
    whole = 1 << max(rows - 1, 0).bit_length()
    half_way = whole * 3 // 4
    return max(min(half_way if rows <= half_way else whole, most), rows)


def rows_of(feeds: Sequence[Feed | None]) -> int:
    """The rows of a batch; 0 where its inputs do not agree."""
    found = {feed.shape[0] if feed.shape else 0 for feed in feeds if feed is not None}
    return found.pop() if len(found) == 1 else 0


def filled_up(feeds: Sequence[Feed | None], rows: int, size: int) -> tuple[Feed | None, ...]:
    """Inputs of ``rows`` rows as they are with ``size``; their offsets mean nothing."""
    return tuple(
        feed and Feed((size, *feed.shape[1:]), feed.offset, feed.nbytes // rows * size) for feed in feeds
    )


def cut(produced: Produced, size: int, rows: int) -> Produced:
    """The first ``rows`` rows of outputs of ``size``."""
    shapes = tuple((rows, *shape[1:]) for shape in produced.shapes)
    return Produced(shapes, tuple(nbytes // size * rows for nbytes in produced.sizes), None)
