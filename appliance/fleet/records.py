"""What a box tells of itself, one value after another: figures of each minute, health, inventory, events, the history
of its models, energy, and what was lost of all this. docs/FLEET.md has the same for readers in other languages.

A record is a msgpack array: its kind, its schema, then the fields in order. A reader takes fewer fields than it knows
for defaults and ignores more; a field is never removed and never changes its meaning, the next schema adds a kind.
Counts are of their window alone, so records are added up, in any order and over any boxes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from appliance.domain.histogram import BOUNDS_NS
from appliance.fleet.documents import Count, Name, Text

SCHEMA: Final = 1
RECORD_BYTES_MAX: Final = 1 << 20
OUTCOMES: Final = ("success", "invalid", "refused", "expired", "cancelled", "failed", "unavailable")
"""The order of the counts in ``VersionMinute.outcomes``; further ones come at the end."""
BUCKETS: Final = len(BOUNDS_NS) + 1

Short = Annotated[str, Meta(max_length=256)]
Counts = tuple[Count, ...]


class Latency(Struct, frozen=True, array_like=True):
    """A histogram of durations: how many fell into each bucket from ``first`` on, up to the last one that is not
    empty, and their sum. Bucket N ends at the bound N of docs/FLEET.md, which never change, so that adding the counts
    loses nothing; the last has no end."""

    first: Annotated[int, Meta(ge=0, lt=BUCKETS)] = 0
    counts: Annotated[Counts, Meta(max_length=BUCKETS)] = ()
    sum_ns: Count = 0

    @classmethod
    def of(cls, counts: Sequence[int], sum_ns: int) -> Latency:
        """The same as counts of all buckets."""
        filled = [bucket for bucket, count in enumerate(counts) if count]
        if not filled:
            return cls()
        return cls(filled[0], tuple(counts[filled[0] : filled[-1] + 1]), sum_ns)

    def dense(self) -> tuple[int, ...]:
        """The counts of all buckets."""
        after = BUCKETS - self.first - len(self.counts)
        return (0,) * self.first + self.counts + (0,) * after

    def __add__(self, other: Latency) -> Latency:
        """What both counted."""
        both = [mine + theirs for mine, theirs in zip_longest(self.dense(), other.dense(), fillvalue=0)]
        return Latency.of(both, self.sum_ns + other.sum_ns)


class VersionMinute(Struct, frozen=True, array_like=True, kw_only=True):
    """What one version did: requests by ``outcomes``, in the order of OUTCOMES and up to the last that is not nought;
    ``rows`` answered; time waited, run, and from arrival to answer; ``batches`` as (rows, how often); requests that
    were ``queued`` at the end; ``retries`` after a worker died; ``state`` at the end."""

    name: Name
    version: Count
    outcomes: Annotated[Counts, Meta(max_length=64)] = ()
    rows: Count = 0
    queue: Latency = Latency()
    run: Latency = Latency()
    total: Latency = Latency()
    batches: Annotated[tuple[tuple[Count, Count], ...], Meta(max_length=512)] = ()
    queued: Count = 0
    retries: Count = 0
    state: Short = ""


class Record(Struct, frozen=True, array_like=True, kw_only=True, tag_field="kind"):
    """What all have: the ``schema``, and when it was by the box's wall clock, which may be wrong."""

    schema: Annotated[int, Meta(ge=1)] = SCHEMA
    at_ms: Count = 0


class Minute(Record, frozen=True, array_like=True, kw_only=True, tag="minute"):
    """What was done in the ``window_ms`` before, by the monotonic clock, ``uptime_ms`` after the daemon began: by
    versions that did something or changed their state; ``swaps`` and ``fronts`` are counts by name that are not
    nought."""

    window_ms: Count
    uptime_ms: Count
    versions: Annotated[tuple[VersionMinute, ...], Meta(max_length=4096)] = ()
    swaps: Mapping[Short, Count] = {}
    fronts: Mapping[Short, Count] = {}


class Health(Record, frozen=True, array_like=True, kw_only=True, tag="health"):
    """How the box is: whether it takes requests, what it has to do, memory, workers and their restarts since the start,
    the store; ``notices`` are what people should see coming."""

    uptime_ms: Count
    accepting: bool
    queued: Count = 0
    running: Count = 0
    workers: Count = 0
    restarts: Count = 0
    memory_bytes: Count = 0
    models_bytes: Count = 0
    models_limit_bytes: Count = 0
    store_bytes: Count = 0
    store_free_bytes: Count = 0
    store_damaged: Count = 0
    notices: Annotated[tuple[Text, ...], Meta(max_length=64)] = ()


class Inventory(Record, frozen=True, array_like=True, kw_only=True, tag="inventory"):
    """What the box is made of, told at each start and when it changes."""

    facts: Mapping[Short, Text]


class Event(Record, frozen=True, array_like=True, kw_only=True, tag="event"):
    """A line of the log that tells what happened to the box, not to a request."""

    what: Text
    trouble: bool = False
    fields: Mapping[Short, Text] = {}


class ModelHistory(Record, frozen=True, array_like=True, kw_only=True, tag="model"):
    """How the try of a version came out. ``sequence`` counts on this box's lines for ever: what was told is told again
    after some losses, and is known by it. ``before`` and ``after`` are what served (0: none)."""

    sequence: Count
    name: Name
    version: Count
    identity: Text
    ending: Short
    before: Count = 0
    after: Count = 0
    stage: Short = ""
    reason: Text = ""
    took_ms: Count = 0
    artifact: Short = ""


class Energy(Record, frozen=True, array_like=True, kw_only=True, tag="energy"):
    """What a ``device`` used in a window, all that it did taken together, and the rows that were answered meanwhile;
    ``method`` is how it was measured. Of a ``model``, NAME/VERSION, it is its share of what the device used above idle.
    Boxes whose devices do not tell send none. ``cost`` is what the joules cost, in the currency of the box's
    ``metrics.kwh_price`` (0: it has none)."""

    device: Short
    method: Short
    window_ms: Count
    joules: Annotated[float, Meta(ge=0)]
    inferences: Count = 0
    model: Short = ""
    cost: Annotated[float, Meta(ge=0)] = 0.0


class Loaded(Record, frozen=True, array_like=True, kw_only=True, tag="loaded"):
    """A version as its last load left it: on which ``device`` of the box, how long the load took, what it takes in
    memory now; how it stood its golden set: of so many ``cases`` (0: it was not held to one), which promise it broke
    (``failure``, "": none), and how far off its answers were at most, over all outputs, ``absolute`` and ``relative``
    to the right value; how long its runs took then. Told when that changes, and once a day."""

    name: Name
    version: Count
    device: Short = ""
    load_ms: Count = 0
    memory_bytes: Count = 0
    cases: Count = 0
    failure: Text = ""
    absolute: Annotated[float, Meta(ge=0)] = 0.0
    relative: Annotated[float, Meta(ge=0)] = 0.0
    run_p50_ns: Count = 0
    run_p99_ns: Count = 0
    packed: bool = False


class Lost(Record, frozen=True, array_like=True, kw_only=True, tag="lost"):
    """The numbers ``first`` to ``last`` of ``epoch`` will not come, because of ``reason``: "bound" (the outbox was
    full), "damaged" (the disk gave back something else than was written), "cut" (a write failed, or a crash cut it: the
    box has not counted on them). ``counts`` are by class: those of a stream are all of one."""

    epoch: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$(?!\n)")]
    first: Count
    last: Count
    reason: Short
    counts: Mapping[Short, Count] = {}


AnyRecord = Minute | Health | Inventory | Event | ModelHistory | Energy | Loaded | Lost

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[AnyRecord]] = msgspec.msgpack.Decoder(AnyRecord)


class RecordInvalid(ValueError):
    """Bytes that are no record of a kind that is known here."""


def encode(record: AnyRecord) -> bytes:
    """The record's bytes."""
    return _ENCODER.encode(record)


def decode(data: bytes) -> AnyRecord:
    """The record in ``data``. Raises RecordInvalid."""
    if len(data) > RECORD_BYTES_MAX:
        raise RecordInvalid(f"a record has {len(data)} bytes; the limit is {RECORD_BYTES_MAX}")
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RecordInvalid(f"is no record: {error}") from error
