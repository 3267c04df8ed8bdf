"""How a measurement and a comparison of variants are shown to a person: tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement as Measured
from rich.table import Table
from rich.text import Text

from appliance.cli.failure import printable
from appliance.cli.text_table import PIPE_CELLS, Column, TextTable
from appliance.domain.model import MIXED_ROWS, ModelVersion
from appliance.domain.quantity import counted
from appliance.tools.evaluation.gate import not_faster, speed_ups
from appliance.tools.evaluation.jobs import ORIGINAL, Candidate, Comparison, Measurement, OutputAccuracy

NS_PER_MS = 1e6
MB = 1e6


OUTSIDE_CELLS: Final = 10
"""Of a verdict on a screen that has no room for it in one line."""


class Fitted:
    """The first of ``tables`` that the screen has room for; the last where it has for none."""

    def __init__(self, *tables: RenderableType) -> None:
        self.tables = tables

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """See rich's console protocol."""
        any_width = options.update(width=PIPE_CELLS)
        fit = (
            each
            for each in self.tables
            if Measured.get(console, any_width, each).maximum <= options.max_width
        )
        yield next(fit, self.tables[-1])


def measurement_view(version: ModelVersion, found: Measurement) -> RenderableType:
    """One line about loading, one where requests are not merged, a table about runs."""
    head = Text(
        printable(
            f"{version.name} version {version.version}, {version.file_bytes / MB:.2f} MB: "
            f"loads in {found.load_ns / NS_PER_MS:.1f} ms, "
            f"first answer after {found.first_answer_ns / NS_PER_MS:.1f} ms, "
            f"{found.memory_bytes / MB:.1f} MB of memory; run on {found.inputs}{_on(found)}"
        )
        + (f"\n{MIXED_ROWS}; what has more rows here is one request" if found.rows_mix else "")
    )
    headings = ("rows", "runs", "best ms", "p50 ms", "p99 ms", "rows/s")
    rows = [
        (
            str(each.rows),
            str(each.runs),
            *(f"{ns / NS_PER_MS:.3f}" for ns in (each.best_ns, each.p50_ns, each.p99_ns)),
            f"{each.rows_per_s:,.0f}",
        )
        for each in found.speeds
    ]
    table = Table()
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    columns = [Column(title=heading) for heading in headings]
    narrow = TextTable(columns=columns, rows=[[Text(cell) for cell in row] for row in rows])
    return Group(head, Fitted(table, narrow))


def _on(found: Measurement) -> str:
    return f", on {found.accelerator}" if found.accelerator else ""


def comparison_view(key: str, found: Comparison, written: Mapping[str, str]) -> RenderableType:
    """The original and its variants, side by side: what they cost, how far off they are, what went wrong; ``written``
    says by method where a variant went."""
    costs = Fitted(_cost_table(key, found), _narrow_costs(key, found))
    wide, less_wide = _accuracy_table(found), _accuracy_table(found, verdict_cells=OUTSIDE_CELLS)
    lines: list[RenderableType] = [costs, Fitted(wide, less_wide, _narrow_accuracy(found))]
    for candidate in found.candidates:
        reasons = [*_reasons(candidate), *_pace(candidate, found.candidates[0])]
        lines += [Text(printable(f"{candidate.method}: {reason}")) for reason in reasons]
    lines += [Text(printable(f"{method}: written to {path}")) for method, path in written.items()]
    return Group(*lines)


def _costs_title(key: str) -> Text:
    return Text(f"{printable(key)} and its variants")


def _cost_table(key: str, found: Comparison) -> Table:
    original = found.candidates[0]
    table = Table(title=_costs_title(key), title_justify="left", title_style="")
    table.add_column("", no_wrap=True)
    sizes = [f"{each.rows} row{'s' if each.rows > 1 else ''} ms" for each in original.speeds]
    for heading in ("MB", "load ms", *(part for size in sizes for part in (size, "faster"))):
        table.add_column(heading, justify="right", no_wrap=True)
    for candidate in found.candidates:
        speeds = [cell for _, *cells in _speeds(candidate, original) for cell in cells]
        table.add_row(candidate.method, *_costs(candidate), *(speeds or ("-",) * 2 * len(sizes)))
    return table


def _narrow_costs(key: str, found: Comparison) -> Group:
    """With a row for each size."""
    titles = ("MB", "load ms", "rows", "ms", "faster")
    columns = [Column(title="", left=True), *(Column(title=title) for title in titles)]
    rows: list[list[Text]] = []
    for candidate in found.candidates:
        first = [candidate.method, *_costs(candidate)]
        for speed in list(_speeds(candidate, found.candidates[0])) or [("-", "-", "-")]:
            rows.append([Text(cell) for cell in (*first, *speed)])
            first = [""] * len(first)
    return Group(_costs_title(key), TextTable(columns=columns, rows=rows))


def _costs(candidate: Candidate) -> tuple[str, str]:
    if candidate.problem:
        return ("-", "-")
    return (f"{candidate.file_bytes / MB:.2f}", f"{candidate.load_ns / NS_PER_MS:.1f}")


def _speeds(candidate: Candidate, original: Candidate) -> Iterator[tuple[str, str, str]]:
    """The rows, how long they take, and how many times as fast that is."""
    if candidate.problem:
        return
    ups = speed_ups(candidate, original)
    for each in candidate.speeds:
        yield str(each.rows), f"{each.p50_ns / NS_PER_MS:.3f}", f"{ups[each.rows]:.2f}x"


def _accuracy_title(found: Comparison) -> Text:
    return Text(f"on {counted(found.cases, 'golden case')}")


def _accuracy_table(found: Comparison, *, verdict_cells: int | None = None) -> Table:
    """``verdict_cells``: as wide as verdicts may be."""
    table = Table(title=_accuracy_title(found), title_justify="left", title_style="")
    table.add_column("", no_wrap=True)
    table.add_column("output", no_wrap=True)
    for heading in ("max abs", "max rel", "same best"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", max_width=verdict_cells, no_wrap=verdict_cells is None)
    for method, *cells, verdict, output in _accuracies(found):
        table.add_row(method, output, *cells, verdict)
    return table


def _narrow_accuracy(found: Comparison) -> Group:
    """With the outputs' names at the rows' ends, or below them."""
    columns = [
        Column(title="", left=True),
        *(Column(title=title) for title in ("max abs", "max rel", "same best")),
        Column(title="verdict", left=True),
    ]
    return Group(
        _accuracy_title(found),
        TextTable(columns=columns, rows=list(_accuracies(found)), tail="output"),
    )


def _accuracies(found: Comparison) -> Iterator[list[Text]]:
    """For each variant and each of its outputs: the method, three figures, the verdict and the output."""
    for candidate in found.candidates:
        if candidate.problem:
            nothing = [Text()] * 3
            yield [Text(candidate.method), *nothing, Text("cannot be used", style="red"), Text()]
        for number, each in enumerate(candidate.accuracy):
            same = f"{each.same_top} of {each.tops}" if each.tops else "-"
            far = ("-", "-") if each.merely_other else (f"{each.absolute:.3g}", f"{each.relative:.3g}")
            cells = ("" if number else candidate.method, *far, same)
            yield [*map(Text, cells), _verdict(candidate, each), Text(printable(each.output))]


def _verdict(candidate: Candidate, accuracy: OutputAccuracy) -> Text:
    if accuracy.reason:
        return Text(f"{accuracy.outside} of {accuracy.values} outside", style="red")
    return Text("original" if candidate.method == ORIGINAL else "within", style="green")


def _reasons(candidate: Candidate) -> Iterator[str]:
    if candidate.problem:
        yield candidate.problem
    for each in candidate.accuracy:
        if each.reason:
            yield f"output '{each.output}', {each.reason}"


def _pace(candidate: Candidate, original: Candidate) -> Iterator[str]:
    """Why one that may be served is not worth it."""
    worth = candidate is not original and candidate.holds and candidate.speeds
    if worth and (reason := not_faster(candidate, original)):
        yield reason
