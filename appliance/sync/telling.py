"""Telemetry on its way to the controller: what waits in the outboxes, in order, until the controller has it.

The cursor of an outbox moves by the controller's word alone, so a kill between sending and that sends again what the
controller knows by its numbers. What the agent itself has to tell goes through an outbox of its own.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from zstandard import ZstdCompressor

from appliance.durable import RealFolder, make_own_directory
from appliance.fleet import records
from appliance.fleet.messages import Acknowledged, encode
from appliance.fleet.records import Event
from appliance.outbox.outbox import Outbox, Policy
from appliance.outbox.reader import OutboxReader, Reading
from appliance.store.layout import OUTBOX
from appliance.sync.budget import TELEMETRY
from appliance.sync.link import Link
from appliance.sync.outboxes import STREAMS, batch_of, waiting_bytes

Spend = Callable[[str, int], Awaitable[None]]
"""Returns when so many bytes of that class may go. Raises LinkFailed where they may not."""
OWN: Final = "sync"
BATCH_BYTES: Final = 128 << 10
"""Of records before they are compressed: a second of a thin link, so that a poll does not wait for longer."""
RECORDS_MAX: Final = 16_384
SPELL_S: Final = 10.0
"""For how long batches are sent before the controller is asked again what is wanted."""
EVENTS_MAX: Final = 256
"""Of the agent's own that wait to be written; further ones are left out, the log has them."""
SHARE: Final = 16
"""The agent's own outbox may take one part of so many of what telemetry may."""
FIELD_CHARACTERS: Final = 1_000


class Telling:
    """The outboxes of the box with the state directory ``state``. Owner: the event loop; what blocks for the disk does
    so in its thread, for a few milliseconds."""

    def __init__(self, state: Path, limit_bytes: int) -> None:
        self._place = state / OUTBOX
        self._limit_bytes = max(limit_bytes // SHARE, 1 << 16)
        self._events: list[Event] = []
        self._folder: RealFolder | None = None
        self._outbox: Outbox | None = None
        self._compressor = ZstdCompressor(level=6)

    def note(self, event: str, at_ms: int, fields: dict[str, object]) -> None:
        """Have it told; what a person reads in the log."""
        if len(self._events) < EVENTS_MAX:
            said = {key: str(value)[:FIELD_CHARACTERS] for key, value in fields.items()}
            self._events.append(Event(at_ms=max(at_ms, 0), what=event, fields=said))

    async def send(self, link: Link, spend: Spend) -> bool:
        """Send what waits, for a spell, and as ``spend`` allows; whether more does. Raises LinkFailed and OSError."""
        self._write()
        end_s = time.monotonic() + SPELL_S
        for stream in STREAMS:
            if not (self._place / stream).is_dir():
                continue
            with closing(RealFolder(self._place / stream)) as folder:
                reader = OutboxReader(folder)
                while reading := reader.read(BATCH_BYTES, RECORDS_MAX):
                    if time.monotonic() > end_s:
                        return True
                    body = self._compressor.compress(encode(batch_of(stream, reading)))
                    await spend(TELEMETRY, len(body) + link.OVERHEAD)
                    if not _moved(reader, stream, reading, await link.telemetry(body)):
                        break
        return False

    def waiting_bytes(self) -> int:
        """What waits to be sent. Raises OSError."""
        return waiting_bytes(self._place.parent)

    def _write(self) -> None:
        """Have the agent's own events on the disk. Raises OSError; then they are tried again."""
        if not self._events:
            return
        if self._outbox is None:
            for each in (self._place, self._place / OWN):
                make_own_directory(each)
            self._folder = RealFolder(self._place / OWN)
            self._outbox = Outbox(self._folder, self._limit_bytes, Policy.DROP_OLDEST)
        self._outbox.append([records.encode(each) for each in self._events])
        self._events.clear()

    def close(self) -> None:
        """Let go of the files; what was not written is in the log."""
        if self._outbox is not None and self._folder is not None:
            self._outbox.close()
            self._folder.close()
            self._outbox = None


def _moved(reader: OutboxReader, stream: str, reading: Reading, said: Acknowledged) -> bool:
    """Move the cursor as far as the controller says; whether it has all that was sent. Raises OSError."""
    if (said.stream, said.epoch) != (stream, reading.epoch) or said.next <= reading.first:
        return False
    reader.acknowledge(reading.epoch, min(said.next, reading.end))
    return said.next >= reading.end
