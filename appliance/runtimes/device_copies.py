"""Copies between requests and a CUDA device: tensors lie there as they lie in a batch, back to back.

What lies in pinned memory is copied from and to where it is; the rest goes through a piece of pinned memory, one for
each way. All copies go on one stream, on which a session may run its own work between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.devices.cuda import Cuda, CudaFailed
from appliance.domain.errors import RunFailed
from appliance.domain.tensor import aligned
from appliance.runtimes.runtime import Feed, Place, Produced, Region


class DeviceCopies:
    """Of one session with ``cuda``. Used by one thread."""

    def __init__(self, cuda: Cuda) -> None:
        """Raise CudaFailed."""
        self.cuda = cuda
        cuda.enter()
        self._free_before = cuda.memory()[0]
        self.stream = cuda.stream()
        self._in = self._out = Region(memoryview(bytearray()), 0)

    def pin(self, nbytes: int) -> Region:
        """Memory that the device copies from and to by itself. Raises RunFailed."""
        try:
            pinned = self.cuda.pin(nbytes)
        except CudaFailed as problem:
            raise RunFailed(f"no {nbytes} bytes of pinned memory: {problem}") from problem
        return Region(pinned.view, pinned.address, pinned)

    def taken(self) -> int:
        """Bytes of the device that were taken since this was made; others may have had some of them."""
        try:
            return max(self._free_before - self.cuda.memory()[0], 0)
        except CudaFailed:
            return 0

    def renew(self) -> None:
        """Go on with another stream. Raises CudaFailed, and goes on with this one, where there is none."""
        before, self.stream = self.stream, self.cuda.stream()
        self.cuda.end_stream(before)

    def leave(self) -> None:
        """Have later copies leave the last outputs alone that were fetched to memory of this."""
        self._out = Region(memoryview(bytearray()), 0)

    def close(self) -> None:
        """Give the stream back."""
        self.cuda.end_stream(self.stream)

    def bring(
        self, source: Region, feeds: Sequence[Feed | None], address: int, offsets: Sequence[int]
    ) -> None:
        """Begin to copy inputs to ``offsets`` behind ``address``: all at once where they lie alike."""
        given = [feed for feed in feeds if feed is not None]
        if not given:
            return
        start, end = given[0].offset, given[-1].offset + given[-1].nbytes
        alike = all(feed.offset - start == offset for feed, offset in zip(given, offsets, strict=True))
        if source.pinned is not None:
            if alike:
                self._begin_in(address, source.address + start, end - start)
                return
            for feed, offset in zip(given, offsets, strict=True):
                self._begin_in(address + offset, source.address + feed.offset, feed.nbytes)
            return
        nbytes = max(offset + feed.nbytes for feed, offset in zip(given, offsets, strict=True))
        staged = self._in = self._at_least(self._in, nbytes)
        if alike:
            staged.view[:nbytes] = source.view[start:end]
        else:
            for feed, offset in zip(given, offsets, strict=True):
                staged.view[offset : offset + feed.nbytes] = source.view[
                    feed.offset : feed.offset + feed.nbytes
                ]
        self._begin_in(address, staged.address, nbytes)

    def fetch(self, addresses: Sequence[int], produced: Produced, place: Place | None) -> Produced:
        """Copy outputs from ``addresses`` to their place, else to memory of this, and wait for all of it; gives
        ``produced`` with where they are."""
        sizes = produced.sizes
        offsets, nbytes = layout(sizes)
        fits = place is not None and nbytes <= place.capacity
        if place is not None and fits and place.region.pinned is not None:
            self.begin_fetch(addresses, sizes, place)
            self.cuda.finish(self.stream)
            return produced
        staged = self._out = self._at_least(self._out, nbytes)
        self._begin_out(staged.address, addresses, offsets, sizes)
        self.cuda.finish(self.stream)
        if place is not None and fits:
            place.region.view[place.offset : place.offset + nbytes] = staged.view[:nbytes]
            return produced
        return Produced(produced.shapes, sizes, parts_of(staged, sizes), staged)

    def begin_fetch(self, addresses: Sequence[int], sizes: Sequence[int], place: Place) -> None:
        """Begin to copy outputs to a place in pinned memory that has room for them."""
        self._begin_out(place.region.address + place.offset, addresses, layout(sizes)[0], sizes)

    def fill(self, address: int, nbytes: int, value: int) -> None:
        """Begin to write ``value`` over ``nbytes`` from ``address`` on."""
        if nbytes:
            self.cuda.fill(address, value, nbytes, self.stream)

    def _begin_in(self, address: int, host: int, nbytes: int) -> None:
        if nbytes:
            self.cuda.copy_in(address, host, nbytes, self.stream)

    def _begin_out(
        self, host: int, addresses: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]
    ) -> None:
        """At once where the outputs lie there as they will here."""
        first = addresses[0]
        if all(address - first == offset for address, offset in zip(addresses, offsets, strict=True)):
            nbytes = offsets[-1] + sizes[-1]
            if nbytes:
                self.cuda.copy_out(host, first, nbytes, self.stream)
            return
        for address, offset, size in zip(addresses, offsets, sizes, strict=True):
            if size:
                self.cuda.copy_out(host + offset, address, size, self.stream)

    def _at_least(self, region: Region, nbytes: int) -> Region:
        return region if region.pinned is not None and len(region.view) >= nbytes else self.pin(nbytes)


def layout(sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Where tensors of these sizes lie back to back, and the bytes of all."""
    offsets, position = [], 0
    for size in sizes:
        offsets.append(position)
        position += aligned(size)
    return tuple(offsets), position


def parts_of(region: Region, sizes: Sequence[int]) -> tuple[memoryview, ...]:
    """Tensors of these sizes that lie back to back from the start of a region."""
    offsets, _ = layout(sizes)
    return tuple(region.view[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True))


def outputs_of(produced: Produced, place: Place) -> list[bytes]:
    """Copies of the outputs, wherever they are."""
    region = Region(place.region.view[place.offset :], 0)
    parts = parts_of(region, produced.sizes) if produced.parts is None else produced.parts
    return [bytes(part) for part in parts]
