"""One CUDA device: its memory, memory of this process that it copies from by itself, streams, and graphs of what was
put into one; the only file that calls CUDA's runtime library.

That is the library which ONNX Runtime or TensorRT brought into the process, or which the loader finds. Addresses are
whole numbers, sizes bytes. A copy is only begun; ``finish`` waits for what was begun on a stream. What cannot be done
raises CudaFailed with CUDA's own word. Some failures end the context of the whole process, and with it everything that
it has on the device; ``alive`` tells.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from itertools import product
from typing import Any, Final

LIBRARIES: Final = ("libcudart.so.13", "libcudart.so.12")
"""Newest first; both are of one driver and one context."""
TO_DEVICE: Final = 1
FROM_DEVICE: Final = 2
NON_BLOCKING: Final = 1
WITHOUT_TIMES: Final = 2
DRIVER_TOO_OLD: Final = 35
NO_DEVICE: Final = 100
NOT_READY: Final = 600
OF_CAPTURES: Final = range(900, 909)
"""What CUDA says where it is a capture that is in the way, or that came to nothing."""
CAPTURE_THREAD_LOCAL: Final = 1
_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "cudaEventCreateWithFlags": (POINTER(c_void_p), c_uint),
    "cudaEventDestroy": (c_void_p,),
    "cudaEventQuery": (c_void_p,),
    "cudaEventRecord": (c_void_p, c_void_p),
    "cudaEventSynchronize": (c_void_p,),
    "cudaFree": (c_void_p,),
    "cudaFreeHost": (c_void_p,),
    "cudaGetDeviceCount": (POINTER(c_int),),
    "cudaGraphDestroy": (c_void_p,),
    "cudaGraphExecDestroy": (c_void_p,),
    "cudaGraphInstantiate": (POINTER(c_void_p), c_void_p, c_ulonglong),
    "cudaGraphLaunch": (c_void_p, c_void_p),
    "cudaHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
    "cudaMalloc": (POINTER(c_void_p), c_size_t),
    "cudaMemGetInfo": (POINTER(c_size_t), POINTER(c_size_t)),
    "cudaMemcpyAsync": (c_void_p, c_void_p, c_size_t, c_int, c_void_p),
    "cudaMemsetAsync": (c_void_p, c_int, c_size_t, c_void_p),
    "cudaSetDevice": (c_int,),
    "cudaStreamBeginCapture": (c_void_p, c_int),
    "cudaStreamCreateWithFlags": (POINTER(c_void_p), c_uint),
    "cudaStreamDestroy": (c_void_p,),
    "cudaStreamEndCapture": (c_void_p, POINTER(c_void_p)),
    "cudaStreamSynchronize": (c_void_p,),
    "cudaThreadExchangeStreamCaptureMode": (POINTER(c_int),),
}


class CudaFailed(OSError):
    """CUDA would not; the text is its own word, and what was asked."""


class NoDevice(CudaFailed):
    """There is no such device here, or no driver for it."""


class Pinned:
    """``view``: writable bytes of this process that the device copies from and to by itself; they start at ``address``.
    Given back when nothing refers to this any more, and no copy may be under way then."""

    def __init__(self, cuda: Cuda, nbytes: int) -> None:
        pointer = c_void_p()
        cuda.call("cudaHostAlloc", byref(pointer), max(nbytes, 1), 0)
        self._cuda = cuda
        self.address: int = pointer.value or 0
        self.view = memoryview((ctypes.c_ubyte * nbytes).from_address(self.address)).cast("B")

    def __del__(self) -> None:
        """Views that others still have are left without memory: they keep this by what they were given with."""
        if getattr(self, "address", 0):
            self._cuda.unpin(self.address)


class Cuda:
    """Device ``index`` of this process, for any thread: one that CUDA was told of no device in is on the first one, and
    whatever it asks makes a context there, which takes half a gigabyte of a device that may be others'."""

    def __init__(self, index: int) -> None:
        """Make the context. Raises NoDevice, and CudaFailed where there is no library or the device will not."""
        self.index = index
        self._library = _library()
        if not 0 <= index < (count := self._count()):
            raise NoDevice(f"there is no device {index}: the driver has {count}")
        self._entered = threading.local()
        self.enter()
        self.call("cudaFree", None)  # makes the context

    def _count(self) -> int:
        """How many devices the driver has. CUDA's word for a driver that is not there is that it is too old."""
        count, release = c_int(), c_int()
        status = self._library.cudaGetDeviceCount(byref(count))
        if status == DRIVER_TOO_OLD:
            self._library.cudaDriverGetVersion(byref(release))
            major, minor = release.value // 1_000, release.value % 1_000 // 10
            raise NoDevice(
                f"the driver is of CUDA {major}.{minor}, older than the installed runtime needs"
                if major
                else "there is no NVIDIA driver here"
            )
        if status == NO_DEVICE:
            raise NoDevice("the driver has no device")
        self._check("cudaGetDeviceCount", status)
        return count.value

    def enter(self) -> None:
        """Have the calling thread use this device, once for each thread: before other libraries do something there. All
        that is called here does it by itself. What another thread captures as a graph neither forbids this one anything
        nor is spoilt by it, but for what waits for the whole device. Raises CudaFailed."""
        if getattr(self._entered, "here", False):
            return
        self._do("cudaSetDevice", self.index)
        self._do("cudaThreadExchangeStreamCaptureMode", byref(c_int(CAPTURE_THREAD_LOCAL)))
        self._entered.here = True

    def allocate(self, nbytes: int) -> int:
        """Take memory of the device; gives its address."""
        pointer = c_void_p()
        self.call("cudaMalloc", byref(pointer), max(nbytes, 1))
        return pointer.value or 0

    def free(self, address: int) -> None:
        """Give back what ``allocate`` gave; with a context that is lost it is gone."""
        self._try("cudaFree", address)

    def pin(self, nbytes: int) -> Pinned:
        """Take memory of this process that the device copies by itself."""
        return Pinned(self, nbytes)

    def copy_in(self, device: int, host: int, nbytes: int, stream: int) -> None:
        """Begin to copy to the device."""
        self.call("cudaMemcpyAsync", device, host, nbytes, TO_DEVICE, stream)

    def copy_out(self, host: int, device: int, nbytes: int, stream: int) -> None:
        """Begin to copy from the device."""
        self.call("cudaMemcpyAsync", host, device, nbytes, FROM_DEVICE, stream)

    def fill(self, device: int, value: int, nbytes: int, stream: int) -> None:
        """Begin to write one byte over memory of the device."""
        self.call("cudaMemsetAsync", device, value, nbytes, stream)

    def stream(self) -> int:
        """Make a stream."""
        pointer = c_void_p()
        self.call("cudaStreamCreateWithFlags", byref(pointer), NON_BLOCKING)
        return pointer.value or 0

    def end_stream(self, stream: int) -> None:
        """Give a stream back; with a context that is lost it is gone."""
        self._try("cudaStreamDestroy", stream)

    def finish(self, stream: int) -> None:
        """Wait until all that was begun on the stream is done."""
        self.call("cudaStreamSynchronize", stream)

    def event(self) -> int:
        """Make an event."""
        pointer = c_void_p()
        self.call("cudaEventCreateWithFlags", byref(pointer), WITHOUT_TIMES)
        return pointer.value or 0

    def end_event(self, event: int) -> None:
        """Give an event back; with a context that is lost it is gone."""
        self._try("cudaEventDestroy", event)

    def record(self, event: int, stream: int) -> None:
        """Have the event happen when all that was begun on the stream before is done."""
        self.call("cudaEventRecord", event, stream)

    def happened(self, event: int) -> bool:
        """Whether an event that was recorded has happened."""
        self.enter()
        status = self._library.cudaEventQuery(event)
        if status == NOT_READY:
            return False
        self._check("cudaEventQuery", status)
        return True

    def await_event(self, event: int) -> None:
        """Wait until an event that was recorded has happened."""
        self.call("cudaEventSynchronize", event)

    def capture(self, stream: int, begin: Callable[[], None]) -> int:
        """Have ``begin`` put work into the stream, which is not done but kept; gives the graph of it. Nothing else may
        be put there meanwhile. Raises what ``begin`` does; the stream is as it was, then, too."""
        self.call("cudaStreamBeginCapture", stream, CAPTURE_THREAD_LOCAL)
        kept, made = c_void_p(), c_void_p()
        try:
            begin()
        except BaseException:
            self.end_capture(stream)
            raise
        self.call("cudaStreamEndCapture", stream, byref(kept))
        try:
            self.call("cudaGraphInstantiate", byref(made), kept, 0)
        finally:
            self._try("cudaGraphDestroy", kept)
        return made.value or 0

    def end_capture(self, stream: int) -> None:
        """Leave nothing of a capture that failed, whoever began it in this thread and whatever CUDA says of it: until
        it is ended the thread may not give memory back. Nothing where there is none."""
        kept = c_void_p()
        self._try("cudaStreamEndCapture", stream, byref(kept))
        self._library.cudaGetLastError()
        if kept.value:
            self._try("cudaGraphDestroy", kept)

    def launch(self, graph: int, stream: int) -> None:
        """Put what a graph keeps into a stream."""
        self.call("cudaGraphLaunch", graph, stream)

    def end_graph(self, graph: int) -> None:
        """Give a graph back; with a context that is lost it is gone."""
        self._try("cudaGraphExecDestroy", graph)

    def memory(self) -> tuple[int, int]:
        """Bytes that are free on the device, and all that it has; other processes' count as taken."""
        free, total = c_size_t(), c_size_t()
        self.call("cudaMemGetInfo", byref(free), byref(total))
        return free.value, total.value

    def alive(self) -> bool:
        """Whether the context is still good. That something is captured, which may forbid to ask, says nothing
        against it."""
        with suppress(CudaFailed):
            self.enter()
        status = self._library.cudaStreamSynchronize(None)
        self._library.cudaGetLastError()
        return not status or status in OF_CAPTURES

    def unpin(self, address: int) -> None:
        """For Pinned alone."""
        self._try("cudaFreeHost", address)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library. Raises CudaFailed."""
        self.enter()
        self._do(name, *arguments)

    def _do(self, name: str, *arguments: Any) -> None:
        self._check(name, getattr(self._library, name)(*arguments))

    def _check(self, name: str, status: int) -> None:
        if status:
            self._library.cudaGetLastError()  # or who asks next is told of this one
            word = self._library.cudaGetErrorString(status)
            raise CudaFailed(f"{word.decode() if word else 'unknown'} (CUDA error {status} in {name})")

    def _try(self, name: str, *arguments: Any) -> bool:
        with suppress(CudaFailed):  # what cannot be given back is gone
            self.enter()
        return not getattr(self._library, name)(*arguments)


def _library() -> Any:
    """CUDA's runtime library: the one that is loaded already, as what the loader finds may be of a release that the
    driver is too old for. Raises CudaFailed."""
    for mode, name in product((os.RTLD_NOLOAD, ctypes.DEFAULT_MODE), LIBRARIES):
        try:
            library = ctypes.CDLL(name, mode=mode)
        except OSError:
            continue
        for function, types in _SIGNATURES.items():
            getattr(library, function).argtypes = types
        library.cudaGetErrorString.restype = c_char_p
        library.cudaGetErrorString.argtypes = (c_int,)
        return library
    raise CudaFailed(f"none of {', '.join(LIBRARIES)} is installed")
