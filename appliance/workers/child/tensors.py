"""Tensors in a worker's memory: regions of it, scratch memory that grows, and requests laid out in them.

Tensors that belong together lie back to back, each at the next multiple of ALIGNMENT.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from appliance.domain.model import ModelVersion
from appliance.domain.tensor import FREE, aligned, element_count
from appliance.runtimes.runtime import Feed, Region
from appliance.workers.port import Shape

SCRATCH_FIRST_BYTES: Final = 64 << 10


def region_of(memory: mmap.mmap) -> Region:
    """The region that a writable mapping is. The mapping can no longer be closed."""
    return Region(memoryview(memory), ctypes.addressof(ctypes.c_ubyte.from_buffer(memory)))


def _mapped(size: int) -> Region:
    return region_of(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


class Scratch:
    """Private memory, page-aligned, replaced by a larger one when asked for more."""

    def __init__(self) -> None:
        self._region: Region | None = None

    def at_least(self, nbytes: int, make: Callable[[int], Region] | None = None) -> Region:
        """A region of ``nbytes`` bytes or more, made by ``make``, which gives pinned memory, where it has to be;
        earlier contents may be gone."""
        if self._region is None or not _serves(self._region, nbytes, make):
            size = max(SCRATCH_FIRST_BYTES, 1 << (nbytes - 1).bit_length() if nbytes else 0)
            self._region = (make or _mapped)(size)
        return self._region

    def holds(self, nbytes: int, make: Callable[[int], Region] | None = None) -> bool:
        """Whether ``at_least`` would give the memory that is there."""
        return self._region is not None and _serves(self._region, nbytes, make)

    def drop_beyond(self, nbytes: int) -> None:
        """Give the memory back when it is larger than ``nbytes``."""
        if self._region is not None and len(self._region.view) > nbytes:
            self._region = None


def _serves(region: Region, nbytes: int, make: Callable[[int], Region] | None) -> bool:
    """What a session that cannot pin memory has left is none for one that can, which makes its own."""
    return len(region.view) >= nbytes and (make is None or region.pinned is not None)


class Tensor(NamedTuple):
    """Full shape and raw wire bytes."""

    shape: Shape
    raw: memoryview | bytes


def span(sizes: Iterable[int]) -> int:
    """Bytes that tensors of these sizes take."""
    return sum(map(aligned, sizes))


def feeds_from(offset: int, shapes: Sequence[Shape | None], sizes: Sequence[int]) -> tuple[Feed | None, ...]:
    """Inputs that lie one after the other from ``offset``; None for one that is left out."""
    feeds: list[Feed | None] = []
    for shape, size in zip(shapes, sizes, strict=True):
        feeds.append(None if shape is None else Feed(shape, offset, size))
        offset += aligned(size)
    return tuple(feeds)


def lay_out(
    tensors: Sequence[Tensor | None], make: Callable[[int], Region] | None = None
) -> tuple[Region, tuple[Feed | None, ...]]:
    """The tensors in memory of their own, which is pinned where ``make`` gives such."""
    sizes = [0 if each is None else len(each.raw) for each in tensors]
    feeds = feeds_from(0, [None if each is None else each.shape for each in tensors], sizes)
    region = Scratch().at_least(span(sizes), make)
    for each, feed in zip(tensors, feeds, strict=True):
        if each is not None and feed is not None:
            region.view[feed.offset : feed.offset + feed.nbytes] = each.raw
    return region, feeds


def fixed_shapes(version: ModelVersion, rows: int = 1) -> tuple[Shape | None, ...] | None:
    """Shapes of a request of ``rows`` rows without optional inputs; None when a dimension is free."""
    shapes: list[Shape | None] = []
    for spec in version.inputs:
        if spec.optional:
            shapes.append(None)
        elif FREE in spec.shape:
            return None
        else:
            shapes.append((rows, *spec.shape) if version.max_batch_size > 0 else spec.shape)
    return tuple(shapes)


def zero_bytes(version: ModelVersion, shapes: Sequence[Shape | None]) -> tuple[int, ...]:
    """Bytes of tensors of zeros, or of empty strings, which are zero bytes, too; 0 where there is none."""
    return tuple(
        0 if shape is None else element_count(shape) * (spec.datatype.size or 4)
        for spec, shape in zip(version.inputs, shapes, strict=True)
    )
