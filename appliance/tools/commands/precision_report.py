"""What trials of a model's precisions came to: one value, for a table, JSON or a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from appliance.domain.model import ModelVersion
from appliance.domain.quantity import counted
from appliance.tools.evaluation.gate import Judgement, Verdict, best_batch, fastest
from appliance.tools.evaluation.jobs import BatchFigures, OutputAccuracy, Trial, to_plain

Json = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
FP32 = "fp32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """``on`` says in words where it was, "" where nothing ran; ``cases`` are golden ones when it is ``proven``, else
    random values. ``kept`` are the directories of what was written, by precision; None: nothing was to be kept.
    ``picture`` is the file of that, "" for none."""

    version: ModelVersion
    device: str
    on: str
    cases: int
    proven: bool
    judgements: tuple[Judgement, ...]
    kept: Mapping[str, str] | None
    picture: str = ""

    @property
    def inputs(self) -> str:
        """On what it was tried, in words."""
        if self.proven:
            return counted(self.cases, "golden case")
        return f"{counted(self.cases, 'random input')}, without a golden set"

    @property
    def unmeasured(self) -> bool:
        """Whether none has figures."""
        return all(each.verdict is Verdict.NO_FIGURES for each in self.judgements)

    @property
    def counts_joules(self) -> bool:
        """Whether there is a figure of energy."""
        return any(batch.row_joules is not None for each in self.judgements for batch in each.trial.batches)

    @property
    def reference(self) -> Trial | None:
        """The original's trial; None when it was not asked for or has no figures."""
        trials = (each.trial for each in self.judgements)
        return next((each for each in trials if each.precision == FP32 and not each.problem), None)


def rows_text(rows: int) -> str:
    """A batch size in words."""
    return "one row" if rows == 1 else f"batches of {rows}"


def times_faster(reference: Trial | None, batch: BatchFigures) -> float | None:
    """How many times as fast as the original the median run of a batch of this size is."""
    if reference is None:
        return None
    same = (each.speed for each in reference.batches if each.speed.rows == batch.speed.rows)
    return next((each.p50_ns / max(batch.speed.p50_ns, 1) for each in same), None)


def to_json(report: Report) -> dict[str, Json]:
    """As programs read it; what was not told is left out, what is beyond all numbers is null."""
    drawn = {"plot": report.picture} if report.picture else {}
    return {
        "model": report.version.name,
        "version": report.version.version,
        "device": report.device,
        "on": report.on or None,
        "cases": report.cases,
        "golden": report.proven,
        "fastest": [each.trial.precision for each in fastest(report.judgements)],
        "variants": [_variant(report, each) for each in report.judgements],
        **drawn,
    }


def _variant(report: Report, each: Judgement) -> dict[str, Json]:
    trial = each.trial
    said: dict[str, Json] = {"precision": trial.precision, "verdict": each.verdict.value}
    if each.verdict is Verdict.NO_FIGURES:
        return {**said, "problem": trial.problem}
    best = best_batch(trial)
    told = {
        "rank": each.rank or None,
        "best_rows": None if best is None else best.speed.rows,
        "worst_output": None if each.worst is None else each.worst.output,
        "device_bytes": trial.device_bytes,
        "device_name": trial.device_name or None,
        "kept": (report.kept or {}).get(trial.precision),
    }
    return {
        **said,
        **{key: value for key, value in told.items() if value is not None},
        "energy_method": trial.meter or None,
        "file_bytes": trial.file_bytes,
        "load_ns": trial.load_ns,
        "memory_bytes": trial.memory_bytes,
        "batches": [_batch(batch, times_faster(report.reference, batch)) for batch in trial.batches],
        "accuracy": [_accuracy(output, proven=report.proven) for output in trial.accuracy],
    }


def _batch(batch: BatchFigures, times: float | None) -> dict[str, Json]:
    told = {"joules_per_row": batch.row_joules, "times_fp32": times}
    return {
        **_plain(to_plain(batch.speed)),
        "rows_per_s": batch.speed.rows_per_s,
        **{key: value for key, value in told.items() if value is not None},
    }


def _accuracy(output: OutputAccuracy, *, proven: bool) -> dict[str, Json]:
    """Without a golden set there is no tolerance to tell of."""
    said = _plain(to_plain(output))
    return said if proven else {key: said[key] for key in ("output", "values", "absolute", "relative")}


def _plain(said: Mapping[str, object]) -> dict[str, Json]:
    return {key: _json(value) for key, value in said.items()}


def _json(value: object) -> Json:
    assert isinstance(value, bool | int | float | str)
    return value if not isinstance(value, float) or math.isfinite(value) else None
