"""The sender's end of an outbox: reads what is on the disk for good, in order, and notes what the receiver has.

A hole in the numbers between the cursor and what comes next is a loss: of a segment that the producer had to drop or
that the disk damaged, or of a write that failed. It is told with what comes after it, and why.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from appliance.durable import Folder
from appliance.outbox.gap import Gap, Reason
from appliance.outbox.segment import Contents, Header
from appliance.outbox.shelf import Cursor, read_cursor, read_segment, segments, was_set_aside, write_cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Records of one epoch with numbers one after another, from ``first``, or none; ``lost`` is what is missing before,
    to be told of, for good, before the reading is acknowledged."""

    epoch: str
    first: int
    payloads: tuple[bytes, ...]
    lost: tuple[Gap, ...] = ()

    @property
    def end(self) -> int:
        """The number after the last one, where the next reading goes on."""
        return self.first + len(self.payloads)


class OutboxReader:
    """See the module. ``folder`` is the outbox's own; all but its cursor is the producer's. Raises OSError."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.cursor = self._noted = read_cursor(folder)

    def read(self, bytes_max: int, records_max: int) -> Reading | None:
        """What comes after the cursor, at most so much, one record at least; None when there is nothing."""
        found = segments(self._folder)
        before: Reason | None = None
        for (first, name), end in zip_longest(found, [each for each, _ in found[1:]]):
            if end is not None and end <= self.cursor.next and first < self.cursor.next:
                continue  # numbers grow from epoch to epoch, too
            try:
                contents = read_segment(self._folder, name)
            except FileNotFoundError:
                continue  # the producer has removed it meanwhile
            if contents is None:
                before = Reason.DAMAGED
                continue
            bound = contents.marked if end is None else min(contents.end, end)
            begin = self._next_of(contents)
            at = max(begin, contents.header.first)
            if at < bound or begin < at:
                payloads = _as_many(contents.between(at, bound), bytes_max, records_max)
                lost = tuple(self._lost(contents.header, begin, before))
                return Reading(epoch=contents.header.epoch, first=at, payloads=payloads, lost=lost)
            before = Reason.DAMAGED  # whatever was acknowledged and is not in it
        return None

    def acknowledge(self, epoch: str, end: int) -> None:
        """The receiver has all of ``epoch`` before the number ``end``, on its disk."""
        # Also where it cannot be noted: the producer may see it all the same.
        self.cursor = Cursor(epoch, end)
        if self.cursor != self._noted:
            write_cursor(self._folder, self.cursor)
            self._noted = self.cursor

    def waiting_bytes(self) -> int:
        """What all segments take that are not passed."""
        found = segments(self._folder)
        statuses = (
            self._folder.status(name)
            for (_, name), end in zip_longest(found, [each for each, _ in found[1:]])
            if end is None or end > self.cursor.next
        )
        return sum(status.size for status in statuses if status)

    def _next_of(self, contents: Contents) -> int:
        """Where reading goes on in the epoch of ``contents``."""
        return self.cursor.next if contents.header.epoch == self.cursor.epoch else 0

    def _lost(self, header: Header, begin: int, before: Reason | None) -> Iterator[Gap]:
        """Why the numbers from ``begin`` to the segment's first are missing. ``before``: why those are that had been
        acknowledged, where the segment before it is still there."""
        sure = min(max(begin, header.sure), header.first)
        if begin < sure:
            set_aside = was_set_aside(self._folder, begin, sure)
            reason = before or (Reason.DAMAGED if set_aside else Reason.BOUND)
            yield Gap(header.epoch, begin, sure - 1, reason)
        if max(begin, sure) < header.first:
            yield Gap(header.epoch, max(begin, sure), header.first - 1, Reason.CUT)


def _as_many(payloads: tuple[bytes, ...], bytes_max: int, records_max: int) -> tuple[bytes, ...]:
    total, count = 0, 0
    for payload in payloads[:records_max]:
        total += len(payload)
        if count and total > bytes_max:
            break
        count += 1
    return payloads[:count]
