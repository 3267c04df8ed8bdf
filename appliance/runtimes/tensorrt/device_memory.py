"""What running an engine takes of a CUDA device beside TensorRT: memory, copies and a stream."""

from __future__ import annotations

from typing import Protocol


class PinnedMemory(Protocol):
    """Memory of this process that the device reads and writes by itself; given back when nothing has it any more."""

    @property
    def view(self) -> memoryview:
        """All of it, as writable bytes."""

    @property
    def address(self) -> int:
        """Where it starts."""


class DeviceMemory(Protocol):
    """One device."""

    def allocate(self, nbytes: int) -> int:
        """Take memory of the device; gives its address there. Raises OSError."""

    def free(self, address: int) -> None:
        """Give memory of the device back."""

    def pin(self, nbytes: int) -> PinnedMemory:
        """Take pinned memory of the machine. Raises OSError."""

    def copy_in(self, device_address: int, host_address: int, nbytes: int, stream: int) -> None:
        """Put a copy to the device into a stream. Raises OSError."""

    def copy_out(self, host_address: int, device_address: int, nbytes: int, stream: int) -> None:
        """Put a copy from the device into a stream. Raises OSError."""

    def stream(self) -> int:
        """A stream of its own. Raises OSError."""

    def finish(self, stream: int) -> None:
        """Wait until all is done that was put into a stream. Raises OSError, for what failed there, too."""

    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and all."""
