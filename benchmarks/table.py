"""Results as tables: for the terminal through rich, for the document as Markdown. Pure.

On screens of 60 columns and more no figure and no name is cut off. Where a row for each server and setting is too wide,
each gets a block of its own with a line for each metric; blocks stand beside one another where there is room. For pipes
and files rich takes 80 columns unless COLUMNS says otherwise.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from benchmarks.results import CaseResult, Measurement, Verdict

MET = {True: "met", False: "not met", None: "not measured"}
COLOURS = {True: "green", False: "red", None: "yellow"}
SETTING_CELLS = 24  # a longer setting is wrapped, down to this, before the table is given up
INDENT = 1
GAPS = INDENT + 3  # what a line of a block has beside its three texts
METRIC_CELLS = 12  # what a metric's name keeps in a block on the narrowest of screens
JUDGED = ("target", "required", "found", "verdict")
JUDGED_FRAME = 13  # lines and spaces of a table of four columns


def number(value: float) -> str:
    """A figure with as many digits as it deserves."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 10 else f"{value:.2f}"


def spread(measurement: Measurement) -> str:
    """Median, and the range when there was more than one round."""
    if len(measurement.samples) == 1:
        return number(measurement.median)
    low, high = min(measurement.samples), max(measurement.samples)
    return f"{number(measurement.median)} [{number(low)}-{number(high)}]"


def grid(measurements: Iterable[Measurement]) -> tuple[list[str], list[list[str]]]:
    """Column titles and rows: one row per server and setting, one column per metric."""
    columns: dict[str, None] = {}
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for m in measurements:
        column = f"{m.metric} ({m.unit})" if m.unit else m.metric
        columns[column] = None
        rows.setdefault((m.setting, m.server), {})[column] = spread(m)
    order = sorted(rows, key=lambda key: list(dict.fromkeys(setting for setting, _ in rows)).index(key[0]))
    body = [
        [setting, server, *(rows[setting, server].get(c, "") for c in columns)] for setting, server in order
    ]
    return ["setting", "server", *columns], body


def verdict_rows(verdicts: Iterable[Verdict]) -> list[list[str]]:
    """Target, required, found, met."""
    return [
        [
            v.target,
            f"{v.bound.value} {number(v.limit)} {v.unit}",
            "-" if v.value is None else f"{number(v.value)} {v.unit}",
            MET[v.met] + (f" ({v.note})" if v.note else ""),
        ]
        for v in verdicts
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseView:
    """A case, to be printed by rich."""

    result: CaseResult

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """See rich's console protocol."""
        result, width = self.result, options.max_width
        yield Text(f"{result.name}: {result.title}", style="bold")
        if any(len(m.samples) > 1 for m in result.measurements):
            yield Text("median [lowest-highest]", style="dim")
        titles, rows = grid(result.measurements)
        if not rows:
            yield Text("Nothing was measured.")
        elif _least_cells(table := _table(titles, rows)) <= width:
            yield table
        else:
            yield Columns(_blocks(titles, rows, width), padding=(0, 4, 0, 0))
        if result.verdicts:
            yield _judged(result.verdicts, width)
        yield from (Text(f"note: {note}", style="dim") for note in (*result.notes, foreign_text(result)))
        yield from (Text(f"error: {error}", style="red") for error in result.errors)


def _table(titles: list[str], rows: list[list[str]]) -> Table:
    """One row per server and setting. Only settings are wrapped, and titles to what is below them."""
    table = Table()
    for title, cells in zip(titles, zip(*rows, strict=True), strict=True):
        widest = max(map(len, [*cells, *title.split()]))
        if title == titles[0]:
            table.add_column(title, min_width=min(widest, SETTING_CELLS))
        else:
            table.add_column(textwrap.fill(title, widest), min_width=widest, no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _least_cells(table: Table) -> int:
    """What it needs with its lines, and a space on either side of each cell."""
    return sum((column.min_width or 0) + 3 for column in table.columns) + 1


def _blocks(titles: list[str], rows: list[list[str]], width: int) -> list[RenderableType]:
    """One per server and setting: a line per metric, with the columns of all blocks below one another."""
    found = [(row[:2], _lines(titles[2:], row[2:])) for row in rows]
    metric, median, spans = (max(len(line[i]) for _, lines in found for line in lines) for i in range(3))
    metric = min(metric, max(width - median - spans - GAPS, METRIC_CELLS))
    blocks: list[RenderableType] = []
    for (setting, server), lines in found:
        block = Table.grid(padding=(0, 1), pad_edge=False)
        block.add_column(width=INDENT)
        block.add_column(width=metric, overflow="fold")
        block.add_column(width=median, justify="right", no_wrap=True)
        block.add_column(width=spans, no_wrap=True)
        for line in lines:
            block.add_row("", *map(Text, line))
        blocks.append(Group(Text(f"{setting}: {server}", style="bold"), block))
    return blocks


def _lines(metrics: list[str], cells: list[str]) -> list[tuple[str, str, str]]:
    """Metric, median and range of what was measured."""
    split = [(metric, cell.partition(" ")) for metric, cell in zip(metrics, cells, strict=True) if cell]
    return [(metric, median, spans) for metric, (median, _, spans) in split]


def _judged(verdicts: Sequence[Verdict], width: int) -> Table:
    """Targets. The first column and the last share what the figures leave, and no word is broken if that can be."""
    rows = verdict_rows(verdicts)
    columns = list(zip(JUDGED, *rows, strict=True))
    widest = [max(map(len, cells)) for cells in columns]
    words = [max(len(word) for cell in cells for word in cell.split()) for cells in columns]
    middle = widest[1:3] if words[0] + sum(widest[1:3]) + words[3] + JUDGED_FRAME <= width else words[1:3]
    shared = width - sum(middle) - JUDGED_FRAME
    target = max(shared - widest[3], min(max(shared // 2, words[0]), shared - words[3]), 1)
    table = Table()
    for title, cells in zip(JUDGED, (min(target, widest[0]), *middle, None), strict=True):
        table.add_column(title, width=cells, overflow="fold")
    for row, verdict in zip(rows, verdicts, strict=True):
        table.add_row(*map(Text, row[:3]), Text(row[3], style=COLOURS[verdict.met]))
    return table


def names_table(titles: tuple[str, str], meanings: Mapping[str, str]) -> Table:
    """Names, and what is said of each."""
    table = Table()
    table.add_column(titles[0], no_wrap=True)
    table.add_column(titles[1], overflow="fold")
    for name, meaning in meanings.items():
        table.add_row(Text(name), Text(meaning))
    return table


def for_terminal(result: CaseResult) -> RenderableType:
    """A case as rich tables, of a width that suits the screen."""
    return CaseView(result=result)


def foreign_text(result: CaseResult) -> str:
    """How busy others kept the machine meanwhile."""
    if not result.foreign_cores:
        return "foreign load was not measured"
    ordered = sorted(result.foreign_cores)
    return f"foreign load {ordered[len(ordered) // 2]:.2f} cores (median), {ordered[-1]:.2f} at most"


def markdown(titles: list[str], rows: Iterable[list[str]]) -> str:
    """A Markdown table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def packages_text(packages: Mapping[str, str]) -> str:
    """Names and versions in one line."""
    return ", ".join(f"{name} {version}" for name, version in packages.items())
