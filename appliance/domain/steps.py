"""Work whose cost grows with what a client sent, in steps of about a millisecond: between two of them whoever does it
may do something else.

A step follows each ``yield``; work that is small has none.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]

STEP_ELEMENTS: Final = 2048
"""Elements of a tensor that one step looks at."""
