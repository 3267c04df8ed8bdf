"""A series of figures as a small picture: SVG text that needs no script and takes its colours from the page's style."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 360
HEIGHT: Final = 64
_PAD: Final = 2


class Series(NamedTuple):
    """Values, oldest first, by what they are called and the CSS class of their line."""

    name: str
    kind: str
    values: Sequence[float]


class Span(NamedTuple):
    """The time that a picture is of: how many values there would be of it, and how its beginning is called."""

    points: int
    since: str


def sparkline(values: Sequence[float], span: Span, label: str) -> str:
    """A line without axes, for a cell of a table."""
    scale = _Scale(96, 20, span.points, max(values, default=0.0))
    return _svg("spark", scale, label, scale.line(values, "line"))


def plot(title: str, series: Sequence[Series], span: Span, spoken: Callable[[float], str]) -> str:
    """A figure of one or more series against their common largest value, which is told as ``spoken`` has it."""
    largest = max((value for each in series for value in each.values), default=0.0)
    scale = _Scale(WIDTH, HEIGHT, span.points, largest)
    lines = "".join(scale.line(each.values, each.kind) for each in series)
    latest = [(each, spoken(each.values[-1]) if each.values else "–") for each in series]
    label = f"{title} since {span.since}: {', '.join(f'{each.name} {now} now' for each, now in latest)}"
    legend = " ".join(
        f'<span class="key {each.kind}">{escape(each.name)} <b>{escape(now)}</b></span>'
        for each, now in latest
    )
    return (
        f"<figure><figcaption><h3>{escape(title)}</h3>{legend}"
        f'<span class="quiet">at most {escape(spoken(largest))}</span></figcaption>'
        f"{_svg('plot', scale, f'{label}; at most {spoken(largest)}', lines)}"
        f'<div class="axis quiet"><span>{escape(span.since)}</span><span>now</span></div></figure>'
    )


class _Scale(NamedTuple):
    """The picture's size, how many points its width is for, and the value at its top."""

    width: int
    height: int
    points: int
    largest: float

    def line(self, values: Sequence[float], kind: str) -> str:
        """The values as a line, whose end is now."""
        if not values:
            return ""
        step, room = self.width / max(self.points - 1, 1), self.height - 2 * _PAD
        first = self.width - step * (len(values) - 1)
        places = (
            f"{first + step * number:.1f} {self.height - _PAD - room * (value / (self.largest or 1.0)):.1f}"
            for number, value in _thinned(values)
        )
        return f'<path class="{kind}" d="M{" L".join(places)}" vector-effect="non-scaling-stroke"/>'


def _svg(kind: str, scale: _Scale, label: str, inside: str) -> str:
    return (
        f'<svg class="{kind}" role="img" aria-label="{escape(label, quote=True)}" '
        f'viewBox="0 0 {scale.width} {scale.height}" preserveAspectRatio="none">{inside}</svg>'
    )


def _thinned(values: Sequence[float]) -> Iterator[tuple[int, float]]:
    """Points that can be told apart: of a run of equal values the first and the last."""
    last = len(values) - 1
    for number, value in enumerate(values):
        if number in (0, last) or not values[number - 1] == value == values[number + 1]:
            yield number, value
