"""Likeness of answers: bytes first, numbers by tolerance, large outputs by the same blocks."""

from __future__ import annotations

import struct

from appliance.core.rollout.policy import RolloutPolicy
from appliance.domain.inference import Answer, OutputTensor
from appliance.domain.tensor import Datatype
from appliance.engine.requests.similarity import kept, unlikeness
from tests.domain.sample import make_version

CONFIG = RolloutPolicy(tolerance_absolute=0.01, tolerance_relative=0.0)


def answer(*values: float, datatype: Datatype = Datatype.FP32, name: str = "y") -> Answer:
    code = {Datatype.FP32: "f", Datatype.INT32: "i"}[datatype]
    data = struct.pack(f"<{len(values)}{code}", *values)
    tensor = OutputTensor(name, datatype, (1, len(values)), data)
    return Answer(model=make_version("m"), outputs=(tensor,), release=lambda: None)


def compared(new: Answer, old: Answer, limit: int = 4096) -> str | None:
    return unlikeness(kept(new, limit), kept(old, limit), CONFIG)


def test_the_same_and_nearly_the_same_are_alike() -> None:
    assert compared(answer(1.0, 2.0), answer(1.0, 2.0)) is None
    assert compared(answer(1.0, 2.009), answer(1.0, 2.0)) is None
    assert compared(answer(float("nan")), answer(float("nan"))) is None


def test_what_is_further_off_is_told_with_its_place() -> None:
    assert "value 1: 2.5 instead of 2" in (compared(answer(1.0, 2.5), answer(1.0, 2.0)) or "")
    assert "other values" in (
        compared(answer(1, datatype=Datatype.INT32), answer(2, datatype=Datatype.INT32)) or ""
    )
    assert "instead of" in (compared(answer(1.0), answer(1.0, 2.0)) or "")
    assert "stands where 'y' did" in (compared(answer(1.0, name="z"), answer(1.0)) or "")
    assert "INT32" in (compared(answer(1, datatype=Datatype.INT32), answer(1.0)) or "")


def test_of_large_outputs_blocks_from_one_end_to_the_other_are_looked_at() -> None:
    same = answer(*[1.0] * 100_000)
    for first, last in ((0, 100_000), (50_000, 60_000), (99_990, 100_000)):
        values = [1.0] * 100_000
        values[first:last] = [9.0] * (last - first)
        assert compared(answer(*values), same)
    assert sum(len(output.sample) for output in kept(same, 4096)) <= 4096
