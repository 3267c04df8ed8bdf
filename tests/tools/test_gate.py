"""Which precision may be used, and which is the fastest: decided from values alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from appliance.domain.golden import EXACT, Tolerance
from appliance.domain.output_difference import Values
from appliance.domain.tensor import Datatype
from appliance.runtimes.arrays import strain
from appliance.tools.evaluation.gate import Verdict, fastest, gain, judge, not_faster, passes
from appliance.tools.evaluation.jobs import (
    BatchFigures,
    Candidate,
    OutputAccuracy,
    Speed,
    Trial,
    from_plain,
    to_plain,
)


def trial(precision: str, *p50_ns: int, strains: tuple[float, ...] = (0.5,), problem: str = "") -> Trial:
    """One with a batch of one row and of two, and outputs so near to their limits."""
    return Trial(
        precision=precision,
        problem=problem,
        accuracy=tuple(
            OutputAccuracy(
                output=f"y{number}",
                values=4,
                outside=int(each > 1),
                absolute=1.0 - each / 1e9,
                relative=0.0,
                of_limit=each,
                reason="case 'a' has 1 of 4 values outside" if each > 1 else "",
            )
            for number, each in enumerate(strains)
        ),
        batches=tuple(
            BatchFigures(speed=Speed(rows=rows, runs=9, best_ns=ns, p50_ns=ns, p99_ns=ns))
            for rows, ns in enumerate(p50_ns, 1)
        ),
    )


def test_what_leaves_a_tolerance_is_refused_however_fast_it_is() -> None:
    judged = judge(
        [trial("fp32", 400, 700), trial("fp16", 300, 500), trial("int8", 10, 20, strains=(0.2, 3.0, 0.9))],
        proven=True,
    )
    assert [each.verdict for each in judged] == [Verdict.HOLDS, Verdict.HOLDS, Verdict.REFUSED]
    assert [each.rank for each in judged] == [2, 1, 0]
    assert judged[2].worst is not None
    assert (judged[2].worst.output, judged[2].worst.of_limit) == ("y1", 3.0)
    assert [each.trial.precision for each in fastest(judged)] == ["fp16"]
    assert not passes(judged)


def test_the_fastest_is_the_one_whose_rows_take_least_at_any_batch_size() -> None:
    judged = judge([trial("fp32", 100, 400), trial("int8", 150, 190)], proven=True)
    assert [each.rank for each in judged] == [2, 1]
    assert passes(judged)


def test_what_is_hardly_slower_is_among_the_fastest() -> None:
    tried = [trial("fp32", 105), trial("fp16", 100), trial("int8", 106), trial("int4", 90, strains=(2.0,))]
    found = fastest(judge(tried, proven=True))
    assert [each.trial.precision for each in found] == ["fp16", "fp32"]


def test_what_has_no_figures_fails_no_gate_but_must_not_be_all() -> None:
    broken = trial("fp8", problem="the runtime has no such kernel")
    judged = judge([trial("fp32", 100), broken], proven=True)
    assert judged[1].verdict is Verdict.NO_FIGURES
    assert (judged[1].rank, judged[1].trial.problem) == (0, "the runtime has no such kernel")
    assert passes(judged)
    assert not passes(judge([broken], proven=True))
    assert fastest(judge([broken], proven=True)) == ()


def test_without_a_golden_set_nothing_is_refused_and_nothing_passed() -> None:
    judged = judge([trial("fp32", 100), trial("int8", 50, strains=(7.0, math.inf))], proven=False)
    assert [each.verdict for each in judged] == [Verdict.UNPROVEN] * 2
    assert fastest(judged) == ()
    assert judged[1].worst is not None
    assert judged[1].worst.output == "y0", "the furthest off, since there is no limit"
    assert passes(judged)


@pytest.mark.parametrize(
    ("found", "right", "tolerance", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], EXACT, 0.0),
        ([1.0, 2.1], [1.0, 2.0], Tolerance(absolute=0.2), 0.5),
        ([1.0, 2.6], [1.0, 2.0], Tolerance(absolute=0.1, relative=0.1), 2.0),
        ([1.0, 2.5], [1.0, 2.0], EXACT, math.inf),
        ([1.0, math.nan], [1.0, 2.0], Tolerance(absolute=9.0), math.inf),
        ([math.nan, math.inf], [math.nan, math.inf], EXACT, 0.0),
        ([1.0, math.inf], [1.0, -math.inf], Tolerance(absolute=9.0, relative=1.0), math.inf),
        ([1.0], [1.0, 2.0], Tolerance(absolute=9.0), math.inf),
        ([], [], EXACT, 0.0),
    ],
)
def test_strain_is_the_distance_as_a_multiple_of_what_is_allowed(
    found: list[float], right: list[float], tolerance: Tolerance, expected: float
) -> None:
    one, other = (
        Values(datatype=Datatype.FP64, shape=(len(each),), raw=np.array(each, np.float64).tobytes())
        for each in (found, right)
    )
    assert strain(one, other, tolerance) == pytest.approx(expected)


def test_integers_and_strings_are_right_or_beyond_all_limits() -> None:
    for datatype, same, other in (
        (Datatype.INT32, b"\1\0\0\0", b"\2\0\0\0"),
        (Datatype.BYTES, b"\1\0\0\0a", b"\1\0\0\0b"),
    ):
        right = Values(datatype=datatype, shape=(1,), raw=same)
        loose = Tolerance(absolute=100.0)
        assert strain(right, right, loose) == 0.0
        assert strain(Values(datatype=datatype, shape=(1,), raw=other), right, loose) == math.inf


def test_a_trial_travels_as_plain_values() -> None:
    tried = trial("int8", 5, 9, strains=(0.5, 2.0))
    assert from_plain(Trial, to_plain(tried)) == tried
    counted = Trial(
        precision="fp16",
        device_bytes=7,
        device_name="d",
        meter="nvml",
        batches=(BatchFigures(speed=Speed(rows=1, runs=5, best_ns=1, p50_ns=2, p99_ns=3), row_joules=0.25),),
    )
    assert from_plain(Trial, to_plain(counted)) == counted


def candidate(*p50_ns: int) -> Candidate:
    """One whose median runs of one row, and of sixteen, take so long."""
    speeds = (
        Speed(rows=rows, runs=9, best_ns=1, p50_ns=ns, p99_ns=ns)
        for rows, ns in zip((1, 16), p50_ns, strict=False)
    )
    return Candidate(method="fp16", speeds=tuple(speeds))


@pytest.mark.parametrize(
    ("p50_ns", "reason"),
    [
        ((500, 9_000), ""),
        ((1_040, 9_000), ""),
        ((940, 10_400), ""),
        ((1_000, 10_000), "is as fast as the original, to within 5 %, at 1 row and at 16 rows"),
        ((960, 9_600), "is as fast as the original, to within 5 %, at 1 row and at 16 rows"),
        ((1_180, 7_450), "is slower than the original at 1 row (0.85x)"),
        ((500, 12_000), "is slower than the original at 16 rows (0.83x)"),
        ((2_000, 20_000), "is slower than the original at 1 row (0.50x) and at 16 rows (0.50x)"),
    ],
)
def test_faster_is_what_noise_does_not_explain_and_slower_nowhere(
    p50_ns: tuple[int, ...], reason: str
) -> None:
    assert not_faster(candidate(*p50_ns), candidate(1_000, 10_000)) == reason


def test_of_a_model_without_batches_one_row_decides() -> None:
    assert not_faster(candidate(900), candidate(1_000)) == ""
    assert not_faster(candidate(990), candidate(1_000)).endswith("to within 5 %, at 1 row")


def test_what_a_variant_gains_is_of_all_sizes_together() -> None:
    original = candidate(1_000, 10_000)
    assert gain(candidate(500, 10_000), original) == pytest.approx(2)
    assert gain(candidate(800, 5_000), original) == pytest.approx(2.5)
