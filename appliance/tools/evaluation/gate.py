"""Which precisions of a model may be used, which of these is the fastest, and what is faster than its original. Pure.

A golden set says which answers are right and how near others must be: what leaves a tolerance of its is refused,
however fast it is. Where a model has none, nothing is proven: answers to random values show how far precisions are from
one another, and nothing is refused or passed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from appliance.tools.evaluation.jobs import BatchFigures, Candidate, OutputAccuracy, Trial

LIKE_PERCENT: Final = 5
"""Of the time of a row: what two measurements of the same thing differ by."""


class Verdict(Enum):
    """What became of a precision at the gate."""

    HOLDS = "holds"
    REFUSED = "refused"
    UNPROVEN = "not proven"
    NO_FIGURES = "no figures"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A precision with its verdict. ``worst`` is its output that comes nearest to leaving its tolerance, or left it
    furthest; without proof the one that is furthest off. ``rank`` is its place among those that may be used, the
    fastest first; 0 for others."""

    trial: Trial
    verdict: Verdict
    worst: OutputAccuracy | None
    rank: int = 0


def judge(trials: Sequence[Trial], *, proven: bool) -> tuple[Judgement, ...]:
    """A judgement of each, in their order; ``proven`` says whether there is a golden set."""
    verdicts = [_verdict(each, proven=proven) for each in trials]
    usable = [each for each, verdict in zip(trials, verdicts, strict=True) if verdict is Verdict.HOLDS]
    usable.sort(key=_row_ns)
    ranks = {each.precision: number for number, each in enumerate(usable, 1)}
    return tuple(
        Judgement(
            trial=each, verdict=verdict, worst=_worst(each, proven=proven), rank=ranks.get(each.precision, 0)
        )
        for each, verdict in zip(trials, verdicts, strict=True)
    )


def passes(judgements: Sequence[Judgement]) -> bool:
    """Whether something was tried and nothing was refused. What there are no figures of failed no gate."""
    verdicts = [each.verdict for each in judgements]
    return Verdict.REFUSED not in verdicts and any(each is not Verdict.NO_FIGURES for each in verdicts)


def fastest(judgements: Sequence[Judgement]) -> tuple[Judgement, ...]:
    """Those that hold and whose rows take least, the fastest first: one that is hardly slower may be the faster one
    next time."""
    ranked = sorted((each for each in judgements if each.rank), key=lambda each: each.rank)
    limit_ns = _row_ns(ranked[0].trial) * (100 + LIKE_PERCENT) / 100 if ranked else 0.0
    return tuple(each for each in ranked if _row_ns(each.trial) <= limit_ns)


def best_batch(trial: Trial) -> BatchFigures | None:
    """The batch size at which a row takes least, by the median run: a stall of the machine decides nothing. None
    without figures."""
    return min(trial.batches, key=lambda each: each.speed.p50_ns / each.speed.rows, default=None)


def speed_ups(candidate: Candidate, original: Candidate) -> dict[int, float]:
    """By rows of a batch: how many times the median run of ``candidate`` goes into that of the original."""
    pairs = zip(original.speeds, candidate.speeds, strict=True)
    return {before.rows: before.p50_ns / max(after.p50_ns, 1) for before, after in pairs}


def not_faster(candidate: Candidate, original: Candidate) -> str:
    """Why ``candidate`` is no version to serve in the place of the original; "" where it is: it is faster at a measured
    batch size, and slower at none. What noise explains is neither, so nobody who asks in single rows pays for those who
    ask in batches."""
    limit = (100 + LIKE_PERCENT) / 100
    found = speed_ups(candidate, original)
    slower = [f"{_rows_text(rows)} ({times:.2f}x)" for rows, times in found.items() if times * limit < 1]
    if slower:
        return f"is slower than the original at {' and at '.join(slower)}"
    if any(times > limit for times in found.values()):
        return ""
    sizes = " and at ".join(map(_rows_text, found))
    return f"is as fast as the original, to within {LIKE_PERCENT} %, at {sizes}"


def gain(candidate: Candidate, original: Candidate) -> float:
    """What ``candidate`` gains over all measured batch sizes together: the product of its speed-ups."""
    return math.prod(speed_ups(candidate, original).values())


def _rows_text(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows} rows"


def _verdict(trial: Trial, *, proven: bool) -> Verdict:
    if trial.problem:
        return Verdict.NO_FIGURES
    if not proven:
        return Verdict.UNPROVEN
    return Verdict.REFUSED if any(each.reason for each in trial.accuracy) else Verdict.HOLDS


def _worst(trial: Trial, *, proven: bool) -> OutputAccuracy | None:
    return max(
        trial.accuracy,
        key=lambda each: (bool(each.reason), each.of_limit) if proven else each.absolute,
        default=None,
    )


def _row_ns(trial: Trial) -> float:
    best = best_batch(trial)
    return math.inf if best is None else best.speed.p50_ns / best.speed.rows
