"""How much of a GPU a session may take, and what people are told where that, or the GPU, was not enough. Pure.

A model may say a limit of its own; what other versions leave of the device when it is loaded is another one. ONNX
Runtime's arena holds to it all that it takes by the way; weights it takes first, and looks at no limit then, nor ever
again where they were more than that. So a limit that the files alone are beyond is seen to before.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_BEYOND_LIMIT: Final = re.compile(r"Available memory of \d+ is smaller than requested bytes of \d+")
"""The arena's words, which are the same on the processor."""
_DEVICE_FULL: Final = re.compile(r"out of memory|Failed to allocate memory for requested buffer of size \d+")
"""CUDA's words; the arena's where CUDA would not."""


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
        return bool(self.bytes and _BEYOND_LIMIT.search(reason))


def is_full(reason: str) -> bool:
    """Whether the device had no memory, whatever a session is held to."""
    return not _BEYOND_LIMIT.search(reason) and bool(_DEVICE_FULL.search(reason))


def memory_problem(limit: DeviceLimit, reason: str) -> str:
    """What was not enough, and what to do; "" where ``reason`` is another one."""
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
    if _DEVICE_FULL.search(reason):
        return (
            f"its GPU has no memory left; see who has it (nvidia-smi), have fewer models there, or name another GPU "
            f"in config.pbtxt: {reason}"
        )
    return ""


def files_problem(limit: DeviceLimit, file_bytes: int) -> str:
    """Why a model with so many bytes of files, which are its weights, is beyond what it allows itself; "" where it is
    not."""
    if not 0 < limit.own_bytes < file_bytes:
        return ""
    return (
        f"its files alone are {file_bytes} bytes, more than the {limit.own_bytes} of a GPU that its own gpu_mem_limit "
        f"allows; raise that in config.pbtxt, or leave it out"
    )
