"""Where tensors that follow each other begin: the one rule shared by arena, workers and runtimes."""

from __future__ import annotations

from typing import Final

ALIGNMENT: Final = 64


def aligned(nbytes: int) -> int:
    """``nbytes`` rounded up to the next multiple of ALIGNMENT."""
    return (nbytes + ALIGNMENT - 1) & -ALIGNMENT
