"""Have a stream here, from whichever source gives it: goes on where it was, believes nobody, asks the budget."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, closing
from typing import Final

from appliance.domain.digest import digest_of
from appliance.domain.errors import ApplianceError
from appliance.fleet.documents import STREAM_BYTES_MAX, Transfer
from appliance.transfer.pieces import Index, index_bytes, piece_count
from appliance.transfer.source import Source, SourceFailed, SourceTrouble
from appliance.transfer.spool import Arrival, Spool

WRONG_PIECES_MAX: Final = 2
"""How many a source may give in one go before the next source is asked."""

Allowed = Callable[[int], Awaitable[None]]
"""Returns when so many bytes may go over the link, and counts them. Raises to end the transfer."""
Seen = Callable[[int, int], None]
"""Told how many bytes are here, of how many."""


class NoSource(ApplianceError):
    """No source gave the stream, or all of it; ``failures`` says why each did not."""

    def __init__(self, failures: Sequence[SourceFailed]) -> None:
        super().__init__("; ".join(map(str, failures)) or "there is no source")
        self.failures = tuple(failures)


async def fetch(
    way: Transfer,
    sources: Sequence[Source],
    spool: Spool,
    allowed: Allowed,
    seen: Seen = lambda done, total: None,
) -> None:
    """Have the whole stream in the spool. Sources are asked in order, each for what the ones before did not give. What
    came stays, whatever happens. Raises NoSource, OSError, and what ``allowed`` raises."""
    if way.size > STREAM_BYTES_MAX:  # before memory is taken for its index
        text = f"a stream of {way.size} bytes is not fetched; the limit is {STREAM_BYTES_MAX}"
        raise NoSource([SourceFailed(SourceTrouble.REFUSED, text)])
    failures: list[SourceFailed] = []
    for source in sources:
        try:
            allow = allowed if source.over_link else _free
            index = await _index(way, source, spool, allow)
            with closing(await asyncio.to_thread(spool.open, way, index)) as arrival:
                try:
                    await (_from if source.over_link else _from_near)(way, source, arrival, allow, seen)
                finally:
                    spool.note(way, arrival)
                await asyncio.to_thread(arrival.finish)
                return
        except SourceFailed as failure:
            failures.append(failure)
    raise NoSource(failures)


async def _free(count: int) -> None:
    """What does not go over the link costs nothing of it."""


async def _index(way: Transfer, source: Source, spool: Spool, allowed: Allowed) -> Index:
    """The index of the stream; what is kept of it is as good as its digest."""
    pieces = piece_count(way.size)
    data = spool.index(way)
    if data is None or digest_of(data) != way.index:
        await allowed(index_bytes(way.size))
        data = await source.index(way.stream, way.index, pieces)
        if digest_of(data) != way.index:
            raise SourceFailed(SourceTrouble.NOT_THE_STREAM, f"{source.name} gives another index")
        spool.keep_index(way, data)
    return Index(data, way.size)


async def _from_near(way: Transfer, source: Source, arrival: Arrival, allowed: Allowed, seen: Seen) -> None:
    """The same from one that anybody at the site may be: of what it gives, whole pieces stay. The part of a piece that
    came over the link is kept beside meanwhile, so that nobody near can spoil it, time and again."""
    before, tail = arrival.verified, arrival.lift()
    try:
        await _from(way, source, arrival, allowed, seen)
    finally:
        arrival.lift()
        if arrival.verified == before:
            arrival.add(tail)


async def _from(way: Transfer, source: Source, arrival: Arrival, allowed: Allowed, seen: Seen) -> None:
    """All that is missing, from one source."""
    wrong = 0
    while not arrival.is_whole:
        async with aclosing(source.read(way.stream, arrival.size, way.size)) as chunks:
            async for chunk in chunks:
                await allowed(len(chunk))
                if not arrival.add(chunk):
                    wrong += 1
                    break
                seen(arrival.size, way.size)
        if wrong >= WRONG_PIECES_MAX:
            raise SourceFailed(
                SourceTrouble.NOT_THE_STREAM, f"{source.name} gives other bytes than it should"
            )
