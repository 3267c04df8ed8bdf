"""Find a queued request by its id, without ever pausing for a large table to be rebuilt.

A dict that requests pass through is rebuilt from time to time, all of it in one insertion: over a millisecond with
100,000 requests. Here the ids are spread over many small dicts, of which each is rebuilt at its own time.
"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.core.scheduling.group import Waiting

SHARDS = 256
"""A power of two; ids are given out one after another, so that they spread evenly."""


class Register:
    """The queued requests of all groups by id. Not more than one of an id."""

    __slots__ = ("_shards", "_size")

    def __init__(self) -> None:
        self._shards: list[dict[int, Waiting]] = [{} for _ in range(SHARDS)]
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Waiting]:
        for shard in self._shards:
            yield from shard.values()

    def find(self, request: int) -> Waiting | None:
        """The request of that id, if it is queued."""
        return self._shards[request & (SHARDS - 1)].get(request)

    def add(self, entry: Waiting) -> None:
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
