"""How much of a GPU a session may take, and what people are told where that, or the GPU, was not enough. Pure.

A model may say a limit of its own; what other versions leave of the device when it is loaded is another one. ONNX
Runtime's arena holds to it all that it takes by the way; weights it takes first, and looks at no limit then, nor ever
again where they were more than that. So a limit that the weights alone are beyond, as they are in memory, is seen to
before; and what it makes of constants, which are weights from then on, is bounded so that with it they are not.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_INVALID_INPUT: Final = "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT"
_BEFORE_WORDS: Final = re.compile(
    r"(?:.*(?:Status Message: |Exception during initialization: )|\[ONNXRuntimeError\] : \d+ : \w+ : )?\s*"
    r"(?:\[with [^\]\n]{0,500}\]\s*){0,4}",  # template arguments of the function that says so
    re.DOTALL,
)
"""What ONNX Runtime has in front of why something failed, up to the last of it: names of nodes, which are the model's,
and may be anything."""
_BEYOND_LIMIT: Final = re.compile(r"Available memory of \d+ is smaller than requested bytes of \d+")
"""The arena's words, which are the same on the processor."""
_DEVICE_FULL: Final = re.compile(
    r"CUDA failure 2: out of memory\b|CUDA error cudaErrorMemoryAllocation:|out of memory \(CUDA error 2 in "
    r"|Failed to allocate memory for requested buffer of size \d+"
    r"|CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED\b"
    r"|CUDNN failure \d+: CUDNN_STATUS_(?:ALLOC_FAILED|INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)\b"
)
"""CUDA's words, as ONNX Runtime or ``devices/cuda`` tells them, and those of its libraries, which take memory of their
own; the arena's where CUDA would not."""

FOLDED_BYTES_MAX: Final = 1 << 30
"""What ONNX Runtime makes of the constants of one node at most, whatever it is told."""
NODES_UNKNOWN: Final = 1 << 16
"""Of a graph that nobody has read."""
BESIDE_BYTES: Final = 1 << 30
"""What is taken of a device while a session is made, and is no arena's: CUDA's libraries, which come with the first one
of a process."""


class DeviceLimit(NamedTuple):
    """``own_bytes`` is what the model says, ``room_bytes`` what there is for it; 0: nothing bounds it."""

    own_bytes: int = 0
    room_bytes: int = 0

    @property
    def bytes(self) -> int:
        """The smaller one."""
        return min(filter(None, self), default=0)

    def told(self, reason: str) -> str:
        """The runtime's ``reason``, with what it means in front where it is about memory."""
        return memory_problem(self, reason) or reason

    def is_exceeded(self, reason: str) -> bool:
        """Whether it is this that was not enough."""
        return bool(self.bytes and _BEYOND_LIMIT.match(_words_of(reason)))


def is_full(reason: str) -> bool:
    """Whether the device had no memory, whatever a session is held to."""
    words = _words_of(reason)
    return not _BEYOND_LIMIT.match(words) and bool(_DEVICE_FULL.match(words))


def _words_of(reason: str) -> str:
    """Why it failed, in the runtime's own words; "" where it is the request that is to blame."""
    return "" if reason.startswith(_INVALID_INPUT) else _BEFORE_WORDS.sub("", reason, count=1)


def memory_problem(limit: DeviceLimit, reason: str) -> str:
    """What was not enough, and what to do; "" where ``reason`` is another one, whatever is called so in it."""
    if limit.is_exceeded(reason):
        if limit.bytes == limit.own_bytes:
            return (
                f"it needs more of its GPU than the {limit.own_bytes} bytes that its own gpu_mem_limit allows; raise "
                f"that in config.pbtxt, or leave it out: {reason}"
            )
        return (
            f"it needs more of its GPU than the {limit.room_bytes} bytes that other versions left when it was loaded; "
            f"have fewer models there, name another GPU in config.pbtxt, or run it in smaller batches: {reason}"
        )
    if _DEVICE_FULL.match(_words_of(reason)):
        return full_text(reason)
    return ""


def full_text(reason: str) -> str:
    """That the device had no memory, of which ``reason`` tells, and what to do."""
    return (
        f"its GPU has no memory left; see who has it (nvidia-smi), have fewer models there, or name another GPU in "
        f"config.pbtxt: {reason}"
    )


def weights_problem(limit: DeviceLimit, weight_bytes: int) -> str:
    """Why a model with so many bytes of weights is beyond what it may take; "" where it is not."""
    if not 0 < limit.bytes < weight_bytes:
        return ""
    if limit.bytes == limit.own_bytes:
        return (
            f"its weights alone take {weight_bytes} bytes, more than the {limit.own_bytes} of a GPU that its own "
            f"gpu_mem_limit allows; raise that in config.pbtxt, or leave it out"
        )
    return (
        f"its weights alone take {weight_bytes} bytes, more than the {limit.room_bytes} of its GPU that other versions "
        f"left; have fewer models there, or name another GPU in config.pbtxt"
    )


def folded_bytes(limit: DeviceLimit, weight_bytes: int, nodes: int) -> int:
    """What ONNX Runtime may make of the constants of one node, so that all of that and the weights are no more than the
    limit; 0: nothing bounds it but itself."""
    if not limit.bytes:
        return 0
    return min(max((limit.bytes - weight_bytes) // (nodes or NODES_UNKNOWN), 1), FOLDED_BYTES_MAX)


def taken_problem(limit: DeviceLimit, taken_bytes: int) -> str:
    """Why a session is not to run while whose making so much of its device was taken; "" where it may. Who took it is
    not known: others may have."""
    if not limit.bytes or taken_bytes <= limit.bytes + BESIDE_BYTES:
        return ""
    return (
        f"{taken_bytes} bytes of its GPU were taken while its session was made, which may have {limit.bytes}: it makes "
        f"weights that nobody foresaw, or others took memory meanwhile; see who has it (nvidia-smi)"
    )
