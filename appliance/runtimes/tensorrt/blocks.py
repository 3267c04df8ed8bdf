"""Where tensors of a run lie on the device: inputs in one block, outputs in another, back to back, and a third one in
which engines compute. Each is as large as the largest shapes need it, and taken once: all runs of a session are one
after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from appliance.devices.cuda import Cuda
from appliance.domain.errors import RunFailed

ALIGNMENT: Final = 256
"""Of what TensorRT is given the address of."""


class Lying(NamedTuple):
    """Tensors by name, at their offsets in a block, and the bytes of all."""

    offsets: Mapping[str, int]
    nbytes: int


def lay(sizes: Mapping[str, int]) -> Lying:
    """Tensors of these bytes, one after the other."""
    offsets, position = {}, 0
    for name, nbytes in sizes.items():
        offsets[name] = position
        position += rounded(nbytes)
    return Lying(offsets, position)


def rounded(nbytes: int) -> int:
    """The bytes that a tensor takes with what parts it from the next one."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Block:
    """Memory of the device, for tensors of at most ``largest`` bytes each, by name."""

    def __init__(self, cuda: Cuda, largest: Mapping[str, int]) -> None:
        """Raise CudaFailed."""
        self._cuda = cuda
        self._largest = largest
        self.nbytes = lay(largest).nbytes
        self.address = cuda.allocate(self.nbytes)

    def lay(self, sizes: Mapping[str, int]) -> Lying:
        """As ``lay``. Raises RunFailed where one has no room: an output that is larger for smaller inputs."""
        for name, nbytes in sizes.items():
            if nbytes > self._largest[name]:
                raise RunFailed(
                    f"'{name}' takes {nbytes} bytes for these shapes, more than the {self._largest[name]} for the "
                    f"largest ones; the engine is not run with them"
                )
        return lay(sizes)

    def close(self) -> None:
        """Give it back."""
        self._cuda.free(self.address)
