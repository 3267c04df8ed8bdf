"""Whether two answers say the same: bytes first, then numbers, in bounded work. Pure.

Of outputs larger than what may be looked at, blocks at even distances are compared, the same ones of both.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from appliance.core.rollout.policy import RolloutPolicy
from appliance.domain.golden import Tolerance
from appliance.domain.inference import Answer
from appliance.domain.output_difference import Values, difference
from appliance.domain.tensor import FLOATS, Datatype, byte_size

BLOCKS: Final = 16
WIDEST: Final = 8
"""Bytes of the widest number: blocks begin at multiples of it."""


class KeptOutput(NamedTuple):
    """One output: what it is, how many bytes it has, and those that are compared."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    size: int
    sample: bytes


Kept = tuple[KeptOutput, ...]


def kept(answer: Answer, limit: int) -> Kept:
    """What is kept of ``answer``, at most ``limit`` bytes of tensors."""
    share = max(limit // max(len(answer.outputs), 1), WIDEST)
    return tuple(
        KeptOutput(output.name, output.datatype, output.shape, len(output.data), _sample(output.data, share))
        for output in answer.outputs
    )


def _sample(data: bytes | memoryview, limit: int) -> bytes:
    if len(data) <= limit:
        return bytes(data)
    block = max(limit // BLOCKS // WIDEST * WIDEST, WIDEST)
    blocks = limit // block
    stride = max((len(data) - block) // max(blocks - 1, 1) // WIDEST * WIDEST, block)
    return b"".join(bytes(data[start : start + block]) for start in range(0, stride * blocks, stride))


def unlikeness(new: Kept, old: Kept, config: RolloutPolicy) -> str | None:
    """How ``new`` differs from ``old``, in words; None when it does not by more than the configuration allows."""
    if len(new) != len(old):
        return f"has {len(new)} outputs instead of {len(old)}"
    tolerance = Tolerance(absolute=config.tolerance_absolute, relative=config.tolerance_relative)
    for mine, other in zip(new, old, strict=True):
        if reason := _reason(mine, other, tolerance):
            return f"output '{mine.name}' {reason}"
    return None


def _reason(new: KeptOutput, old: KeptOutput, tolerance: Tolerance) -> str:
    if new == old:
        return ""
    if new.name != old.name:
        return f"stands where '{old.name}' did"
    if (new.datatype, new.shape) != (old.datatype, old.shape):
        return f"is {new.datatype.wire} {list(new.shape)} instead of {old.datatype.wire} {list(old.shape)}"
    if old.datatype not in FLOATS:
        return "has other values"
    shape = (len(old.sample) // byte_size(old.datatype, (1,)),)
    return difference(
        Values(datatype=new.datatype, shape=shape, raw=new.sample),
        Values(datatype=old.datatype, shape=shape, raw=old.sample),
        tolerance,
    ).reason
