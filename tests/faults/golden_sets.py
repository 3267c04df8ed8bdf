"""Golden sets of models that take four bytes and give four."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from appliance.domain.golden import GoldenCase, GoldenSet, TensorFile, write_golden
from appliance.domain.manifest import LatencyPromise
from appliance.domain.tensor import Datatype


def write_expected(folder: Path, answer: Sequence[int], p99_us: int = 0) -> None:
    """A golden set of one case: to 1, 2, 3, 4 the answer is ``answer``."""
    file = TensorFile()
    case = GoldenCase(
        name="a",
        inputs=(file.add("x", Datatype.UINT8, (1, 4), bytes([1, 2, 3, 4])),),
        outputs=(file.add("y", Datatype.UINT8, (1, 4), bytes(answer)),),
    )
    promise = LatencyPromise(rows=1, p99_us=p99_us) if p99_us else None
    write_golden(
        str(folder / "golden"), GoldenSet(cases=(case,), tolerances={}, promise=promise), file.data()
    )
