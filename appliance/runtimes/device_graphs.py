"""What sessions on a CUDA device agree on about graphs: how many one has, when a run is worth one, and when a graph may
be used - once a replay gave the answer that the run before it gave."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import numpy as np

from appliance.runtimes.onnx_elements import ElementType

GRAPHS_MAX: Final = 32
CAPTURE_AFTER: Final = 2
"""Runs of one combination before it is captured: what comes once or twice is not worth it."""
TOLERANCE: Final = 1e-2
"""Of the largest value: what the order in which a device adds may change. A wrong graph is off by all of it."""
SPOILT: Final = 0xA5
"""What outputs hold before a replay that is looked at."""
REASON_CHARACTERS: Final = 300


def tell_without_graphs(key: str, reason: str) -> None:
    """Say in the log why a version has no graphs."""
    first = " ".join(reason.split())[:REASON_CHARACTERS]
    print(f"{key} runs without CUDA graphs: {first}", file=sys.stderr, flush=True)


def alike(one: Sequence[bytes], other: Sequence[memoryview], elements: Sequence[ElementType]) -> bool:
    """Whether two answers are the same but for the order in which a device adds up."""
    pairs = zip(one, other, elements, strict=True)
    return all(mine == yours or _near(mine, yours, element) for mine, yours, element in pairs)


def _near(one: bytes, other: memoryview, element: ElementType) -> bool:
    if np.dtype(element.numpy or "u1").kind != "f":
        return False
    mine, yours = (np.frombuffer(raw, element.numpy).astype(np.float64) for raw in (one, other))
    finite = mine[np.isfinite(mine)]
    most = float(np.abs(finite).max()) if finite.size else 0.0
    return bool(np.allclose(mine, yours, rtol=0.0, atol=TOLERANCE * most, equal_nan=True))
