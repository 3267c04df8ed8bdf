"""Work in steps, done at once."""

from __future__ import annotations

from typing import TypeVar

from appliance.domain.steps import Steps

T = TypeVar("T")


def finished(steps: Steps[T]) -> T:
    """Do what is left of the work at once, and give what it comes to."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
