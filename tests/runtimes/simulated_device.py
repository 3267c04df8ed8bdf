"""Sessions of the fake runtime whose runs a simulated device does by itself: batches take their time one after the
other, without the processor, and outputs are in their place at once when that is over."""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from appliance.domain.model import ModelVersion
from appliance.domain.tensor import FREE, TensorSpec, aligned, element_count
from appliance.runtimes.runtime import Feed, Place, Port, Produced, Region
from appliance.workers.child.tensors import region_of

RUN_MS: Final = 5.0


class DeviceSession:
    """Output i of a row begins with input i of it, as many bytes as it has. ``run_ms`` is how long a batch takes,
    whatever its rows; ``overlapped`` "false": each run is waited for; ``magic``: the process dies with a batch that has
    a row which begins so."""

    measurable = False
    weights = None

    def __init__(self, version: ModelVersion) -> None:
        parameters = version.parameters
        self._run_ns = int(float(parameters.get("run_ms", RUN_MS)) * 1e6)
        self._overlapped = parameters.get("overlapped", "true") == "true"
        self._magic = int(parameters.get("magic", -1))
        self._row_bytes = tuple(element_count(spec.shape) for spec in version.outputs)
        self._free_ns = 0
        self.inputs = tuple(_port(spec) for spec in version.inputs)
        self.outputs = tuple(_port(spec) for spec in version.outputs)

    def pin(self, nbytes: int) -> Region:
        """Memory of this process."""
        region = region_of(mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        return Region(region.view, region.address, self)

    def run(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Produced:
        """Wait for the device."""
        until_ns = self.begin()
        time.sleep(max(until_ns - time.monotonic_ns(), 0) / 1e9)
        parts = self.answer(source, feeds, wanted)
        shapes = tuple((_rows(feeds), self._row_bytes[index]) for index in wanted)
        return Produced(shapes, tuple(map(len, parts)), tuple(map(memoryview, parts)))

    def prepared(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Callable[[], None] | None:
        """A run that can be begun before the one before it has ended."""
        run = DeviceRun(self, source, feeds, wanted, place)
        if self._overlapped and source.pinned is not None and place.region.pinned is not None:
            return run
        return partial(run)

    def begin(self) -> int:
        """Give the device a batch; when it will have run."""
        self._free_ns = max(self._free_ns, time.monotonic_ns()) + self._run_ns
        return self._free_ns

    def answer(self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...]) -> list[bytes]:
        """The outputs."""
        rows, parts = _rows(feeds), []
        for index in wanted:
            feed, size = feeds[index], self._row_bytes[index]
            assert feed is not None
            step = feed.nbytes // rows
            starts = range(feed.offset, feed.offset + rows * step, step)
            if any(source.view[start] == self._magic for start in starts):
                os.kill(os.getpid(), signal.SIGSEGV)
            parts.append(b"".join(bytes(source.view[start : start + size]) for start in starts))
        return parts

    def memory(self) -> int:
        """Nothing is known of it."""
        return 0

    def close(self) -> None:
        """Nothing is held."""


class DeviceRun:
    """An OverlappedRun."""

    def __init__(
        self,
        session: DeviceSession,
        source: Region,
        feeds: tuple[Feed | None, ...],
        wanted: tuple[int, ...],
        place: Place,
    ) -> None:
        self._session = session
        self._given = source, feeds, wanted
        self._place = place
        self._until_ns = 0

    def __call__(self) -> None:
        """Begin it and wait for it."""
        self.begin()
        self.finish()

    def begin(self) -> None:
        """Begin it."""
        self._until_ns = self._session.begin()

    def ended(self) -> bool:
        """Whether its time is over."""
        return time.monotonic_ns() >= self._until_ns

    def finish(self) -> None:
        """Wait for its time to be over."""
        time.sleep(max(self._until_ns - time.monotonic_ns(), 0) / 1e9)
        view, position = self._place.region.view, self._place.offset
        for part in self._session.answer(*self._given):
            view[position : position + len(part)] = part
            position += aligned(len(part))


def _port(spec: TensorSpec) -> Port:
    return Port(name=spec.name, datatype=spec.datatype, shape=(FREE, *spec.shape))


def _rows(feeds: tuple[Feed | None, ...]) -> int:
    return next(feed.shape[0] for feed in feeds if feed is not None)
