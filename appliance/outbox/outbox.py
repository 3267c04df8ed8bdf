"""The producer's end of an outbox: what it acknowledges survives a power cut, in order.

Callers of any thread append; whoever comes first writes for all that wait and syncs once (group commit). A segment that
could not be written is left as it is, and the next one begins after the numbers that were tried, so a full or failing
disk costs what was told to have failed and nothing else. Reading is another process's: ``reader``.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import pairwise
from types import TracebackType
from typing import Final, Self

from appliance.domain.errors import ApplianceError
from appliance.durable import Folder, NewFile, remove_file
from appliance.outbox.segment import (
    OVERHEAD_BYTES,
    Header,
    encode_header,
    encode_mark,
    encode_record,
    proven_in,
)
from appliance.outbox.shelf import (
    SEGMENT_BYTES_MAX,
    read_cursor,
    read_segment,
    segment_bytes,
    segment_name,
    segments,
    set_aside,
)

SEGMENTS: Final = 16
"""Into how many an outbox is cut, at most so large; the oldest one is what goes at once."""
SEGMENT_BYTES_LEAST: Final = 4096
COMMIT_BYTES_MAX: Final = 8 << 20
_NEW: Final = "next.new"
_WRITABLE: Final = 0o600


class Policy(Enum):
    """What becomes of records where the bound is hit."""

    DROP_OLDEST = "drop oldest"
    REFUSE = "refuse"


class OutboxFull(ApplianceError):
    """An outbox whose records must not be dropped has no room: what came last was not taken."""


class _Wish:
    """Payloads that somebody waits for."""

    __slots__ = ("_done", "error", "first", "payloads")

    def __init__(self, payloads: Sequence[bytes]) -> None:
        self.payloads = payloads
        self.first = -1
        self.error: BaseException | None = None
        self._done = False

    def end(self, first: int, error: BaseException | None) -> None:
        """They are on the disk from the number ``first`` on, or there was an ``error``."""
        self.first, self.error, self._done = first, error, True

    def ended(self) -> bool:
        """Whether it is known what became of them."""
        return self._done

    def result(self) -> int:
        """The first number; raises the error."""
        if self.error is not None:
            raise self.error
        return self.first


class Outbox:
    """See the module. ``folder`` is the outbox's own, held by its one producer; ``limit_bytes`` bounds all segments.
    Raises OSError when it cannot be read."""

    def __init__(
        self,
        folder: Folder,
        limit_bytes: int,
        policy: Policy,
        new_epoch: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._folder = folder
        self._limit = limit_bytes
        self._policy = policy
        self._segment_bytes = min(max(limit_bytes // SEGMENTS, SEGMENT_BYTES_LEAST), SEGMENT_BYTES_MAX // 2)
        self._changed = threading.Condition()
        self._waiting: list[_Wish] = []
        self._busy = False
        self._file: NewFile | None = None
        self._sizes: dict[int, int] = {}
        """Bytes of each segment by its first number, ascending; the last one is written to, if a file is open."""
        self._carried: list[bytes] = []
        """Records that a crash left unmarked, which go before all else with the next commit."""
        self.epoch = ""
        self.next = 0
        self._sure = 0
        """From it to the next one no record is: writes of them failed, or a crash cut them."""
        self._recover(new_epoch)

    def append(self, payloads: Sequence[bytes]) -> int:
        """Keep ``payloads``; returns the number of the first when all are on the disk. Raises OutboxFull and OSError;
        then none of them was taken. Raises ValueError for one that is empty or longer than RECORD_BYTES_MAX."""
        for payload in payloads:
            encode_record(0, payload)
        wish = _Wish(payloads)
        with self._changed:
            self._waiting.append(wish)
            self._changed.wait_for(lambda: wish.ended() or not self._busy)
            if wish.ended():
                return wish.result()
            self._busy = True
        try:
            while not wish.ended():
                with self._changed:
                    turn = self._turn()
                self._commit(turn)
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
        return wish.result()

    def close(self) -> None:
        """Let go of the segment that is open."""
        self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def size_bytes(self) -> int:
        """What all segments take."""
        return sum(self._sizes.values())

    # --- committing: one thread at a time, the one that is busy

    def _turn(self) -> list[_Wish]:
        """Who is written for now: as many of those that wait as one commit may hold, one at least."""
        total, taken = 0, 0
        for wish in self._waiting:
            total += sum(map(len, wish.payloads))
            if taken and total > COMMIT_BYTES_MAX:
                break
            taken += 1
        turn, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return turn

    def _commit(self, turn: list[_Wish]) -> None:
        error: BaseException | None = None
        first = self.next
        payloads = [payload for wish in turn for payload in wish.payloads]
        try:
            self._make_room(sum(map(len, payloads)) + OVERHEAD_BYTES * len(payloads))
            first = self._write(payloads)
        except (OSError, OutboxFull) as failure:
            error = failure
        with self._changed:
            for wish in turn:
                wish.end(first, error)
                first += len(wish.payloads)
            self._changed.notify_all()

    def _write(self, payloads: list[bytes]) -> int:
        """Have them on the disk; gives the number of the first."""
        whole = [*self._carried, *payloads]
        data = b"".join(encode_record(self.next + index, payload) for index, payload in enumerate(whole))
        last = next(reversed(self._sizes), 0)
        try:
            if self._file is None or self._sizes[last] + len(data) > self._segment_bytes:
                self._begin_segment(data)
            else:
                self._continue_segment(last, data, len(whole))
        except OSError:
            self._leave()
            raise
        first = self.next + len(self._carried)
        self.next += len(whole)
        if whole:
            self._sure = self.next
        self._carried = []
        self._mark()
        return first

    def _mark(self) -> None:
        """Tell the reader; where that fails the next segment tells it."""
        mark = encode_mark(self.next)
        assert self._file is not None
        try:
            self._file.write(mark)
            self._sizes[next(reversed(self._sizes))] += len(mark)
        except OSError:
            self._leave()

    def _continue_segment(self, first: int, data: bytes, count: int) -> None:
        """Have ``data`` at the end of the segment that is open. Where that fails its numbers are gone: the reader may
        find them there."""
        assert self._file is not None
        try:
            self._file.write(data)
            self._file.sync()
        except OSError:
            self.next += count
            raise
        finally:
            self._sizes[first] += len(data)

    def _begin_segment(self, data: bytes) -> None:
        """Have ``data`` in a segment of its own. What has its name holds nothing that is not in ``data``, if it was
        acknowledged, so it is replaced."""
        self._leave()
        remove_file(self._folder, _NEW)
        self._file = self._folder.create(_NEW, _WRITABLE)
        header = encode_header(Header(self.epoch, self.next, self._sure))
        self._file.write(header + data)
        self._file.sync()
        self._folder.rename(_NEW, segment_name(self.next))
        self._sizes[self.next] = len(header) + len(data)
        self._folder.sync_directory("")

    def _leave(self) -> None:
        """Write no more to the segment that is open."""
        if self._file is not None:
            file, self._file = self._file, None
            file.__exit__(None, None, None)

    # --- room

    def _make_room(self, size: int) -> None:
        """Have room for ``size`` bytes: what the receiver has goes first, then, where the policy is so, the oldest; the
        reader tells of what it finds missing. Raises OutboxFull."""
        if self.size_bytes + size <= self._limit:
            return
        self.trim()
        if self._policy is Policy.DROP_OLDEST:
            for first, after in pairwise(list(self._sizes)):
                if self.size_bytes + size <= self._limit:
                    break
                self._remove(first, after)
        elif self.size_bytes + size > self._limit:
            raise OutboxFull(
                f"the outbox has {self.size_bytes} of {self._limit} bytes and keeps all until they are sent; "
                "have the agent reach its controller, carry them by a bundle, or raise fleet.outbox_bytes"
            )

    def trim(self) -> None:
        """Remove segments of which the receiver has everything, but the last one, which has the next number."""
        arrived = self._arrived()
        firsts = list(self._sizes)
        for first, after in pairwise(firsts):
            if after <= arrived:
                self._remove(first, after)

    def _arrived(self) -> int:
        cursor = read_cursor(self._folder)
        return cursor.next if cursor.epoch == self.epoch else 0

    def _remove(self, first: int, after: int) -> None:
        """Remove the segment with the numbers from ``first`` to before ``after``; one that is damaged is set aside.
        Raises OSError."""
        name = segment_name(first)
        contents = read_segment(self._folder, name)
        if contents is None or contents.end < min(contents.proven, after):
            set_aside(self._folder, name)
        else:
            remove_file(self._folder, name)
        del self._sizes[first]
        self._folder.sync_directory("")  # else a power cut may bring it back, and keep the next one away

    # --- opening

    def _recover(self, new_epoch: Callable[[], str]) -> None:
        """Learn what is there, and carry over what a crash left unmarked: it may be acknowledged, and it may not be on
        the disk."""
        found = segments(self._folder)
        for first, name in found:
            status = self._folder.status(name)
            self._sizes[first] = status.size if status else 0
        self.epoch = next((each for each in map(self._epoch_of, reversed(found)) if each), "")
        if not found or not self.epoch:
            for _, name in found:
                set_aside(self._folder, name)
            self._sizes.clear()
            self.epoch = new_epoch()
            return
        first, name = found[-1]
        contents = read_segment(self._folder, name)
        if contents is not None:
            # Bytes that do not check may have been records that arrived, so their numbers are not given out again.
            spoilt = -(-contents.rest_bytes // OVERHEAD_BYTES)
            self.next = max(contents.end + spoilt if spoilt else contents.marked, self._arrived())
            self._carried = [] if spoilt else list(contents.between(self.next, contents.end))
            held = max(contents.end, contents.proven) if spoilt else self.next
            self._sure = held if held > first else contents.header.sure
        else:
            self.next = max(first + SEGMENT_BYTES_MAX, self._arrived())  # it cannot have had so many
            self._sure = max(proven_in(segment_bytes(self._folder, name)), first)
            set_aside(self._folder, name)
            del self._sizes[first]
        try:
            self._write([])  # a segment of its own: what the one before holds is to be read up to its end
        except OSError:
            return  # it comes with what is appended first

    def _epoch_of(self, found: tuple[int, str]) -> str:
        contents = read_segment(self._folder, found[1])
        return contents.header.epoch if contents is not None else ""
