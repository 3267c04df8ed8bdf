"""A case: a named measurement, and how it is taken."""

from dataclasses import dataclass
from typing import Protocol

from benchmarks.plan import Bench
from benchmarks.results import Verdict
from benchmarks.samples import Samples


class Procedure(Protocol):
    """A way of measuring."""

    def run(self, bench: Bench) -> tuple[Samples, tuple[Verdict, ...]]:
        """Measure and judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A named measurement."""

    title: str
    procedure: Procedure
