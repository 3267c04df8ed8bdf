"""A simulated CUDA device: memory of this process stands for the device's, and a copy is done when it is begun.

It has what ``appliance.devices.cuda.Cuda`` has, and passes the same conformance suite; streams and graphs are numbers.
"""

from __future__ import annotations

import ctypes
from typing import Any

from appliance.devices.cuda import CudaFailed

TOTAL_BYTES = 1 << 30


class SimulatedPinned:
    """Ordinary memory."""

    def __init__(self, nbytes: int) -> None:
        self._memory = (ctypes.c_ubyte * max(nbytes, 1))()
        self.address = ctypes.addressof(self._memory)
        self.view = memoryview(self._memory).cast("B")[:nbytes]


class SimulatedCuda:
    """``broken``: every call fails, as with a context that is lost; ``copies`` counts what was begun."""

    index = 0

    def __init__(self) -> None:
        self.broken = False
        self.copies = 0
        self.held: dict[int, Any] = {}
        self.streams: set[int] = set()
        self.events: set[int] = set()

    def enter(self) -> None:
        """Nothing: memory of this process is every thread's."""

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
        """Give it back."""
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
        ctypes.memset(device, value, nbytes)

    def _copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._check()
        assert stream in self.streams, "a stream that was given back"
        self.copies += 1
        ctypes.memmove(target, source, nbytes)

    def stream(self) -> int:
        """A number."""
        self._check()
        number = max(self.streams, default=0) + 1
        self.streams.add(number)
        return number

    def end_stream(self, stream: int) -> None:
        """Give it back."""
        self.streams.discard(stream)

    def finish(self, stream: int) -> None:
        """Everything is done already."""
        self._check()

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
        return TOTAL_BYTES - sum(len(each) for each in self.held.values()), TOTAL_BYTES

    def alive(self) -> bool:
        """Unless it was broken."""
        return not self.broken

    def _check(self) -> None:
        if self.broken:
            raise CudaFailed("an illegal memory access was encountered (CUDA error 700 in cudaMemcpyAsync)")
