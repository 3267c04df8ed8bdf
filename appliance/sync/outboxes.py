"""The outboxes of a box, ``outbox/STREAM`` below its state directory: what waits in them, and what arrived."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from appliance.durable import RealFolder
from appliance.fleet.messages import TELEMETRY_BYTES_MAX, Acknowledged, Batch
from appliance.fleet.records import Lost
from appliance.outbox.reader import OutboxReader, Reading
from appliance.outbox.shelf import Cursor
from appliance.store.layout import OUTBOX

STREAMS: Final = ("serve", "history", "sync")
BATCH_BYTES: Final = TELEMETRY_BYTES_MAX // 2
"""Of records before they are compressed: no batch is too large to be sent, even if they do not compress."""
RECORDS_MAX: Final = 65_536


def streams(state: Path) -> tuple[str, ...]:
    """The outboxes that there are."""
    return tuple(each for each in STREAMS if (state / OUTBOX / each).is_dir())


def waiting(state: Path) -> Iterator[Batch]:
    """All that was not acknowledged; the cursors on the disk stay. Raises OSError."""
    for stream in streams(state):
        with closing(RealFolder(state / OUTBOX / stream)) as folder:
            reader = OutboxReader(folder)
            while reading := reader.read(BATCH_BYTES, RECORDS_MAX):
                yield batch_of(stream, reading)
                reader.cursor = Cursor(reading.epoch, reading.end)


def waiting_bytes(state: Path) -> int:
    """What waits to be sent. Raises OSError."""
    total = 0
    for stream in streams(state):
        with closing(RealFolder(state / OUTBOX / stream)) as folder:
            reader = OutboxReader(folder)
            total += reader.waiting_bytes() if reader.read(1, 1) else 0
    return total


def batch_of(stream: str, reading: Reading) -> Batch:
    """What was read from that outbox, as it is sent: records, and what will not come before them."""
    lost = tuple(
        Lost(epoch=each.epoch, first=each.first, last=each.last, reason=each.reason.value)
        for each in reading.lost
    )
    return Batch(stream=stream, epoch=reading.epoch, first=reading.first, records=reading.payloads, lost=lost)


def acknowledge(state: Path, arrived: Acknowledged) -> None:
    """Have the records that arrived not sent again, where they are of the epoch that is being read and further on.
    Nobody else moves the cursor meanwhile. Raises OSError."""
    if arrived.stream not in streams(state):
        return
    with closing(RealFolder(state / OUTBOX / arrived.stream)) as folder:
        reader = OutboxReader(folder)
        reading = reader.read(1, 1)
        if reading and reading.epoch == arrived.epoch and arrived.next > reader.cursor.next:
            reader.acknowledge(arrived.epoch, arrived.next)
