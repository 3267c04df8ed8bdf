"""The native front end's end of a lane's memory, written in Python: submits requests and collects their ends.

The layout is that of ``native/src/lanes/rings.rs``: words on cache lines of their own (submitted, completed,
mail, asleep, armed), the ring of submissions, the ring of completions.
"""

from __future__ import annotations

import mmap
import os
import select
import struct
import time
from typing import Final, NamedTuple

from appliance.workers.port import LaneMemory

LINE: Final = 64
RING: Final = 1024
SUBMITTED, COMPLETED, _, _, ARMED = (number * LINE for number in range(5))
SUBMISSIONS: Final = 5 * LINE
COMPLETIONS: Final = SUBMISSIONS + RING * LINE
BYTES: Final = COMPLETIONS + RING * LINE
PATIENCE_S: Final = 20.0

_COUNT = struct.Struct("<I")
_SUBMISSION = struct.Struct("<QQQQII24x")
_COMPLETION = struct.Struct("<QIIIIQQQQ8x")
_WITHDRAWN: Final = 48

OK, HAND_OVER, EXPIRED, WITHDRAWN = range(4)


class Submission(NamedTuple):
    ticket: int
    offset: int
    out_offset: int
    plan: int
    rows: int = 1
    deadline_ns: int = 0


class Completion(NamedTuple):
    ticket: int
    status: int
    batch_rows: int
    first: int
    started_ns: int
    gather_ns: int
    run_ns: int
    scatter_ns: int


class ServerDouble:
    """Of one lane, whose worker is woken as for mail; ``doorbell`` is its eventfd."""

    def __init__(self, memory: LaneMemory, doorbell: int) -> None:
        self._memory = memory
        self._doorbell = doorbell
        self._map = mmap.mmap(memory.fileno(), BYTES)
        self._submitted = 0
        self._settled = 0

    def submit(self, *submissions: Submission) -> None:
        """Give the worker requests, all at once, and wake it."""
        self.add(*submissions)
        self._memory.mail()

    def add(self, *submissions: Submission) -> None:
        """Give it requests while it is awake."""
        for ticket, offset, out_offset, plan, rows, deadline_ns in submissions:
            place = SUBMISSIONS + self._submitted % RING * LINE
            _SUBMISSION.pack_into(self._map, place, ticket, offset, out_offset, deadline_ns, plan, rows)
            self._submitted += 1
        _COUNT.pack_into(self._map, SUBMITTED, self._submitted)

    def withdraw(self, number: int) -> None:
        """Nobody wants the request any more that was submitted after so many others."""
        self._map[SUBMISSIONS + number % RING * LINE + _WITHDRAWN] = 1

    def arm(self) -> None:
        """The next end shall ring the doorbell."""
        _COUNT.pack_into(self._map, ARMED, 1)

    def take(self) -> list[Completion]:
        """What has ended since the last call."""
        ended = []
        (completed,) = _COUNT.unpack_from(self._map, COMPLETED)
        while self._settled != completed:
            fields = _COMPLETION.unpack_from(self._map, COMPLETIONS + self._settled % RING * LINE)
            ended.append(Completion(*fields[:4], *fields[5:]))
            self._settled += 1
        return ended

    def ended(self, count: int) -> list[Completion]:
        """Wait for so many ends, asleep on the doorbell."""
        ended: list[Completion] = []
        watch = select.poll()
        watch.register(self._doorbell, select.POLLIN)
        end = time.monotonic() + PATIENCE_S
        while len(ended) < count:
            assert time.monotonic() < end, f"only {ended} of {count} came"
            self.arm()
            ended += self.take()
            if len(ended) < count and watch.poll(100):
                os.read(self._doorbell, 8)
        assert len(ended) == count, ended
        return ended
