"""Results on a screen: every figure, name and word is whole, on wide screens and on narrow ones."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from benchmarks.environment import Environment
from benchmarks.results import Bound, CaseResult, Measurement, Verdict
from benchmarks.table import for_terminal, spread

METRICS = (
    ("throughput", "req/s"),
    ("p50", "us"),
    ("p99", "us"),
    ("server CPU per request", "us"),
    ("generator CPU per request", "us"),
    ("offered", "req/s"),
    ("goodput", "req/s"),
    ("send lag p99", "us"),
    ("status 8", "req/s"),
    ("refusal p99", "us"),
    ("processes", ""),
    ("growth of the daemon's RSS", "MB"),
    ("time of read, first answer, verified", "ms"),
)
SETTINGS = ("c=32 native load", "with idle connections to another server")
SERVERS = ("appliance_controlled", "plain_aio")
TARGET = "throughput at concurrency 32, appliance_ungranted over appliance_controlled"
NOTE = "0.97 of what the model alone can do on an idle machine"


def result(metrics: Sequence[tuple[str, str]], settings: Sequence[str] = SETTINGS) -> CaseResult:
    """No two figures are the same."""
    keys = [(setting, server, *metric) for setting in settings for server in SERVERS for metric in metrics]
    return CaseResult(
        name="frontend_overload",
        title="The native front end at three times its capacity: 2 ms per batch of 4, deadlines of 10 ms",
        date="2026-01-02",
        rounds=3,
        environment=Environment(cpu="c", cores=2, memory_gib=8.0, kernel="6", python="3.11", packages={}),
        measurements=tuple(
            Measurement(
                setting=setting,
                server=server,
                metric=metric,
                unit=unit,
                samples=(100_000.0 + 7 * number, 200_000.0 + 7 * number, 300_000.0 + 7 * number),
            )
            for number, (setting, server, metric, unit) in enumerate(keys)
        ),
        verdicts=(
            Verdict(target=TARGET, bound=Bound.AT_LEAST, limit=4096, unit="MiB more", value=1.5, note=NOTE),
        ),
        notes=("left out: triton_python is not installed",),
    )


def shown(case: CaseResult, width: int) -> list[str]:
    """Lines as a screen of this width shows them."""
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(for_terminal(case))
    return [line.rstrip() for line in console.export_text().splitlines()]


def words(texts: Sequence[str]) -> set[str]:
    return {word.strip("(),:") for text in texts for word in re.split(r"[\s│┃]+", text)}


@pytest.mark.parametrize("width", [60, 80, 100, 160, 240])
@pytest.mark.parametrize("metrics", [1, 2, 4, len(METRICS)])
def test_nothing_is_cut_off(width: int, metrics: int) -> None:
    case = result(METRICS[:metrics])
    lines = shown(case, width)
    assert max(map(cell_len, lines)) <= width
    assert "…" not in "".join(lines)
    wanted = [text for m in case.measurements for text in (spread(m), m.server, m.setting, m.metric)]
    wanted += [*case.notes, case.title, TARGET, NOTE, "at least 4,096 MiB more"]
    assert words(lines) >= words(wanted)


@pytest.mark.parametrize("width", [80, 160])
def test_many_metrics_have_a_line_each_below_their_server_and_setting(width: int) -> None:
    case = result(METRICS)
    text = "\n".join(shown(case, width))
    for m in case.measurements:
        title = f"{m.metric} ({m.unit})" if m.unit else m.metric
        assert re.search(rf"(^| ){re.escape(title)} +{re.escape(spread(m))}(?: |$)", text, re.MULTILINE)
    if width == 80:
        below = [text.index(f"{m.setting}: {m.server}\n") for m in case.measurements]
        figures = [text.index(spread(m)) for m in case.measurements]
        assert below == sorted(below)
        assert all(head < figure for head, figure in zip(below, figures, strict=True))
        assert all(
            figure < head
            for figure, this, head in zip(figures, below, below[1:], strict=False)
            if this != head
        )
    else:
        assert f"{SETTINGS[1]}: {SERVERS[0]}" in text


def test_few_metrics_have_a_row_for_each_server_and_setting() -> None:
    case = result(METRICS[:1])
    lines = shown(case, 80)
    for m in case.measurements:
        (row,) = [line for line in lines if spread(m) in line]
        assert m.server in row
        assert m.setting.split()[0] in row


def test_blocks_stand_side_by_side_where_there_is_room() -> None:
    case = result(METRICS)
    assert len(shown(case, 160)) < 0.7 * len(shown(case, 80))


def test_a_range_is_explained_and_a_single_figure_has_none() -> None:
    case = result(METRICS[:1], SETTINGS[:1])
    assert "median [lowest-highest]" in shown(case, 80)
    single = Measurement(server="s", setting="c=1", metric="p50", unit="us", samples=(12.0,))
    lines = shown(replace(case, measurements=(single,)), 80)
    assert "[" not in "".join(lines)


def test_a_case_without_measurements_says_so() -> None:
    case = result(())
    lines = shown(replace(case, verdicts=(), errors=("it [bold]ended",)), 80)
    assert "Nothing was measured." in lines
    assert "error: it [bold]ended" in lines
    assert "│" not in "".join(lines)
