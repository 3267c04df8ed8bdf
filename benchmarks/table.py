"""Results as tables: for the terminal through rich, for the document as Markdown. Pure."""

from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from benchmarks.results import CaseResult, Measurement, Verdict

MET = {True: "met", False: "not met", None: "not measured"}
COLOURS = {True: "green", False: "red", None: "yellow"}


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


def for_terminal(result: CaseResult) -> RenderableType:
    """A case as rich tables."""
    titles, rows = grid(result.measurements)
    measured = Table(*titles, title=f"{result.name}: {result.title}", title_justify="left")
    for row in rows:
        measured.add_row(*row)
    judged = Table("target", "required", "found", "verdict")
    for row, verdict in zip(verdict_rows(result.verdicts), result.verdicts, strict=True):
        judged.add_row(*row[:3], Text(row[3], style=COLOURS[verdict.met]))
    remarks = [Text(f"note: {note}", style="dim") for note in (*result.notes, foreign_text(result))]
    errors = [Text(f"error: {error}", style="red") for error in result.errors]
    return Group(measured, judged, *remarks, *errors)


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
