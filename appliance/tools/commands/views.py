"""How a measurement and a comparison of variants are shown to a person: tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement as Measured
from rich.table import Table
from rich.text import Text

from appliance.cli.failure import printable
from appliance.cli.text_table import PIPE_CELLS
from appliance.domain.model import ModelVersion
from appliance.domain.quantity import counted
from appliance.tools.evaluation.gate import not_faster, speed_ups
from appliance.tools.evaluation.jobs import ORIGINAL, Candidate, Comparison, Measurement, OutputAccuracy

NS_PER_MS = 1e6
MB = 1e6


class Fitted:
    """The first of ``tables`` that the screen has room for; the last where it has for none."""

    def __init__(self, *tables: Table) -> None:
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
    """One line about loading, a table about runs."""
    head = Text(
        printable(
            f"{version.name} version {version.version}, {version.file_bytes / MB:.1f} MB: "
            f"loads in {found.load_ns / NS_PER_MS:.1f} ms, "
            f"first answer after {found.first_answer_ns / NS_PER_MS:.1f} ms, "
            f"{found.memory_bytes / MB:.1f} MB of memory; run on {found.inputs}{_on(found)}"
        )
    )
    table = Table()
    for heading in ("rows", "runs", "best ms", "p50 ms", "p99 ms", "rows/s"):
        table.add_column(heading, justify="right")
    for each in found.speeds:
        table.add_row(
            str(each.rows),
            str(each.runs),
            *(f"{ns / NS_PER_MS:.3f}" for ns in (each.best_ns, each.p50_ns, each.p99_ns)),
            f"{each.rows_per_s:,.0f}",
        )
    return Group(head, table)


def _on(found: Measurement) -> str:
    return f", on {found.accelerator}" if found.accelerator else ""


def comparison_view(key: str, found: Comparison, written: Mapping[str, str]) -> RenderableType:
    """The original and its variants, side by side: what they cost, how far off they are, what went wrong; ``written``
    says by method where a variant went."""
    lines: list[RenderableType] = [_cost_table(key, found), _accuracy_table(found)]
    for candidate in found.candidates:
        reasons = [*_reasons(candidate), *_pace(candidate, found.candidates[0])]
        lines += [Text(printable(f"{candidate.method}: {reason}")) for reason in reasons]
    lines += [Text(printable(f"{method}: written to {path}")) for method, path in written.items()]
    return Group(*lines)


def _cost_table(key: str, found: Comparison) -> Table:
    original = found.candidates[0]
    table = Table(title=Text(f"{printable(key)} and its variants"), title_justify="left", title_style="")
    table.add_column("", no_wrap=True)
    sizes = [f"{each.rows} row{'s' if each.rows > 1 else ''} ms" for each in original.speeds]
    for heading in ("MB", "load ms", *(part for size in sizes for part in (size, "faster"))):
        table.add_column(heading, justify="right")
    for candidate in found.candidates:
        if candidate.problem:
            table.add_row(candidate.method, "-", "-", *("-",) * 2 * len(sizes))
            continue
        cells = [f"{candidate.file_bytes / MB:.2f}", f"{candidate.load_ns / NS_PER_MS:.1f}"]
        ups = speed_ups(candidate, original)
        for each in candidate.speeds:
            cells += [f"{each.p50_ns / NS_PER_MS:.3f}", f"{ups[each.rows]:.2f}x"]
        table.add_row(candidate.method, *cells)
    return table


def _accuracy_table(found: Comparison) -> Table:
    table = Table(
        title=Text(f"on {counted(found.cases, 'golden case')}"), title_justify="left", title_style=""
    )
    table.add_column("", no_wrap=True)
    table.add_column("output")
    for heading in ("max abs", "max rel", "same best"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict")
    for candidate in found.candidates:
        if candidate.problem:
            table.add_row(candidate.method, "", "", "", "", Text("cannot be used", style="red"))
        for number, each in enumerate(candidate.accuracy):
            table.add_row(
                "" if number else candidate.method,
                Text(printable(each.output)),
                f"{each.absolute:.3g}",
                f"{each.relative:.3g}",
                f"{each.same_top} of {each.tops}" if each.tops else "-",
                _verdict(candidate, each),
            )
    return table


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
