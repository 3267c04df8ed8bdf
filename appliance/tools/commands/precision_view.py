"""How trials of a model's precisions are shown to a person: what each is, how fast, and what went wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from appliance.cli.failure import printable
from appliance.tools.commands.precision_report import Report, times_faster
from appliance.tools.commands.views import MB, NS_PER_MS
from appliance.tools.evaluation.gate import Judgement, Verdict, fastest

STYLES: Final = {
    Verdict.HOLDS: "green",
    Verdict.REFUSED: "red",
    Verdict.UNPROVEN: "yellow",
    Verdict.NO_FIGURES: "dim",
}
NOTHING: Final = "-"
STRAIN_SHOWN_MAX: Final = 10_000


def report_view(report: Report) -> RenderableType:
    """Two tables, then in words what they cannot say."""
    lines: list[RenderableType] = [_verdicts(report), _speeds(report)]
    lines += [Text(printable(line)) for line in _words(report)]
    return Group(*lines)


def _table(title: str) -> Table:
    table = Table(title=Text(printable(title)), title_justify="left", title_style="")
    table.add_column("", no_wrap=True)
    return table


def _verdicts(report: Report) -> Table:
    table = _table(f"{report.version.key} on {report.device}, {report.inputs}")
    on_device = any(each.trial.device_bytes is not None for each in report.judgements)
    device = ("device MB",) if on_device else ()
    for heading in ("MB", "load ms", "memory MB", *device):
        table.add_column(heading, justify="right")
    table.add_column("worst output", overflow="fold")
    for heading in ("off by", *(("of limit",) if report.proven else ())):
        table.add_column(heading, justify="right")
    table.add_column("verdict", no_wrap=True)
    for each in report.judgements:
        trial, worst = each.trial, each.worst
        cells: list[RenderableType] = [NOTHING] * (len(table.columns) - 2)
        if each.verdict is not Verdict.NO_FIGURES:
            cells = [f"{trial.file_bytes / MB:.2f}", f"{trial.load_ns / NS_PER_MS:.1f}"]
            cells.append(f"{trial.memory_bytes / MB:.1f}")
            if on_device:
                cells.append(NOTHING if trial.device_bytes is None else f"{trial.device_bytes / MB:.0f}")
            cells.append(Text(NOTHING if worst is None else printable(worst.output)))
            cells.append(NOTHING if worst is None else f"{worst.absolute:.3g}")
            if report.proven:
                cells.append(NOTHING if worst is None else strain_text(worst.strain))
        table.add_row(trial.precision, *cells, Text(each.verdict.value, style=STYLES[each.verdict]))
    return table


def _speeds(report: Report) -> Table:
    table = _table(report.on)
    joules = any(batch.row_joules is not None for each in report.judgements for batch in each.trial.batches)
    times = ("times fp32",) if report.reference else ()
    for heading in ("rows", "p50 ms", "p99 ms", "rows/s", *times, *(("mJ/row",) if joules else ())):
        table.add_column(heading, justify="right")
    for each in report.judgements:
        for number, batch in enumerate(each.trial.batches):
            cells = [str(batch.speed.rows)]
            cells += [f"{ns / NS_PER_MS:.3f}" for ns in (batch.speed.p50_ns, batch.speed.p99_ns)]
            cells.append(f"{batch.rows_per_s:,.0f}")
            if times:
                faster = times_faster(report.reference, batch)
                cells.append(NOTHING if faster is None else f"{faster:.2f}")
            if joules:
                cells.append(NOTHING if batch.row_joules is None else f"{batch.row_joules * 1e3:.3g}")
            last = number == len(each.trial.batches) - 1
            table.add_row("" if number else each.trial.precision, *cells, end_section=last)
    return table


def _words(report: Report) -> Iterator[str]:
    for each in report.judgements:
        yield from _reasons(each)
    if any(batch.row_joules is not None for each in report.judgements for batch in each.trial.batches):
        meters = ", ".join(sorted({each.trial.meter for each in report.judgements if each.trial.meter}))
        yield f"Joules are all that was drawn meanwhile, idle power included ({meters})."
    if not report.proven:
        yield "Nothing is proven: there is no golden set that says which answers are right ('appliance model golden')."
    for precision, path in report.kept.items():
        yield f"{precision}: written to {path}"
    best = fastest(report.judgements)
    if best is not None:
        yield f"Fastest of those that hold: {best.trial.precision}."
    elif report.proven:
        yield "None of them holds."


def _reasons(each: Judgement) -> Iterator[str]:
    if each.trial.problem:
        yield f"{each.trial.precision}: {each.trial.problem}"
    if each.verdict is not Verdict.REFUSED:
        return
    for output in each.trial.accuracy:
        if output.reason:
            yield (
                f"{each.trial.precision}: output '{output.output}' is {strain_text(output.strain)} times what its "
                f"tolerance allows: {output.reason}"
            )


def strain_text(strain: float) -> str:
    """A multiple of a tolerance, as short as it can be told."""
    if not math.isfinite(strain) or strain > STRAIN_SHOWN_MAX:
        return f"over {STRAIN_SHOWN_MAX:,}"
    return f"{strain:.3g}" if strain < 1_000 else f"{strain:,.0f}"
