"""What a run found: measurements, verdicts, and the file they are kept in. Values only, apart from reading and writing.

A results file holds the newest result of each case, so that cases can be run one at a time.
"""

import dataclasses
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from benchmarks.environment import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Samples of one metric of one server in one setting, a sample per round."""

    server: str
    setting: str
    metric: str
    unit: str
    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle of the samples."""
        return statistics.median(self.samples)


class Bound(Enum):
    """Which side of its limit a figure has to be on."""

    AT_LEAST = "at least"
    AT_MOST = "at most"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A stated target and the figure found; `value` is None when it could not be measured, and `note` says why."""

    target: str
    bound: Bound
    limit: float
    unit: str
    value: float | None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None when nothing was measured."""
        if self.value is None:
            return None
        return self.value >= self.limit if self.bound is Bound.AT_LEAST else self.value <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """Everything one case found."""

    name: str
    title: str
    date: str
    rounds: int
    environment: Environment
    measurements: tuple[Measurement, ...]
    verdicts: tuple[Verdict, ...]
    foreign_cores: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    errors: tuple[str, ...] = field(default=())


def load(file: Path) -> dict[str, CaseResult]:
    """Results by case name; empty when the file does not exist."""
    if not file.exists():
        return {}
    return {entry["name"]: _case(entry) for entry in json.loads(file.read_text())["cases"]}


def save(file: Path, results: Mapping[str, CaseResult]) -> None:
    """Write the results, in the order given."""
    cases = [dataclasses.asdict(result) for result in results.values()]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        json.dumps({"version": 1, "cases": cases}, indent=1, default=lambda value: value.value) + "\n"
    )


def _case(entry: dict[str, Any]) -> CaseResult:
    return CaseResult(
        **{key: entry[key] for key in ("name", "title", "date", "rounds")},
        foreign_cores=tuple(entry["foreign_cores"]),
        notes=tuple(entry["notes"]),
        errors=tuple(entry["errors"]),
        environment=Environment(**entry["environment"]),
        measurements=tuple(
            Measurement(**{**m, "samples": tuple(m["samples"])}) for m in entry["measurements"]
        ),
        verdicts=tuple(Verdict(**{**v, "bound": Bound(v["bound"])}) for v in entry["verdicts"]),
    )
