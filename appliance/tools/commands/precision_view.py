"""How trials of a model's precisions are shown to a person: what each is, how fast, and what went wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from shlex import quote
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from appliance.cli.failure import printable
from appliance.domain.device import DeviceKind
from appliance.tools.commands.precision_report import Report, rows_text, times_faster
from appliance.tools.commands.views import MB, NS_PER_MS, Fitted
from appliance.tools.evaluation.gate import LIKE_PERCENT, Judgement, Verdict, best_batch, fastest
from appliance.tools.evaluation.jobs import TENSORRT, OutputAccuracy, Trial

STYLES: Final = {
    Verdict.HOLDS: "green",
    Verdict.REFUSED: "red",
    Verdict.UNPROVEN: "yellow",
    Verdict.NO_FIGURES: "dim",
}
NOTHING: Final = "-"
WORST_OUTPUT: Final = "worst output"
NAME_CELLS: Final = 12
"""Of an output on a screen that has no room for its name in one line."""
SHARE_SHOWN_MAX: Final = 10_000


def report_view(report: Report) -> RenderableType:
    """Two tables, then in words what they cannot say; no tables where there are no figures."""
    head = f"{report.version.key} on {report.device}, {report.inputs}"
    lines: list[RenderableType] = [Text(printable(head))]
    if not report.unmeasured:
        verdicts = (
            _verdicts(head, report),
            _verdicts(head, report, name_cells=NAME_CELLS),
            _verdicts(head, report, name_cells=NAME_CELLS, tight=True),
            _verdicts(head, report, name_cells=NAME_CELLS, tight=True, costs=False),
        )
        lines = [Fitted(*verdicts), Fitted(_speeds(report), _speeds(report, tight=True))]
    lines += [Text(printable(line)) for line in _words(report)]
    return Group(*lines)


def _table(title: str, *, tight: bool) -> Table:
    """``tight``: nothing is between cells and lines."""
    padding = (0, 0) if tight else (0, 1)
    table = Table(title=Text(printable(title)), title_justify="left", title_style="", padding=padding)
    table.add_column("", no_wrap=True)
    return table


def _verdicts(
    title: str, report: Report, *, name_cells: int | None = None, tight: bool = False, costs: bool = True
) -> Table:
    """``name_cells``: as wide as names of outputs may be; without ``costs`` nothing is said of loading and memory."""
    table = _table(title, tight=tight)
    cells = list(_cells(report, costs=costs))
    for heading, _ in cells:
        if heading == WORST_OUTPUT:
            table.add_column(heading, overflow="fold", max_width=name_cells)
        else:
            table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for each in report.judgements:
        bare = each.verdict is Verdict.NO_FIGURES
        said = [Text(NOTHING if bare else printable(told(each))) for _, told in cells]
        table.add_row(each.trial.precision, *said, Text(each.verdict.value, style=STYLES[each.verdict]))
    return table


def _cells(report: Report, *, costs: bool) -> Iterator[tuple[str, Callable[[Judgement], str]]]:
    """What there is to tell of each: a heading, and how it is told of one that has figures."""
    trials = [each.trial for each in report.judgements]
    yield "MB", lambda each: f"{each.trial.file_bytes / MB:.2f}"
    if costs:
        yield "load\nms", lambda each: f"{each.trial.load_ns / NS_PER_MS:.1f}"
        yield "memory\nMB", lambda each: f"{each.trial.memory_bytes / MB:.1f}"
        if any(each.device_bytes is not None for each in trials):
            yield "device\nMB", lambda each: _megabytes(each.trial.device_bytes)
    if any(len(each.accuracy) > 1 for each in trials):
        yield WORST_OUTPUT, lambda each: NOTHING if each.worst is None else each.worst.output
    yield "off by", lambda each: _distance(each.worst)
    if report.proven:
        yield "of limit", lambda each: _share(each.worst)
    if any(output.tops for each in trials for output in each.accuracy):
        yield "same\nclass", lambda each: _same_class(each.trial)


def _distance(worst: OutputAccuracy | None) -> str:
    return NOTHING if worst is None or worst.merely_other else f"{worst.off_by:.2g}"


def _share(worst: OutputAccuracy | None) -> str:
    if worst is None:
        return NOTHING
    return "not equal" if worst.merely_other else share_text(worst.of_limit)


def _megabytes(count: int | None) -> str:
    return NOTHING if count is None else f"{count / MB:.0f}"


def _speeds(report: Report, *, tight: bool = False) -> Table:
    table = _table(report.on, tight=tight)
    joules = report.counts_joules
    times = ("times fp32",) if report.reference else ()
    for heading in ("rows", "p50 ms", "p99 ms", "rows/s", *times, *(("mJ/row",) if joules else ())):
        table.add_column(heading, justify="right")
    for each in report.judgements:
        for number, batch in enumerate(each.trial.batches):
            cells = [str(batch.speed.rows)]
            cells += [f"{ns / NS_PER_MS:.3f}" for ns in (batch.speed.p50_ns, batch.speed.p99_ns)]
            cells.append(f"{batch.speed.rows_per_s:,.0f}")
            if times:
                faster = times_faster(report.reference, batch)
                cells.append(NOTHING if faster is None else f"{faster:.2f}")
            if joules:
                cells.append(NOTHING if batch.row_joules is None else f"{batch.row_joules * 1e3:.3g}")
            last = number == len(each.trial.batches) - 1
            table.add_row("" if number else each.trial.precision, *cells, end_section=last)
    return table


def _words(report: Report) -> Iterator[str]:
    if report.proven:
        yield from _limits(report)
    yield from _problems(report)
    for each in report.judgements:
        yield from _reasons(each)
    yield from _remedy(report)
    if not report.unmeasured:
        yield _energy(report)
        if report.version.backend == TENSORRT:
            yield "All figures are of ONNX Runtime's session; an engine of TensorRT is built on the box alone."
    if report.picture:
        yield f"plot: written to {report.picture}"
    yield from _outcome(report)


def _outcome(report: Report) -> Iterator[str]:
    """What came of it, and what was kept."""
    if not report.proven:
        yield "Nothing is proven: there is no golden set that says which answers are right ('appliance model golden')."
    for precision, path in (report.kept or {}).items():
        yield f"{precision}: written to {path}"
    best = [each.trial for each in fastest(report.judgements)]
    if best:
        alike = f", within {LIKE_PERCENT} %" if len(best) > 1 else ""
        yield f"Fastest of those that hold: {_at_best(best)}{alike}."
    elif report.unmeasured:
        yield f"Nothing could be measured on {report.device}."
    elif report.proven:
        yield "None of them holds."
    if report.kept is not None and not report.kept:
        yield "Nothing was kept: no variant that was made holds."
    if not report.unmeasured and report.version.on_cpu != (report.device == DeviceKind.CPU.value):
        device = report.version.device
        yield (
            f"A box runs it on {device}, as config.pbtxt says, where figures and verdicts may be others: --device "
            f"{device.kind.value} tries it there."
        )


def _at_best(trials: Sequence[Trial]) -> str:
    """Each with the batch size that it was ranked by, which is told once where all have the same."""
    sizes = [f"at {rows_text(best.speed.rows)}" for best in map(best_batch, trials) if best is not None]
    if len(set(sizes)) == 1:
        return f"{' and '.join(each.precision for each in trials)}, {sizes[0]}"
    return " and ".join(f"{each.precision} {size}" for each, size in zip(trials, sizes, strict=True))


def _limits(report: Report) -> Iterator[str]:
    """The tolerances that applied."""
    outputs = next((each.trial.accuracy for each in report.judgements if each.trial.accuracy), ())
    for output in outputs:
        yield f"limit of '{output.output}': {output.limit}"


def _energy(report: Report) -> str:
    meters = ", ".join(sorted({each.trial.meter for each in report.judgements if each.trial.meter}))
    if report.counts_joules:
        return f"Joules are all that was drawn meanwhile, idle power included ({meters})."
    if meters:
        return f"No joules: no size was run for as long as the counter needs ({meters}); raise --budget-ms."
    return "No joules: nothing here counts energy that this user may read."


def _same_class(trial: Trial) -> str:
    """Rows with the right best class, of all outputs that have classes."""
    same, tops = (sum(getattr(each, name) for each in trial.accuracy) for name in ("same_top", "tops"))
    return f"{same}/{tops}" if tops else NOTHING


def _problems(report: Report) -> Iterator[str]:
    """Why some have no figures, each reason once."""
    names: dict[str, list[str]] = {}
    for each in report.judgements:
        if each.trial.problem:
            names.setdefault(each.trial.problem, []).append(each.trial.precision)
    for problem, precisions in names.items():
        yield f"{', '.join(precisions)}: {problem}"


def _reasons(each: Judgement) -> Iterator[str]:
    if each.verdict is not Verdict.REFUSED:
        return
    for output in each.trial.accuracy:
        if output.reason:
            far = f"is {share_text(output.of_limit)} times what its tolerance allows"
            told = "has to be the same and is not" if output.merely_other else far
            yield f"{each.trial.precision}: output '{output.output}' {told}: {output.reason}"


def _remedy(report: Report) -> Iterator[str]:
    """Who decides what is refused, where something is."""
    refused = [each.trial for each in report.judgements if each.verdict is Verdict.REFUSED]
    names = [output.output for trial in refused for output in trial.accuracy if output.reason]
    if names:
        yield (
            "How far an answer may be off is a decision about the model. Its golden set has it, and 'appliance model "
            f"golden SOURCE --force --tolerance {quote(names[0])}=ABSOLUTE,RELATIVE' changes it there."
        )


def share_text(share: float) -> str:
    """A multiple of a tolerance, as short as it can be told."""
    if not math.isfinite(share) or share > SHARE_SHOWN_MAX:
        return f"over {SHARE_SHOWN_MAX:,}"
    return f"{share:.3g}" if share < 1_000 else f"{share:,.0f}"
