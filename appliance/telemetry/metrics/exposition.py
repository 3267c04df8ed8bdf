"""The Prometheus text format (0.0.4), written family by family in small pieces.

Pure. A box with a thousand models has some 200,000 samples. The Prometheus client library takes 3 to 20 us
for each of them and gives the text in one go, which would hold up requests for a second; this writer takes a
tenth of a microsecond or two, and the sender of the text decides after how much of it others get their turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final, NamedTuple

from appliance.domain.histogram import BOUNDS_US, HistogramValue

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_LE: Final = (*(repr(bound / 1_000_000) for bound in BOUNDS_US), "+Inf")


class Family(NamedTuple):
    """A metric: its name, type (counter, gauge, histogram), meaning, and the text of its samples, made when
    read."""

    name: str
    kind: str
    meaning: str
    samples: Iterable[str]


def exposition(families: Iterable[Family]) -> Iterator[str]:
    """The text of ``families``, piece by piece; families without samples are left out."""
    for family in families:
        head = f"# HELP {family.name} {_escaped_help(family.meaning)}\n# TYPE {family.name} {family.kind}\n"
        for sample in family.samples:
            if head:
                yield head
                head = ""
            yield sample


def label_text(labels: Mapping[str, str]) -> str:
    """Labels as they stand between braces: ``name="value",...``."""
    return ",".join(f'{name}="{_escaped_label(value)}"' for name, value in labels.items())


def sample(name: str, labels: str, value: float) -> str:
    """One line; ``labels`` as label_text gives them, or ""."""
    return f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n"


def histogram_sample(name: str, labels: str, value: HistogramValue) -> str:
    """All lines of one histogram, in seconds."""
    start = f'{name}_bucket{{{labels}{"," if labels else ""}le="'
    counts = list(accumulate(value.counts))
    lines = [f'{start}{bound}"}} {count}\n' for bound, count in zip(_LE, counts, strict=True)]
    lines.append(sample(f"{name}_sum", labels, value.sum_ns / 1_000_000_000))
    lines.append(sample(f"{name}_count", labels, counts[-1]))
    return "".join(lines)


def _escaped_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escaped_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def family(name: str, meaning: str, values: Iterable[tuple[str, float]]) -> Family:
    """A family of one line per (labels, value): a counter if its name ends as those of counters do, else a gauge."""
    kind = "counter" if name.endswith("_total") else "gauge"
    return Family(name, kind, meaning, (sample(name, labels, value) for labels, value in values))


def split(name: str, meaning: str, label: str, values: Mapping[str, float]) -> Family:
    """A family of one line per value of its only label."""
    return family(name, meaning, [(label_text({label: word}), value) for word, value in values.items()])


def singles(rows: Iterable[tuple[str, str, float]]) -> Iterator[Family]:
    """Families of one line without labels, by name, meaning and value."""
    return (family(name, meaning, [("", value)]) for name, meaning, value in rows)
