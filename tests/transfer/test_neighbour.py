"""A box gives its neighbours what it has, and no more than it may."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from appliance.domain.digest import Digests, digests_of_file
from appliance.fleet.messages import INDEXES, STREAMS
from appliance.transfer import neighbour
from appliance.transfer.download import NoSource, fetch
from appliance.transfer.neighbour import NeighbourServer
from appliance.transfer.pieces import PIECE_BYTES
from appliance.transfer.source import HttpSource, SourceTrouble
from appliance.transfer.spool import Spool
from tests.transfer.test_download import DATA, INDEX, WAY, free

RANGE = {"Range": f"bytes=0-{len(DATA) - 1}"}


@asynccontextmanager
async def offering(spool: Spool, rate: float = 1e9) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    runner = web.AppRunner(NeighbourServer(spool, rate).application(), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    async with aiohttp.ClientSession() as session:
        yield f"http://{host}:{port}", session
    await runner.cleanup()


def filled(folder: Path, data: bytes = DATA) -> Spool:
    spool = Spool(folder)
    spool.keep_index(WAY, INDEX)
    spool.path(WAY).write_bytes(data)
    return spool


async def test_a_neighbour_gives_a_whole_stream(tmp_path: Path) -> None:
    mine = Spool(tmp_path / "mine")
    async with offering(filled(tmp_path / "theirs")) as (url, session):
        await fetch(WAY, [HttpSource("n", url, lambda: session)], mine, free)
    assert mine.path(WAY).read_bytes() == DATA


async def test_one_that_has_it_in_part_or_wrong_is_passed_over(tmp_path: Path) -> None:
    wrong = bytearray(DATA)
    wrong[PIECE_BYTES + 1] ^= 1
    mine = Spool(tmp_path / "mine")
    async with (
        offering(filled(tmp_path / "part", DATA[:PIECE_BYTES])) as (part, session),
        offering(filled(tmp_path / "wrong", bytes(wrong))) as (bad, _),
    ):
        sources = [HttpSource(url, url, lambda: session) for url in (part, bad)]
        with pytest.raises(NoSource) as failed:
            await fetch(WAY, sources, mine, free)
    assert [each.trouble for each in failed.value.failures] == [
        SourceTrouble.NOT_THERE,
        SourceTrouble.NOT_THE_STREAM,
    ]
    assert mine.bytes() == {WAY.stream: PIECE_BYTES}


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (STREAMS + "x", RANGE, 404),
        (STREAMS + "..%2F..%2Fidentity.pem", RANGE, 404),
        (STREAMS + "a" * 64, RANGE, 404),
        (INDEXES + "a" * 64, RANGE, 404),
        (STREAMS + WAY.stream, {}, 416),
        (STREAMS + WAY.stream, {"Range": "bytes=0-99999999999"}, 416),
        (STREAMS + WAY.stream, {"Range": "bytes=9-1"}, 416),
        (STREAMS + WAY.stream, {"Range": "bytes=0-1,3-4"}, 416),
        ("/", {}, 404),
    ],
)
async def test_nothing_else_is_given(tmp_path: Path, path: str, headers: dict[str, str], status: int) -> None:
    async with (
        offering(filled(tmp_path)) as (url, session),
        session.get(url + path, headers=headers) as answer,
    ):
        assert answer.status == status


async def test_what_is_taken_at_a_time_is_bounded(tmp_path: Path) -> None:
    async with offering(filled(tmp_path), rate=1000.0) as (url, session):
        taken = [
            await session.get(f"{url}{STREAMS}{WAY.stream}", headers=RANGE)
            for _ in range(neighbour.ANSWERS_MAX)
        ]
        async with session.get(f"{url}{STREAMS}{WAY.stream}", headers=RANGE) as answer:
            assert (answer.status, "Retry-After" in answer.headers) == (503, True)
        for each in taken:
            each.close()
        await asyncio.sleep(0)


async def test_looking_for_an_index_is_bounded_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All indexes are read for one that is not there, and anybody at the site may ask for it."""
    looking, go_on = threading.Semaphore(0), threading.Event()

    def look(path: Path) -> Digests:
        looking.release()
        assert go_on.wait(60)
        return digests_of_file(path)

    monkeypatch.setattr(neighbour, "digests_of_file", look)
    async with offering(filled(tmp_path)) as (url, session):
        absent = f"{url}{INDEXES}{'a' * 64}"
        asked = [asyncio.ensure_future(session.get(absent)) for _ in range(neighbour.ANSWERS_MAX)]
        for _ in asked:
            assert await asyncio.to_thread(looking.acquire, timeout=60)
        async with session.get(absent) as answer:
            assert answer.status == 503
        async with session.get(f"{url}{INDEXES}none") as answer:
            assert answer.status == 404
        go_on.set()
        assert [(await each).status for each in asked] == [404] * neighbour.ANSWERS_MAX
