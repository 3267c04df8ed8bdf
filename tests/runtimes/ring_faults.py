"""Faults injected into the memory that a worker shares with the native front end, as a hostile worker would; for the
fake runtime alone.

The layout is that of ``native/src/lanes/rings.rs``: five words on cache lines of their own, then the ring
of submissions and the ring of completions.
"""

from __future__ import annotations

import mmap
import os
import random
import struct
import time
from contextlib import suppress
from typing import Final

MEMORY_DESCRIPTOR: Final = 4
DOORBELL_DESCRIPTOR: Final = 5
"""Where they are in a worker that has rings."""

HANG_S: Final = 600.0
DOORBELL_MAX: Final = (1 << 64) - 2

_LINE: Final = 64
_RING: Final = 1024
_COMPLETED: Final = _LINE
_SUBMISSIONS: Final = 5 * _LINE
_COMPLETIONS: Final = _SUBMISSIONS + _RING * _LINE
_BYTES: Final = _COMPLETIONS + _RING * _LINE
_COUNT: Final = struct.Struct("<I")
_TICKET: Final = struct.Struct("<Q")
_COMPLETION: Final = struct.Struct("<QIIQQQQQQ")


def inject_ring_fault(fault: str) -> None:
    """Write something that cannot be and wait to be killed for it; ``doorbell`` only fills its counter and returns.

    - ``count``: more completions than there are submissions
    - ``stranger``: the completion of a ticket that there never was
    - ``older``: the completion of the request before this one, once more
    - ``status``: this request's completion, with a status that there is not
    - ``twice``: this request's completion, two times
    - ``noise``: random bytes all over

    Raises OSError in a worker without such memory.
    """
    if fault == "doorbell":
        _fill_doorbell()
        return
    with mmap.mmap(MEMORY_DESCRIPTOR, _BYTES) as memory:
        (done,) = _COUNT.unpack_from(memory, _COMPLETED)
        ticket = _ticket(memory, _SUBMISSIONS, done)
        if fault == "count":
            _publish(memory, done + 2 * _RING)
        elif fault == "stranger":
            _complete(memory, done, 77 << 32 | 4_000_000, 0)
        elif fault == "older":
            _complete(memory, done, _ticket(memory, _COMPLETIONS, done - 1), 0)
        elif fault == "status":
            _complete(memory, done, ticket, 99)
        elif fault == "twice":
            _complete(memory, done, ticket, 0)
            _complete(memory, done + 1, ticket, 0)
        elif fault == "noise":
            memory[:] = random.Random(7).randbytes(_BYTES)
        else:
            raise ValueError(f"unknown ring fault '{fault}'")
        os.write(DOORBELL_DESCRIPTOR, _TICKET.pack(1))
        time.sleep(HANG_S)


def _fill_doorbell() -> None:
    """Fill the counter behind the doorbell, so that no ring can be added to it."""
    os.set_blocking(DOORBELL_DESCRIPTOR, False)
    with suppress(BlockingIOError):
        os.read(DOORBELL_DESCRIPTOR, _TICKET.size)
    os.write(DOORBELL_DESCRIPTOR, _TICKET.pack(DOORBELL_MAX))


def _ticket(memory: mmap.mmap, ring: int, index: int) -> int:
    (ticket,) = _TICKET.unpack_from(memory, ring + index % _RING * _LINE)
    return int(ticket)


def _complete(memory: mmap.mmap, index: int, ticket: int, status: int) -> None:
    now_ns = time.monotonic_ns()
    place = _COMPLETIONS + index % _RING * _LINE
    _COMPLETION.pack_into(memory, place, ticket, status, 1, 1, now_ns, 0, 0, 0, 0)
    _publish(memory, index + 1)


def _publish(memory: mmap.mmap, count: int) -> None:
    _COUNT.pack_into(memory, _COMPLETED, count % (1 << 32))
