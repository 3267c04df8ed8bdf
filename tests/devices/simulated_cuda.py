"""A simulated CUDA device: memory of this process stands for the device's, and a copy is done when it is begun.

It has what ``appliance.devices.cuda.Cuda`` has, and passes the same conformance suite; streams and graphs are numbers.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, cast

from appliance.devices.cuda import Cuda, CudaFailed

TOTAL_BYTES = 1 << 30


class SimulatedPinned:
    """Ordinary memory."""

    def __init__(self, nbytes: int) -> None:
        self._memory = (ctypes.c_ubyte * max(nbytes, 1))()
        self.address = ctypes.addressof(self._memory)
        self.view = memoryview(self._memory).cast("B")[:nbytes]


class SimulatedCuda:
    """``broken``: every call fails, as with a context that is lost; ``copies`` counts what was begun, ``launches`` what
    of graphs was. ``capturing`` are streams whose work is kept, ``graphs`` what was kept."""

    index = 0
    as_cuda = property(lambda self: cast(Cuda, self))
    """For what takes the real one."""

    def __init__(self) -> None:
        self.capturing: dict[int, list[Callable[[], object]]] = {}
        self.graphs: dict[int, list[Callable[[], object]]] = {}
        self.launches = 0
        self.total = TOTAL_BYTES
        self.broken = False
        self.copies = 0
        self.held: dict[int, Any] = {}
        self.streams: set[int] = set()
        self.events: set[int] = set()
        self.entered: set[int] = set()
        self.others: list[str] = []
        """Captures of other libraries that are under way."""
        self.spoilt: list[str] = []
        self.unended: dict[int, int] = {}
        """Captures of other libraries that came to nothing and were not ended: their streams, by thread. CUDA forbids
        such a thread to give memory back."""

    def wait_for_all(self) -> None:
        """What other libraries wait with for the whole device, which CUDA forbids while anything of it is captured, in
        whatever thread and mode; the captures come to nothing, too."""
        self.spoilt += self.others
        if self.others or self.capturing:
            raise CudaFailed(
                "operation not permitted when stream is capturing (CUDA error 900 in cudaDeviceSynchronize)"
            )

    def enter(self) -> None:
        """Remember who did: others that use the device through other libraries would use the first one."""
        self.entered.add(threading.get_ident())

    def allocate(self, nbytes: int) -> int:
        """Memory that stands for the device's."""
        self._check()
        if nbytes > self.memory()[0]:
            raise CudaFailed("out of memory (CUDA error 2 in cudaMalloc)")
        memory = (ctypes.c_ubyte * max(nbytes, 1))()
        address = ctypes.addressof(memory)
        self.held[address] = memory
        return address

    def free(self, address: int) -> None:
        """Give it back, unless that is forbidden."""
        if threading.get_ident() not in self.unended:
            self.held.pop(address, None)

    def pin(self, nbytes: int) -> SimulatedPinned:
        """Memory of this process."""
        self._check()
        return SimulatedPinned(nbytes)

    def copy_in(self, device: int, host: int, nbytes: int, stream: int) -> None:
        """At once."""
        self._copy(device, host, nbytes, stream)

    def copy_out(self, host: int, device: int, nbytes: int, stream: int) -> None:
        """At once."""
        self._copy(host, device, nbytes, stream)

    def fill(self, device: int, value: int, nbytes: int, stream: int) -> None:
        """At once."""
        self._check()
        assert stream in self.streams, "a stream that was given back"
        self.put(stream, lambda: ctypes.memset(device, value, nbytes))

    def _copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._check()
        assert stream in self.streams, "a stream that was given back"
        self.copies += 1
        self.put(stream, lambda: ctypes.memmove(target, source, nbytes))

    def put(self, stream: int, do: Callable[[], object]) -> None:
        """Work into a stream: kept while that is captured, else done."""
        if stream in self.capturing:
            self.capturing[stream].append(do)
        else:
            self.begin(do)

    def begin(self, do: Callable[[], object]) -> None:
        """What is not kept is done at once."""
        do()

    def capture(self, stream: int, begin: Callable[[], None]) -> int:
        """Keep what is put into the stream."""
        self._check()
        self.capturing[stream] = []
        try:
            begin()
        finally:
            kept = self.capturing.pop(stream)
        number = max(self.graphs, default=0) + 1
        self.graphs[number] = kept
        return number

    def end_capture(self, stream: int) -> None:
        """Leave nothing of one that others began."""
        if self.unended.get(threading.get_ident()) == stream:
            del self.unended[threading.get_ident()]

    def launch(self, graph: int, stream: int) -> None:
        """Put what was kept into a stream."""
        self._check()
        self.launches += 1
        for do in self.graphs[graph]:
            self.put(stream, do)

    def end_graph(self, graph: int) -> None:
        """Give it back."""
        del self.graphs[graph]

    def stream(self) -> int:
        """A number."""
        self._check()
        number = max(self.streams, default=0) + 1
        self.streams.add(number)
        return number

    def end_stream(self, stream: int) -> None:
        """Give it back, with a capture that has not ended."""
        self.end_capture(stream)
        self.streams.discard(stream)

    def finish(self, stream: int) -> None:
        """Everything is done already."""
        self._check()
        if stream in self.capturing:
            raise CudaFailed(
                "operation not permitted when stream is capturing (CUDA error 900 in cudaStreamSynchronize)"
            )

    def event(self) -> int:
        """A number."""
        self._check()
        number = max(self.events, default=0) + 1
        self.events.add(number)
        return number

    def end_event(self, event: int) -> None:
        """Give it back."""
        self.events.discard(event)

    def record(self, event: int, stream: int) -> None:
        """It happens at once."""
        self._check()
        assert event in self.events, "an event that was given back"
        assert stream in self.streams, "a stream that was given back"

    def happened(self, event: int) -> bool:
        """Everything has happened already."""
        self._check()
        assert event in self.events, "an event that was given back"
        return True

    def await_event(self, event: int) -> None:
        """As above."""
        self.happened(event)

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of a device of one GiB."""
        return self.total - sum(len(each) for each in self.held.values()), self.total

    def alive(self) -> bool:
        """Unless it was broken."""
        return not self.broken

    def _check(self) -> None:
        if self.broken:
            raise CudaFailed("an illegal memory access was encountered (CUDA error 700 in cudaMemcpyAsync)")
