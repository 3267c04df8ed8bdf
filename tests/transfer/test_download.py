"""A stream arrives whole over every kind of bad link, from whoever gives it, and nothing is paid for twice."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from appliance.domain.digest import digest_of
from appliance.domain.manifest import INT64_MAX
from appliance.fleet.documents import STREAM_BYTES_MAX, STREAM_INDEX_BYTES_MAX, Transfer
from appliance.fleet.messages import INDEXES, STREAMS
from appliance.transfer.download import NoSource, fetch
from appliance.transfer.pieces import PIECE_BYTES, Index, index_bytes
from appliance.transfer.source import DirectorySource, HttpSource, Source, SourceFailed, SourceTrouble
from appliance.transfer.spool import Spool
from tests.transfer.indexes import index_of

DATA = random.Random(1).randbytes(3 * PIECE_BYTES + 12_345)
INDEX = index_of(DATA)
WAY = Transfer(stream=digest_of(DATA), size=len(DATA), index=digest_of(INDEX))
Bad = Callable[[web.Request, bytes, int], Awaitable[web.StreamResponse]]


async def free(count: int) -> None:
    """There is no bound."""


def ranged(request: web.Request, data: bytes) -> tuple[int, dict[str, str]]:
    """Where the answer begins, and its headers."""
    first = int(request.headers["Range"].removeprefix("bytes=").split("-")[0])
    return first, {"Content-Range": f"bytes {first}-{len(data) - 1}/{len(data)}"}


class Server:
    """What gives streams; ``bad`` answers the first requests in its place, and ``sent`` counts what went out."""

    def __init__(self) -> None:
        self.bad: list[Bad] = []
        self.sent = 0
        self.asked = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        data = DATA if request.path.startswith(STREAMS) else INDEX
        first, headers = ranged(request, data)
        if self.bad and data is DATA:
            return await self.bad.pop(0)(request, data, first)
        self.sent += len(data) - first
        return web.Response(
            status=206, headers=headers, body=data[first:], content_type="application/octet-stream"
        )


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[HttpSource]:
    """The source that it is."""
    application = web.Application()
    application.router.add_get(STREAMS + "{digest}", server.answer)
    application.router.add_get(INDEXES + "{digest}", server.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    async with aiohttp.ClientSession() as session:
        yield HttpSource("the controller", f"http://{host}:{port}", lambda: session)
    await runner.cleanup()


async def a_page(request: web.Request, data: bytes, first: int) -> web.StreamResponse:
    """A captive portal."""
    return web.Response(text="<html>Please log in</html>", content_type="text/html")


async def a_page_as_bytes(request: web.Request, data: bytes, first: int) -> web.StreamResponse:
    body = b"<html>Please log in</html>".ljust(len(data) - first)
    return web.Response(
        status=206, headers=ranged(request, data)[1], body=body, content_type="application/octet-stream"
    )


async def a_redirect(request: web.Request, data: bytes, first: int) -> web.StreamResponse:
    raise web.HTTPFound("http://127.0.0.1:1/")


async def from_the_start(request: web.Request, data: bytes, first: int) -> web.StreamResponse:
    """A server without ranges."""
    return web.Response(body=data, content_type="application/octet-stream")


async def broken(request: web.Request, data: bytes, first: int) -> web.StreamResponse:
    """Cut after a piece and a half."""
    answer = web.StreamResponse(status=206, headers=ranged(request, data)[1])
    answer.content_type = "application/octet-stream"
    answer.content_length = len(data) - first
    await answer.prepare(request)
    await answer.write(data[first : first + 3 * PIECE_BYTES // 2])
    assert request.transport is not None
    request.transport.close()
    return answer


async def longer(request: web.Request, data: bytes, first: int) -> web.StreamResponse:
    """Endless data."""
    body = data[first:] + bytes(1 << 20)
    return web.Response(
        status=206, headers=ranged(request, data)[1], body=body, content_type="application/octet-stream"
    )


async def another_byte(request: web.Request, data: bytes, first: int) -> web.StreamResponse:
    """One bit of the second piece from here is another."""
    body = bytearray(data[first:])
    body[min(PIECE_BYTES + 5, len(body) - 1)] ^= 1
    return web.Response(
        status=206,
        headers=ranged(request, data)[1],
        body=bytes(body),
        content_type="application/octet-stream",
    )


async def shuffled(request: web.Request, data: bytes, first: int) -> web.StreamResponse:
    """Pieces in another order."""
    body = data[first + PIECE_BYTES : first + 2 * PIECE_BYTES] + data[first : first + PIECE_BYTES]
    body += data[first + 2 * PIECE_BYTES :]
    return web.Response(
        status=206, headers=ranged(request, data)[1], body=body, content_type="application/octet-stream"
    )


async def refused(request: web.Request, data: bytes, first: int) -> web.StreamResponse:
    raise web.HTTPServiceUnavailable


LIES = [a_page, a_page_as_bytes, a_redirect, from_the_start, longer, shuffled]


async def test_a_stream_arrives(tmp_path: Path) -> None:
    spool, seen = Spool(tmp_path / "spool"), list[int]()
    async with serving(Server()) as source:
        await fetch(WAY, [source], spool, free, lambda done, total: seen.append(done))
    assert spool.path(WAY).read_bytes() == DATA
    assert seen == sorted(seen)
    assert seen[-1] == len(DATA)
    assert spool.bytes() == {WAY.stream: len(DATA)}


@pytest.mark.parametrize("bad", [*LIES, broken, refused], ids=lambda bad: bad.__name__)
async def test_a_bad_answer_costs_at_most_a_piece_and_the_next_one_is_taken(tmp_path: Path, bad: Bad) -> None:
    server, spool = Server(), Spool(tmp_path / "spool")
    async with serving(server) as source:
        server.bad = [bad] * 3
        with pytest.raises(NoSource) as failed:
            await fetch(WAY, [source], spool, free)
        assert failed.value.failures
        server.bad = []
        server.sent = 0
        before = spool.bytes().get(WAY.stream, 0)
        await fetch(WAY, [source], spool, free)
    assert spool.path(WAY).read_bytes() == DATA
    assert server.sent <= len(DATA) - before


async def test_a_wrong_piece_alone_comes_again(tmp_path: Path) -> None:
    server, spool = Server(), Spool(tmp_path / "spool")
    server.bad = [another_byte]
    paid = 0

    async def pay(count: int) -> None:
        nonlocal paid
        paid += count

    async with serving(server) as source:
        await fetch(WAY, [source], spool, pay)
    assert spool.path(WAY).read_bytes() == DATA
    assert paid <= len(DATA) + len(INDEX) + PIECE_BYTES + 65_536


async def test_the_next_source_goes_on_where_one_ended(tmp_path: Path) -> None:
    first, second, spool = Server(), Server(), Spool(tmp_path / "spool")
    first.bad = [broken, refused]
    async with serving(first) as one, serving(second) as other:
        await fetch(WAY, [one, other], spool, free)
    assert spool.path(WAY).read_bytes() == DATA
    assert second.sent <= len(DATA) - PIECE_BYTES


async def test_a_source_that_has_nothing_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "usb" / "streams").mkdir(parents=True)
    (tmp_path / "usb" / "indexes").mkdir()
    spool, usb = Spool(tmp_path / "spool"), DirectorySource("usb", tmp_path / "usb")
    with pytest.raises(NoSource) as failed:
        await fetch(WAY, [DirectorySource("none", tmp_path / "nowhere"), usb], spool, free)
    assert [each.trouble for each in failed.value.failures] == [
        SourceTrouble.NOT_THERE,
        SourceTrouble.NOT_THERE,
    ]
    (tmp_path / "usb" / "streams" / WAY.stream).write_bytes(DATA)
    (tmp_path / "usb" / "indexes" / WAY.index).write_bytes(INDEX)
    await fetch(WAY, [usb], spool, free)
    assert spool.path(WAY).read_bytes() == DATA


async def test_a_link_in_a_bundle_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "streams").mkdir()
    (tmp_path / "indexes").mkdir()
    (tmp_path / "indexes" / WAY.index).write_bytes(INDEX)
    (tmp_path / "streams" / WAY.stream).symlink_to("/etc/passwd")
    with pytest.raises(NoSource, match="cannot be read"):
        await fetch(WAY, [DirectorySource("usb", tmp_path)], Spool(tmp_path / "spool"), free)


async def test_nobody_there(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as session:
        source: Source = HttpSource("the controller", "http://127.0.0.1:9", lambda: session)
        with pytest.raises(NoSource, match="the controller cannot be reached") as failed:
            await fetch(WAY, [source], Spool(tmp_path / "spool"), free)
    assert failed.value.failures[0].trouble is SourceTrouble.UNREACHABLE


async def test_a_bound_ends_it_and_what_came_stays(tmp_path: Path) -> None:
    server, spool, left = Server(), Spool(tmp_path / "spool"), 2 * PIECE_BYTES

    async def pay(count: int) -> None:
        nonlocal left
        left -= count
        if left < 0:
            raise SourceFailed(SourceTrouble.REFUSED, "the budget is spent")

    async with serving(server) as source:
        with pytest.raises(NoSource, match="the budget is spent"):
            await fetch(WAY, [source], spool, pay)
        assert spool.bytes()[WAY.stream] >= PIECE_BYTES
        await fetch(WAY, [source], spool, free)
    assert spool.path(WAY).read_bytes() == DATA


def test_after_a_restart_the_disk_is_not_believed(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    path = spool.path(WAY)
    data = bytearray(DATA[: 2 * PIECE_BYTES + 100])
    data[PIECE_BYTES + 1] ^= 1
    path.write_bytes(data)
    arrival = Spool(tmp_path).open(WAY, Index(INDEX, len(DATA)))
    assert (arrival.verified, arrival.size) == (PIECE_BYTES, PIECE_BYTES)
    arrival.close()


def test_what_is_not_wanted_any_more_goes(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.path(WAY).write_bytes(b"x")
    (tmp_path / f"{'a' * 64}.stream").write_bytes(b"x")
    (tmp_path / f"{WAY.stream}.new").write_bytes(b"x")
    spool.keep_only({WAY.stream})
    assert [each.name for each in tmp_path.iterdir()] == [f"{WAY.stream}.stream"]
    spool.keep_only(())
    assert not list(tmp_path.iterdir())


def test_a_disk_that_takes_a_part_and_then_nothing_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = os.pwrite, PIECE_BYTES + 1000

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = min(len(data), left, 50_000)
        left -= count
        return real(descriptor, data[:count], offset)

    arrival = Spool(tmp_path).open(WAY, Index(INDEX, len(DATA)))
    chunks = [DATA[at : at + 65_536] for at in range(0, len(DATA), 65_536)]
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        with pytest.raises(OSError, match="No space"):
            list(map(arrival.add, chunks))
    assert (arrival.size, arrival.verified) == (PIECE_BYTES + 1000, PIECE_BYTES)
    assert arrival.add(DATA[arrival.size :])
    assert arrival.is_whole
    arrival.close()


PROGRAM = """
import asyncio, sys
from pathlib import Path
import aiohttp
from appliance.fleet.documents import Transfer
from appliance.transfer.download import fetch
from appliance.transfer.source import HttpSource
from appliance.transfer.spool import Spool

async def main():
    way = Transfer(stream=sys.argv[3], size=int(sys.argv[4]), index=sys.argv[5])
    async def free(count): pass
    def seen(done, total): print(done, flush=True)
    async with aiohttp.ClientSession() as session:
        await fetch(way, [HttpSource("c", sys.argv[1], lambda: session)], Spool(Path(sys.argv[2])), free, seen)
asyncio.run(main())
"""


@pytest.mark.timeout(120)
async def test_a_process_that_is_killed_at_any_moment_goes_on_where_it_was(tmp_path: Path) -> None:
    async with serving(Server()) as source:
        words = [
            sys.executable,
            "-c",
            PROGRAM,
            source._base,
            str(tmp_path),
            WAY.stream,
            str(WAY.size),
            WAY.index,
        ]
        done, kills = 0, 0
        while kills < 12:
            process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
            assert process.stdout is not None
            for _ in range(1 + kills % 5):
                line = await process.stdout.readline()
                assert line or done, "it never began"
                if line:
                    assert int(line) > done or kills == 0
                    done = max(done, int(line))
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
            await process.wait()
            kills += 1
            if done == WAY.size:
                break
        last = await asyncio.create_subprocess_exec(*words, stdout=subprocess.DEVNULL)
        assert await last.wait() == 0
    assert Spool(tmp_path).path(WAY).read_bytes() == DATA


async def test_what_does_not_come_over_the_link_costs_nothing_of_it(tmp_path: Path) -> None:
    for kind, name, data in (("streams", WAY.stream, DATA), ("indexes", WAY.index, INDEX)):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / name).write_bytes(data)

    async def spent(count: int) -> None:
        raise SourceFailed(SourceTrouble.REFUSED, "the budget is spent")

    spool = Spool(tmp_path / "spool")
    await fetch(WAY, [DirectorySource("usb", tmp_path)], spool, spent)
    assert spool.path(WAY).read_bytes() == DATA


async def test_a_neighbour_that_drips_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Each byte comes in time, and all of them would take a year."""
    now = 0.0

    def later() -> float:
        nonlocal now
        now += 25
        return now

    async def drips(request: web.Request, data: bytes, first: int) -> web.StreamResponse:
        answer = web.StreamResponse(status=206, headers=ranged(request, data)[1])
        answer.content_type = "application/octet-stream"
        await answer.prepare(request)
        for byte in data[first : first + 100]:
            await answer.write(bytes([byte]))
            await came.wait()
            came.clear()
        raise AssertionError("nobody waits for so long")

    async def allowed(count: int) -> None:
        raise AssertionError("nothing went over the link")

    came, dripping = asyncio.Event(), Server()
    dripping.bad.append(drips)
    async with serving(dripping) as there, serving(Server()) as other:
        slow = HttpSource("slow", there._base, there._session, over_link=False, now_s=later)
        good = HttpSource("good", other._base, other._session, over_link=False)
        await fetch(WAY, [slow, good], Spool(tmp_path / "spool"), allowed, lambda done, total: came.set())
    assert Spool(tmp_path / "spool").path(WAY).read_bytes() == DATA


@pytest.mark.parametrize("count", [1, PIECE_BYTES])
async def test_a_neighbour_that_lies_keeps_back_nothing_that_comes_over_a_bad_link(
    tmp_path: Path, count: int
) -> None:
    """The link lasts for a part of a piece each time, and before it the neighbour gives ``count`` wrong bytes."""

    async def lies(request: web.Request, data: bytes, first: int) -> web.StreamResponse:
        return await cut_off(request, data, first, bytes(count))

    async def breaks(request: web.Request, data: bytes, first: int) -> web.StreamResponse:
        return await cut_off(request, data, first, data[first : first + PIECE_BYTES // 3])

    async def cut_off(request: web.Request, data: bytes, first: int, body: bytes) -> web.StreamResponse:
        answer = web.StreamResponse(status=206, headers=ranged(request, data)[1])
        answer.content_type, answer.content_length = "application/octet-stream", len(data) - first
        await answer.prepare(request)
        await answer.write(body[: len(data) - first])
        if len(body) < len(data) - first:
            assert request.transport is not None
            request.transport.close()
        return answer

    went, spool = 0, Spool(tmp_path / "spool")

    async def allowed(size: int) -> None:
        nonlocal went
        went += size

    liar, link = Server(), Server()
    async with serving(liar) as near, serving(link) as far:
        sources = [HttpSource("near", near._base, near._session, over_link=False), far]
        for _ in range(3 * len(DATA) // PIECE_BYTES + 3):
            liar.bad, link.bad = [lies] * 9, [breaks]
            with suppress(NoSource):
                await fetch(WAY, sources, spool, allowed)
                break
    assert spool.path(WAY).read_bytes() == DATA
    assert went <= len(DATA) + 2 * len(INDEX)


class Unasked:
    """A source of which nothing is to be asked."""

    name = "the controller"
    over_link = True

    async def index(self, stream: str, index: str, pieces: int) -> bytes:
        raise AssertionError(f"it was asked for an index of {pieces} pieces")

    def read(self, stream: str, offset: int, size: int) -> AsyncGenerator[bytes, None]:
        raise AssertionError(f"it was asked for {size} bytes")


@pytest.mark.parametrize("size", [STREAM_BYTES_MAX + 1, INT64_MAX])
async def test_a_size_beyond_all_streams_takes_no_memory_for_its_index(tmp_path: Path, size: int) -> None:
    """Its index would have up to 2^48 bytes."""
    way = Transfer(stream="a" * 64, size=size, index="b" * 64)
    with pytest.raises(NoSource, match=f"a stream of {size} bytes is not fetched"):
        await fetch(way, [Unasked()], Spool(tmp_path), free)
    assert not os.listdir(tmp_path)


def test_the_largest_stream_has_the_largest_index() -> None:
    assert index_bytes(STREAM_BYTES_MAX) == STREAM_INDEX_BYTES_MAX


def test_an_index_of_another_length_than_the_streams_is_none(tmp_path: Path) -> None:
    """A bundle may bring one whose digest is right, and which is as long as whoever signed it liked."""
    spool = Spool(tmp_path)
    spool.keep_index(WAY, INDEX)
    assert spool.index(WAY) == INDEX
    os.truncate(spool.stream_files(WAY.stream)[1], 1 << 40)
    assert spool.index(WAY) is None
    spool.keep_index(WAY, INDEX[:-1])
    assert spool.index(WAY) is None
