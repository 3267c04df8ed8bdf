"""Trials of a model's precisions as a picture (SVG): a line for each; latency, throughput, accuracy, memory and joules
side by side, joules where something counts them. What has no figures stands below these lines, with the reason.

Latencies are of the smallest batch, joules of the largest, rows a second of that at which a row takes least, as what is
the fastest is decided. Accuracy is on a logarithmic scale: as a
multiple of the tolerance, with a line where that ends, or where nothing is proven as the largest distance. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from appliance.cli.failure import printable
from appliance.tools.commands.precision_report import Report, rows_text
from appliance.tools.commands.views import MB
from appliance.tools.evaluation.gate import Judgement, Verdict, best_batch

NS_PER_MS: Final = 1e6
MJ_PER_J: Final = 1e3
LEFT: Final = 104
PANEL: Final = 168
ROOM: Final = 66
"""Right of a panel, for the number at the end of its longest bar."""
TOP: Final = 112
ROW: Final = 44
BAR: Final = 16
BOTTOM: Final = 56
SHOWN_CHARACTERS: Final = 100
ACCURACY: Final = 2
"""The panel of accuracy, counted from 0."""
WHISKER_TIMES_MAX: Final = 4
"""How many times the largest median the scale of latencies goes to at most: on a busy machine the slowest runs are a
hundred times that, and no median could be seen beside them."""
DECADES: Final = (-3, 3)
"""Of multiples of a tolerance; what lies outside stands at the end."""
COLOURS: Final = {
    Verdict.HOLDS: "#1b7f5c",
    Verdict.REFUSED: "#b3372f",
    Verdict.UNPROVEN: "#8a6d1a",
    Verdict.NO_FIGURES: "#8a8f98",
}
INK: Final = "#20242a"
FAINT: Final = "#6a707a"
RULE: Final = "#d9dce1"


class _Panel(NamedTuple):
    """A column of the picture: what it is of, and what it draws for a judgement into the line whose middle is at so
    much."""

    title: str
    note: str
    draw: Callable[[Judgement, float, float], Iterator[str]]


def picture(report: Report) -> str:
    """The SVG document."""
    rows = sorted(report.judgements, key=lambda each: each.verdict is Verdict.NO_FIGURES)
    count = sum(each.verdict is not Verdict.NO_FIGURES for each in rows)
    height = TOP + ROW * len(rows) + BOTTOM
    panels = [_latency(report), _throughput(report), _accuracy(report), _memory(report)]
    if report.counts_joules:
        panels.append(_joules(report))
    width = _left(len(panels))
    body: list[str] = [_text(24, 34, f"{report.version.key} on {report.device}", size=18, weight=600)]
    body.append(_text(24, 56, "; ".join(filter(None, (report.on, report.inputs))), size=12, fill=FAINT))
    for number, panel in enumerate(panels):
        x = _left(number)
        body.append(_text(x, TOP - 26, panel.title, size=13, weight=600))
        body.append(_text(x, TOP - 11, panel.note, size=11, fill=FAINT))
        body.append(_line(x, TOP - 2, x, TOP + ROW * count, RULE))
    body.append(_limit(report, count))
    for number, each in enumerate(rows):
        body += _row(each, TOP + ROW * number + ROW / 2, panels)
    body += _legend(height - 22, {each.verdict for each in rows})
    described = "; ".join(f"{each.trial.precision}: {each.verdict.value}" for each in report.judgements)
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" font-family="system-ui, sans-serif">'
    )
    head = (
        opening,
        f"<title>{_safe(f'Precisions of {report.version.key}')}</title>",
        f"<desc>{_safe(described)}</desc>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    )
    return "\n".join((*head, *filter(None, body), "</svg>\n"))


def _row(each: Judgement, middle: float, panels: Sequence[_Panel]) -> Iterator[str]:
    yield _text(24, middle - 1, each.trial.precision, size=14, weight=600)
    yield _text(24, middle + 13, each.verdict.value, size=11, fill=COLOURS[each.verdict])
    if each.verdict is Verdict.NO_FIGURES:
        shown = each.trial.problem
        if len(shown) > SHOWN_CHARACTERS:
            shown = f"{shown[:SHOWN_CHARACTERS]}..."
        yield _text(LEFT, middle + 4, shown, size=11, fill=FAINT)
        return
    for number, panel in enumerate(panels):
        yield from panel.draw(each, _left(number), middle)


def _left(number: int) -> int:
    """Where a panel begins; that behind the last one is how wide the picture is."""
    return LEFT + number * (PANEL + ROOM)


def _latency(report: Report) -> _Panel:
    firsts = [each.trial.batches[0] for each in report.judgements if each.trial.batches]
    median = max((each.speed.p50_ns for each in firsts), default=1)
    largest = min(max((each.speed.p99_ns for each in firsts), default=1), WHISKER_TIMES_MAX * median)
    rows = firsts[0].speed.rows if firsts else 1

    def draw(each: Judgement, x: float, middle: float) -> Iterator[str]:
        for speed in (batch.speed for batch in each.trial.batches[:1]):
            half, most = (_share(min(ns, largest), largest) for ns in (speed.p50_ns, speed.p99_ns))
            yield _line(x + half, middle, x + most, middle, COLOURS[each.verdict])
            if speed.p99_ns <= largest:
                yield _line(x + most, middle - 5, x + most, middle + 5, COLOURS[each.verdict])
            else:
                yield _arrow(x + most, middle, COLOURS[each.verdict])
            yield _bar(x, middle, half, COLOURS[each.verdict])
            said = f"{_number(speed.p50_ns / NS_PER_MS)} / {_number(speed.p99_ns / NS_PER_MS)}"
            yield _text(x, middle + 20, said, size=10, fill=FAINT)

    return _Panel("Latency, ms", f"p50, whisker p99, {rows_text(rows)}", draw)


def _throughput(report: Report) -> _Panel:
    bests = [best_batch(each.trial) for each in report.judgements]
    largest = max((each.speed.rows_per_s for each in bests if each is not None), default=1.0)

    def draw(each: Judgement, x: float, middle: float) -> Iterator[str]:
        if (best := best_batch(each.trial)) is not None:
            length = _share(best.speed.rows_per_s, largest)
            yield _bar(x, middle, length, COLOURS[each.verdict])
            yield _text(x + length + 6, middle + 4, _number(best.speed.rows_per_s), size=11)
            yield _text(x, middle + 20, rows_text(best.speed.rows), size=10, fill=FAINT)

    return _Panel("Throughput, rows/s", "median run, best batch size", draw)


def _accuracy(report: Report) -> _Panel:
    far = max((_distance(report, each) for each in report.judgements), default=1.0)
    low, high = _decades(report, far)

    def draw(each: Judgement, x: float, middle: float) -> Iterator[str]:
        distance = _distance(report, each)
        at = x + _logarithmic(distance, low, high)
        yield _line(x, middle, at, middle, COLOURS[each.verdict])
        yield f'<circle cx="{at:.1f}" cy="{middle:.1f}" r="5" fill="{COLOURS[each.verdict]}"/>'
        yield _text(at + 9, middle + 4, _number(distance), size=11, halo=True)

    if report.proven:
        return _Panel("Error, of its tolerance", "worst output, limit 1 (logarithmic)", draw)
    return _Panel("Error", "largest distance from fp32 (logarithmic)", draw)


def _memory(report: Report) -> _Panel:
    trials = [each.trial for each in report.judgements]
    on_device = any(each.device_bytes is not None for each in trials)
    largest = max((each.device_bytes if on_device else each.memory_bytes) or 0 for each in trials)

    def draw(each: Judgement, x: float, middle: float) -> Iterator[str]:
        taken = each.trial.device_bytes if on_device else each.trial.memory_bytes
        if taken is None:
            yield _text(x + 6, middle + 4, "not told", size=11, fill=FAINT)
        else:
            length = _share(taken, largest)
            yield _bar(x, middle, length, COLOURS[each.verdict])
            yield _text(x + length + 6, middle + 4, _number(taken / MB), size=11)
        if on_device:
            yield _text(x, middle + 20, _number(each.trial.memory_bytes / MB), size=10, fill=FAINT)

    note = "of the device; of the process below" if on_device else "private, of the process"
    return _Panel("Memory, MB", note, draw)


def _joules(report: Report) -> _Panel:
    lasts = [each.trial.batches[-1] for each in report.judgements if each.trial.batches]
    largest = max((each.row_joules or 0.0 for each in lasts), default=0.0)

    def draw(each: Judgement, x: float, middle: float) -> Iterator[str]:
        for drawn in (batch.row_joules for batch in each.trial.batches[-1:]):
            if drawn is None:
                yield _text(x + 6, middle + 4, "not counted", size=11, fill=FAINT)
                continue
            length = _share(drawn, largest)
            yield _bar(x, middle, length, COLOURS[each.verdict])
            yield _text(x + length + 6, middle + 4, _number(drawn * MJ_PER_J), size=11)

    rows = lasts[0].speed.rows if lasts else 1
    return _Panel("Energy, mJ a row", f"all that was drawn, {rows_text(rows)}", draw)


def _limit(report: Report, count: int) -> str:
    """Where tolerances end."""
    if not report.proven:
        return ""
    x = _left(ACCURACY) + _logarithmic(1.0, *DECADES)
    return _line(x, TOP - 2, x, TOP + ROW * count, INK, dashes="3 3")


def _decades(report: Report, far: float) -> tuple[int, int]:
    """From where to where the scale of distances goes."""
    if report.proven:
        return DECADES
    high = math.ceil(math.log10(far)) if 0 < far < math.inf else 0
    return high - (DECADES[1] - DECADES[0]), high


def _distance(report: Report, each: Judgement) -> float:
    if each.worst is None:
        return 0.0
    return each.worst.of_limit if report.proven else each.worst.absolute


def _logarithmic(value: float, low: int, high: int) -> float:
    place = math.log10(value) if 0 < value < math.inf else (low if value <= 0 else high)
    return PANEL * (min(max(place, low), high) - low) / (high - low)


def _share(value: float, largest: float) -> float:
    return max(PANEL * value / largest, 1.0) if largest else 1.0


def _legend(y: float, there: Collection[Verdict]) -> Iterator[str]:
    x = 24.0
    for verdict in filter(there.__contains__, Verdict):
        yield f'<rect x="{x:.0f}" y="{y - 9:.0f}" width="10" height="10" rx="2" fill="{COLOURS[verdict]}"/>'
        yield _text(x + 16, y, verdict.value, size=11, fill=FAINT)
        x += 100


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "∞"
    return f"{value:.3g}" if value < 1_000 else f"{value:,.0f}"


def _bar(x: float, middle: float, length: float, fill: str) -> str:
    return f'<rect x="{x:.1f}" y="{middle - BAR / 2:.1f}" width="{length:.1f}" height="{BAR}" rx="2" fill="{fill}"/>'


def _arrow(x: float, middle: float, fill: str) -> str:
    """The end of a whisker that goes on beyond its panel."""
    corners = f"M{x - 2:.1f} {middle - 5:.1f} L{x + 6:.1f} {middle:.1f} L{x - 2:.1f} {middle + 5:.1f} Z"
    return f'<path d="{corners}" fill="{fill}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str, *, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{stroke}" stroke-width="1.5"{dashed}/>'


def _text(
    x: float, y: float, text: str, *, size: int, fill: str = INK, weight: int = 400, halo: bool = False
) -> str:
    """``halo``: a line that lies behind it, as that of the limit, leaves it legible."""
    clear = ' stroke="#ffffff" stroke-width="4" paint-order="stroke"' if halo else ""
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}"'
    return f'<text {place} fill="{fill}"{clear}>{_safe(text)}</text>'


def _safe(text: str) -> str:
    return escape(printable(text))
