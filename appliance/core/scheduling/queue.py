"""A queue in key order: requests by (level, deadline, arrival), and nothing that has left it.

One sorted list: inserting, removing and taking the first cost a search and the shifting of what follows, which for the
thousands of requests that may be queued is a few microseconds at most.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import pairwise
from typing import Generic, Protocol, TypeVar


class Sequenced(Protocol):
    """What stands in a queue."""

    sequence: int
    """When it came, as a number that nothing else has."""


E = TypeVar("E", bound=Sequenced)
Key = tuple[int, int, int, E]
"""Level, deadline (ns), arrival sequence, and the request; the sequence is unique, so requests are never
compared."""


class Queue(Generic[E]):
    """``keys`` are in order; to be looked at only."""

    __slots__ = ("keys",)

    def __init__(self) -> None:
        self.keys: list[Key[E]] = []

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Key[E]]:
        return iter(self.keys)

    def first(self) -> Key[E]:
        """The most urgent key; the queue must not be empty."""
        return self.keys[0]

    def insert(self, key: Key[E]) -> None:
        """Add ``key``."""
        insort(self.keys, key)

    def remove(self, level: int, deadline_ns: int, sequence: int) -> None:
        """Take out the key that starts so; it must be there."""
        place = bisect_left(self.keys, (level, deadline_ns, sequence))
        assert self.keys[place][2] == sequence, "removed a request that is not queued"
        del self.keys[place]

    def take(self, count: int) -> None:
        """Drop the first ``count`` keys."""
        del self.keys[:count]

    def seek(self, level: int) -> Key[E] | None:
        """The first key of ``level`` or a less urgent one."""
        place = bisect_left(self.keys, (level,))
        return self.keys[place] if place < len(self.keys) else None

    def check_integrity(self) -> None:
        """Assert order."""
        assert all(a < b for a, b in pairwise(self.keys)), "queue out of order"
