"""Queued requests in key order, by (level, deadline, arrival), and by their ids; nothing that has left.

Sorted blocks of bounded length: inserting, removing and taking the first cost a search and the shifting of at
most one block, whatever the queue holds. There is no garbage to collect, so no step ever pays for others.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Generic, Protocol, TypeVar

BLOCK_MAX = 512
"""A block longer than this is split in two."""


SHARDS = 256
"""A power of two; ids are given out one after another, so that they spread evenly."""


class Sequenced(Protocol):
    """What stands in a queue."""

    sequence: int
    """When it came, as a number that nothing else has."""


class Identified(Protocol):
    """What is found by its id."""

    request: int


E = TypeVar("E", bound=Sequenced)
R = TypeVar("R", bound=Identified)
Key = tuple[int, int, int, E]
"""Level, deadline (ns), arrival sequence, and the request; the sequence is unique, so requests are never
compared."""


class Queue(Generic[E]):
    """Keys in order. ``separators[i]`` is not less than any key of block i and less than every key of block i
    + 1."""

    __slots__ = ("_size", "blocks", "separators")

    def __init__(self) -> None:
        self.blocks: list[list[Key[E]]] = [[]]
        self.separators: list[tuple[int, int, int]] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Key[E]]:
        return chain.from_iterable(self.blocks)

    def first(self) -> Key[E]:
        """The most urgent key; the queue must not be empty."""
        return self.blocks[0][0]

    def insert(self, key: Key[E]) -> None:
        """Add ``key``."""
        self._size += 1
        at = bisect_left(self.separators, key[:3]) if self.separators else 0
        block = self.blocks[at]
        insort(block, key)
        if len(block) > BLOCK_MAX:
            self._split(at)

    def remove(self, level: int, deadline_ns: int, sequence: int) -> None:
        """Take out the key that starts so; it must be there."""
        start = (level, deadline_ns, sequence)
        at = bisect_left(self.separators, start) if self.separators else 0
        block = self.blocks[at]
        place = bisect_left(block, start)
        assert block[place][2] == sequence, "removed a request that is not queued"
        del block[place]
        self._size -= 1
        if not block:
            self._drop(at)

    def take(self, count: int) -> None:
        """Drop the first ``count`` keys."""
        self._size -= count
        while count:
            block = self.blocks[0]
            if len(block) > count:
                del block[:count]
                return
            count -= len(block)
            block.clear()
            self._drop(0)

    def seek(self, level: int) -> Key[E] | None:
        """The first key of ``level`` or a less urgent one."""
        start = (level,)
        at = bisect_left(self.separators, start) if self.separators else 0
        for block in self.blocks[at : at + 2]:
            place = bisect_left(block, start)
            if place < len(block):
                return block[place]
        return None

    def check_integrity(self) -> None:
        """Assert order, separators and size."""
        keys = list(self)
        assert len(keys) == self._size, "queue size differs from its keys"
        assert all(a < b for a, b in pairwise(keys)), "queue out of order"
        assert len(self.separators) == len(self.blocks) - 1, "one separator between two blocks"
        assert all(block and len(block) <= BLOCK_MAX for block in self.blocks) or len(self.blocks) == 1
        for at, separator in enumerate(self.separators):
            assert self.blocks[at][-1][:3] <= separator < self.blocks[at + 1][0][:3], "separator out of place"

    def _split(self, at: int) -> None:
        block = self.blocks[at]
        half = len(block) // 2
        self.blocks.insert(at + 1, block[half:])
        del block[half:]
        self.separators.insert(at, block[-1][:3])

    def _drop(self, at: int) -> None:
        """Forget an empty block, unless it is the only one."""
        if self.separators:
            del self.blocks[at]
            del self.separators[min(at, len(self.separators) - 1)]


class Register(Generic[R]):
    """Queued requests by id, not more than one of an id: found without ever pausing for a large table to be rebuilt.

    A dict that requests pass through is rebuilt from time to time, all of it in one insertion: over a millisecond with
    100,000 requests. Here the ids are spread over many small dicts, of which each is rebuilt at its own time.
    """

    __slots__ = ("_shards", "_size")

    def __init__(self) -> None:
        self._shards: list[dict[int, R]] = [{} for _ in range(SHARDS)]
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[R]:
        for shard in self._shards:
            yield from shard.values()

    def find(self, request: int) -> R | None:
        """The request of that id, if it is queued."""
        return self._shards[request & (SHARDS - 1)].get(request)

    def add(self, entry: R) -> None:
        """Enter a request; its id must not be in use."""
        shard = self._shards[entry.request & (SHARDS - 1)]
        assert entry.request not in shard, "a request arrived twice"
        shard[entry.request] = entry
        self._size += 1

    def remove(self, request: int) -> None:
        """Strike out a request; it must be there."""
        del self._shards[request & (SHARDS - 1)][request]
        self._size -= 1

    def check_integrity(self) -> None:
        """Assert that every request is under its id, and counted."""
        assert self._size == sum(len(shard) for shard in self._shards), "register miscounts"
        for place, shard in enumerate(self._shards):
            for request, entry in shard.items():
                assert entry.request == request, "request under a wrong id"
                assert request & (SHARDS - 1) == place, "request in a wrong shard"
