"""The Prometheus text format (0.0.4) and OpenMetrics (1.0), written family by family in small pieces.

Pure. A box with a thousand models has some 200,000 samples. The Prometheus client library takes 3 to 20 us
for each of them and gives the text in one go, which would hold up requests for a second; this writer takes a
tenth of a microsecond or two, and the sender of the text decides after how much of it others get their turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final, NamedTuple

from appliance.domain.histogram import BOUNDS_US, HistogramValue
from appliance.telemetry.exemplars import NONE, Buckets, Exemplar

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text"
OPENMETRICS_TYPE: Final = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"
OPENMETRICS_END: Final = "# EOF\n"
TOTAL: Final = "_total"

_LE: Final = (*(repr(bound / 1_000_000) for bound in BOUNDS_US), "+Inf")


class Family(NamedTuple):
    """A metric: its name, type (counter, gauge, histogram), meaning, and the text of its samples, made when
    read."""

    name: str
    kind: str
    meaning: str
    samples: Iterable[str]


def exposition(families: Iterable[Family], *, openmetrics: bool = False) -> Iterator[str]:
    """The text of ``families``, piece by piece; families without samples are left out. That of ``openmetrics`` ends
    with OPENMETRICS_END, which is left to the caller: more may follow."""
    for family in families:
        name, kind = _openmetrics(family) if openmetrics else (family.name, family.kind)
        head = f"# HELP {name} {_escaped_help(family.meaning, openmetrics)}\n# TYPE {name} {kind}\n"
        for sample in family.samples:
            if head:
                yield head
                head = ""
            yield sample


def _openmetrics(family: Family) -> tuple[str, str]:
    """Name and type there. Samples of counters end in ``_total`` and their families do not; a counter that is called
    otherwise, as on other people's dashboards, keeps its name and says no type. When counters began (``_created``) is
    not told for each: with the process, for which process_start_time_seconds is there."""
    if family.kind != "counter":
        return family.name, family.kind
    if family.name.endswith(TOTAL):
        return family.name.removesuffix(TOTAL), "counter"
    return family.name, "unknown"


def label_text(labels: Mapping[str, str]) -> str:
    """Labels as they stand between braces: ``name="value",...``."""
    return ",".join(f'{name}="{_escaped_label(value)}"' for name, value in labels.items())


def sample(name: str, labels: str, value: float) -> str:
    """One line; ``labels`` as label_text gives them, or ""."""
    return f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n"


def histogram_sample(name: str, labels: str, value: HistogramValue, exemplars: Buckets = NONE) -> str:
    """All lines of one histogram, in seconds; ``exemplars`` are for OpenMetrics alone."""
    start = f'{name}_bucket{{{labels}{"," if labels else ""}le="'
    counts = list(accumulate(value.counts))
    lines = [f'{start}{bound}"}} {count}\n' for bound, count in zip(_LE, counts, strict=True)]
    for bucket, exemplar in exemplars.items():
        lines[bucket] = f"{lines[bucket][:-1]}{_exemplar_text(exemplar)}\n"
    lines.append(sample(f"{name}_sum", labels, value.sum_ns / 1_000_000_000))
    lines.append(sample(f"{name}_count", labels, counts[-1]))
    return "".join(lines)


def _escaped_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _exemplar_text(exemplar: Exemplar) -> str:
    return f' # {{trace_id="{exemplar.trace_id}"}} {exemplar.ns / 1_000_000_000} {exemplar.at_ns / 1_000_000_000:.3f}'


def _escaped_help(text: str, openmetrics: bool) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return escaped.replace('"', '\\"') if openmetrics else escaped


def family(name: str, meaning: str, values: Iterable[tuple[str, float]]) -> Family:
    """A family of one line per (labels, value): a counter if its name ends as those of counters do, else a gauge."""
    kind = "counter" if name.endswith(TOTAL) else "gauge"
    return Family(name, kind, meaning, (sample(name, labels, value) for labels, value in values))


def split(name: str, meaning: str, label: str, values: Mapping[str, float]) -> Family:
    """A family of one line per value of its only label."""
    return family(name, meaning, [(label_text({label: word}), value) for word, value in values.items()])


def singles(rows: Iterable[tuple[str, str, float]]) -> Iterator[Family]:
    """Families of one line without labels, by name, meaning and value."""
    return (family(name, meaning, [("", value)]) for name, meaning, value in rows)
