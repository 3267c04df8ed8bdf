"""What versions did on a box, added up by spans of six hours, from the records that the box told: small enough to be
kept of each version and box, and whole enough that spans, and boxes, may be added up again. Pure.

Histograms are added, bucket by bucket: a percentile is read from a sum, and never made of other percentiles. A span is
of the controller's clock. A box whose clock is wrong is put right by how far ahead it was when it reported last; what
is then before its enrolment or after the telling cannot be, and counts for the span in which it came.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import isfinite
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from appliance.domain.histogram import BOUNDS_NS, HistogramValue
from appliance.domain.manifest import INT64_MAX
from appliance.fleet.documents import Count
from appliance.fleet.records import (
    BUCKETS,
    Counts,
    Energy,
    Latency,
    Loaded,
    Minute,
    ModelHistory,
    RecordInvalid,
    VersionMinute,
    decode,
)

SPAN_MS: Final = 6 * 3_600_000
OUTCOMES_MAX: Final = 64
KEYS_MAX: Final = 8192
"""Spans of versions in one batch, and versions that it says something else of, more than an honest one of its size can
hold: further ones are left out."""
JOULES_MAX: Final = 1e15
KINDS: Final = (b"\xa6minute", b"\xa6energy", b"\xa6loaded", b"\xa5model")
"""The kinds that say what versions do, in msgpack, behind the byte that begins an array."""
BLAMELESS: Final = frozenset({"abandoned", "recalled", "withdrawn"})
"""Endings that say nothing of the version, only that another was wanted, or none."""
AS_PACKAGED: Final = frozenset({"", "as packaged"})


class Deeds(Struct, frozen=True, array_like=True, kw_only=True):
    """What one version did: requests by ``outcomes``, in the order of ``records.OUTCOMES``, ``rows`` answered, time in
    the queue, of runs, and from arrival to answer, ``retries`` those run again. ``active_ms`` is how long the
    windows were in which it had requests. ``joules`` is its share of what devices used, for ``joules_rows`` rows:
    both 0 where the box does not tell."""

    outcomes: Annotated[Counts, Meta(max_length=OUTCOMES_MAX)] = ()
    rows: Count = 0
    queue: Latency = Latency()
    run: Latency = Latency()
    total: Latency = Latency()
    retries: Count = 0
    active_ms: Count = 0
    joules: float = 0.0
    joules_rows: Count = 0


class Key(NamedTuple):
    """A version in a span, which is named by the millisecond in which it begins."""

    model: str
    version: int
    span_ms: int


class Told(NamedTuple):
    """What a batch said: deeds by version and span, and of each version the last load and the last outcome of a try, as
    they came."""

    deeds: dict[Key, Deeds]
    loads: dict[tuple[str, int], bytes]
    endings: dict[tuple[str, int], bytes]


class Sum:
    """Deeds that are added up, many into one."""

    def __init__(self) -> None:
        self._outcomes: list[int] = []
        self._stages = [[0] * BUCKETS for _ in range(3)]
        self._sums = [0, 0, 0]
        self._counts = [0, 0, 0, 0]
        self._joules = 0.0

    def add(self, deeds: Deeds | VersionMinute, active_ms: int = 0) -> None:
        """And these; ``active_ms`` is said of a minute."""
        outcomes = deeds.outcomes[:OUTCOMES_MAX]
        self._outcomes.extend([0] * (len(outcomes) - len(self._outcomes)))
        for place, count in enumerate(outcomes):
            self._outcomes[place] += count
        for place, stage in enumerate((deeds.queue, deeds.run, deeds.total)):
            into = self._stages[place]
            for bucket, count in enumerate(stage.counts[: BUCKETS - stage.first], stage.first):
                into[bucket] += count
            self._sums[place] += stage.sum_ns
        joules_rows = 0
        if isinstance(deeds, Deeds):
            active_ms, joules_rows = deeds.active_ms, deeds.joules_rows
            self._joules += deeds.joules
        for place, count in enumerate((deeds.rows, deeds.retries, active_ms, joules_rows)):
            self._counts[place] += count

    @property
    def requests(self) -> int:
        """All of them, however they ended."""
        return sum(self._outcomes)

    def spent(self, joules: float, rows: int) -> None:
        """So much energy, for so many rows."""
        if isfinite(joules):
            self._joules += joules
            self._counts[3] += rows

    def deeds(self) -> Deeds:
        """All of them; what no honest box can have told is cut to what can be kept."""
        rows, retries, active_ms, joules_rows = map(_kept, self._counts)
        queue, run, total = (
            Latency.of(list(map(_kept, counts)), _kept(sum_ns))
            for counts, sum_ns in zip(self._stages, self._sums, strict=True)
        )
        return Deeds(
            outcomes=tuple(map(_kept, self._outcomes)),
            rows=rows,
            queue=queue,
            run=run,
            total=total,
            retries=retries,
            active_ms=active_ms,
            joules=min(self._joules, JOULES_MAX),
            joules_rows=joules_rows,
        )


class Clock(NamedTuple):
    """By what a box's times are put right: when its records ``came_ms``, when it was enrolled, by the controller's
    clock, and how far its own was ahead."""

    came_ms: int
    enrolled_ms: int
    ahead_ms: int

    def span_ms(self, at_ms: int) -> int:
        """The span in which that was."""
        for right_ms in (at_ms - self.ahead_ms, at_ms):  # the clock may have been put right since the report
            if self.enrolled_ms <= right_ms <= self.came_ms:
                return right_ms - right_ms % SPAN_MS
        return self.came_ms - self.came_ms % SPAN_MS


def told_in(records: Iterable[bytes], clock: Clock) -> Told:
    """What ``records`` say of versions; those that are none are passed over."""
    sums, told = dict[Key, Sum](), Told({}, {}, {})
    for data in records:
        if not data.startswith(KINDS, 1):
            continue
        try:
            record = decode(data)
        except RecordInvalid:
            continue
        match record:
            case Minute():
                for each in record.versions:
                    if any(each.outcomes) or each.retries:
                        key = Key(each.name, each.version, clock.span_ms(record.at_ms))
                        if (into := _sum(sums, key)) is not None:
                            into.add(each, record.window_ms)
            case Energy() if (slot := slot_of(record.model)) is not None:
                if (into := _sum(sums, Key(*slot, clock.span_ms(record.at_ms)))) is not None:
                    into.spent(record.joules, record.inferences)
            case Loaded():
                _keep(told.loads, record, data)
            case ModelHistory() if record.ending not in BLAMELESS and record.artifact in AS_PACKAGED:
                _keep(told.endings, record, data)
    told.deeds.update((key, found.deeds()) for key, found in sums.items())
    return told


def spans_in(records: Iterable[bytes]) -> int:
    """Of how many spans of versions ``records`` tell, about, whatever the clock: what adding them up takes goes by
    that."""
    found = set[tuple[str, int, int]]()
    for data in records:
        if data.startswith(KINDS, 1):
            with suppress(RecordInvalid):
                match record := decode(data):
                    case Minute():
                        span = record.at_ms // SPAN_MS
                        found.update((each.name, each.version, span) for each in record.versions)
                    case Energy():
                        found.add((record.model, -1, record.at_ms // SPAN_MS))
                    case Loaded() | ModelHistory():
                        found.add((record.name, record.version, -1))
    return len(found)


def slot_of(model: str) -> tuple[str, int] | None:
    """The name and number of NAME/VERSION; None: it is nothing of the kind."""
    name, slash, number = model.rpartition("/")
    if (
        not slash
        or not 0 < len(name) <= 64
        or not (number.isascii() and number.isdecimal())
        or len(number) > 18
    ):
        return None
    return name, int(number)


def quantiles(latency: Latency, fraction: float) -> tuple[float, float, float] | None:
    """The quantile in milliseconds, as its bucket has it when what is in it lies evenly, and where the bucket begins
    and ends; None: there is nothing."""
    counts = latency.dense()[:BUCKETS]
    count, seen = sum(counts), 0
    if not count:
        return None
    for bucket, here in enumerate(counts):
        seen += here
        if here and seen >= fraction * count:
            low = BOUNDS_NS[bucket - 1] if bucket else 0
            high = BOUNDS_NS[bucket] if bucket < len(BOUNDS_NS) else low
            about = HistogramValue(counts=counts, sum_ns=latency.sum_ns).quantile_ns(fraction)
            return about / 1e6, low / 1e6, high / 1e6
    return None


def added(all_of: Sequence[Deeds]) -> Deeds:
    """What all of them did."""
    found = Sum()
    for each in all_of:
        found.add(each)
    return found.deeds()


def encode_deeds(deeds: Deeds) -> bytes:
    """The bytes that are kept."""
    return msgspec.msgpack.encode(deeds)


def decode_deeds(data: bytes) -> Deeds:
    """The deeds in bytes that were kept here."""
    return _DEEDS.decode(data)


_DEEDS: Final = msgspec.msgpack.Decoder(Deeds)


def _sum(sums: dict[Key, Sum], key: Key) -> Sum | None:
    found = sums.get(key)
    if found is None and len(sums) < KEYS_MAX:
        found = sums[key] = Sum()
    return found


def _keep(last: dict[tuple[str, int], bytes], record: Loaded | ModelHistory, data: bytes) -> None:
    """It is the last one of its version."""
    key = record.name, record.version
    if last.pop(key, None) is not None or len(last) < KEYS_MAX:
        last[key] = data


def _kept(count: int) -> int:
    return min(count, INT64_MAX)
