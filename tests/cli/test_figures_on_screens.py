"""What ``appliance model optimise`` and ``bench`` show keeps every figure whole, however narrow the screen."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from appliance.tools.commands.views import comparison_view, measurement_view
from appliance.tools.evaluation.jobs import Candidate, Comparison, Measurement, OutputAccuracy, Speed
from tests.frontend.grpc.messages import two_inputs

SIZES = ((1, 1_234_567, 2_345_678), (16, 112_345_678, 98_765_432))
LONG = "probabilities-of-all-categories"


def accuracy(output: str, outside: int) -> OutputAccuracy:
    return OutputAccuracy(
        output=output, values=12_000, outside=outside, absolute=0.000927, relative=1.19e-07, same_top=1_198,
        tops=1_200, reason="its reason" if outside else "",
    )  # fmt: skip


def speeds(factor: int) -> tuple[Speed, ...]:
    return tuple(
        Speed(rows=rows, runs=20, best_ns=best, p50_ns=median * factor, p99_ns=median * 3)
        for rows, best, median in SIZES
    )


def compared(output: str) -> Comparison:
    original, outside = (accuracy(output, count) for count in (0, 1_300))
    size, load = 104_000_000, 1_234_000_000
    return Comparison(
        cases=12,
        candidates=(
            Candidate(method="original", file_bytes=size, load_ns=load, accuracy=(original,), speeds=speeds(1)),
            Candidate(
                method="int8-dynamic", file_bytes=size, load_ns=load, accuracy=(outside, original), speeds=speeds(4)
            ),
            Candidate(method="fp16", problem="the runtime refuses it"),
        ),
    )  # fmt: skip


def shown(what: RenderableType, width: int) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(what)
    return console.export_text().splitlines()


@pytest.mark.parametrize("output", ["y", LONG])
@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_figures_of_variants_stay_whole(width: int, output: str) -> None:
    lines = shown(comparison_view("digits/2", compared(output), {}), width)
    words = " ".join(lines).replace("│", " ").split()
    assert max(map(cell_len, lines)) <= width
    assert not any("…" in line for line in lines)
    figures = {
        "104.00": 2,
        "1234.0": 2,
        "2.346": 1,
        "98.765": 1,
        "9.383": 1,
        "395.062": 1,
        "1.00x": 2,
        "0.25x": 2,
    }
    assert {figure: words.count(figure) for figure in figures} == figures
    assert (words.count("1.19e-07"), words.count("0.000927"), words.count(output)) == (3, 3, 3)
    assert " ".join(words).count("1198 of 1200") == 3
    assert ("┃" in "".join(lines)) is (width > 60)


@pytest.mark.parametrize("width", [60, 100])
def test_what_has_to_be_the_same_is_off_by_no_number(width: int) -> None:
    words = OutputAccuracy(output="y", values=9, outside=1, absolute=0.0, relative=0.0, reason="its reason")
    found = Comparison(cases=1, candidates=(Candidate(method="fp16", accuracy=(words,)),))
    lines = shown(comparison_view("digits/2", found, {}), width)
    (row,) = (each for each in lines if "1 of 9 outside" in each)
    assert row.replace("│", " ").split("1 of 9")[0].split()[-3:] == ["-", "-", "-"]


def test_the_costs_of_each_size_are_rows_where_they_have_no_room_as_columns() -> None:
    lines = [line.rstrip() for line in shown(comparison_view("digits/2", compared("y"), {}), 60)]
    assert lines[:7] == [
        "digits/2 and its variants",
        "                 MB load ms rows      ms faster",
        "original     104.00  1234.0    1   2.346  1.00x",
        "                              16  98.765  1.00x",
        "int8-dynamic 104.00  1234.0    1   9.383  0.25x",
        "                              16 395.062  0.25x",
        "fp16              -       -    -       -      -",
    ]


@pytest.mark.parametrize("width", [40, 60, 100])
def test_figures_of_a_measurement_stay_whole(width: int) -> None:
    found = Measurement(
        load_ns=1, first_answer_ns=2, memory_bytes=3, inputs="random values", speeds=speeds(1)
    )
    lines = shown(measurement_view(two_inputs(), found), width)
    assert max(map(cell_len, lines)) <= width
    words = " ".join(lines).replace("│", " ").split()
    figures = ("1", "20", "1.235", "2.346", "7.037", "426", "16", "112.346", "98.765", "296.296", "162")
    assert [word for word in words if word in figures][-len(figures) - 1 :] == [
        "1", "20", "1.235", "2.346", "7.037", "426", "16", "20", "112.346", "98.765", "296.296", "162",
    ]  # fmt: skip
