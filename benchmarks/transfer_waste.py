"""``python -m benchmarks.transfer_waste STREAM``: what kills and a bad link cost beyond the bytes of a stream.

A process fetches the stream by HTTP over a link of 1 MB/s that is cut off every 20 seconds, and is killed 30 times.
Prints a line of JSON with the bytes that went over the link, heads of HTTP and the index included, over the stream's.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
from aiohttp import web

from appliance.domain.digest import digest_of
from appliance.fleet.documents import Transfer
from appliance.fleet.messages import INDEXES, STREAMS
from appliance.transfer.download import NoSource, fetch
from appliance.transfer.source import HttpSource
from appliance.transfer.spool import Spool
from tests.transfer.flaky_proxy import FlakyProxy
from tests.transfer.indexes import index_of

RATE = 1e6
DROP_S = 20.0
KILLS = 30
AGAIN_S = 0.1


async def client(url: str, folder: Path, way: Transfer) -> None:
    """Fetch it, as often as it takes."""

    async def free(count: int) -> None:
        pass

    async with aiohttp.ClientSession() as session:
        while True:
            try:
                await fetch(way, [HttpSource("the server", url, lambda: session)], Spool(folder), free)
            except NoSource:
                await asyncio.sleep(AGAIN_S)
            else:
                return


def application(stream: bytes, index: bytes) -> web.Application:
    """What gives both by Range."""

    async def answer(request: web.Request) -> web.Response:
        data = stream if request.path.startswith(STREAMS) else index
        first = int(request.headers["Range"].removeprefix("bytes=").split("-")[0])
        headers = {"Content-Range": f"bytes {first}-{len(data) - 1}/{len(data)}"}
        body = memoryview(data)[first:]
        return web.Response(
            status=206, headers=headers, body=bytes(body), content_type="application/octet-stream"
        )

    found = web.Application()
    found.router.add_get(STREAMS + "{digest}", answer)
    found.router.add_get(INDEXES + "{digest}", answer)
    return found


async def measure(stream: Path) -> None:
    """Print the result."""
    data = await asyncio.to_thread(stream.read_bytes)
    index = index_of(data)
    way = Transfer(stream=digest_of(data), size=len(data), index=digest_of(index))
    runner = web.AppRunner(application(data, index), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    proxy = FlakyProxy(runner.addresses[0][:2], RATE)
    port = await proxy.start()
    cutting = asyncio.create_task(_cut(proxy))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "benchmarks.transfer_waste", f"http://127.0.0.1:{port}", folder,
                 way.stream, str(way.size), way.index]  # fmt: skip
        kills = await _killed(words, proxy, way.size)
        assert Spool(Path(folder)).path(way).read_bytes() == data
    cutting.cancel()
    proxy.close()
    await runner.cleanup()
    result = {"bytes": len(data), "sent": proxy.sent, "ratio": round(proxy.sent / len(data), 4),
              "kills": kills, "seconds": round(time.monotonic() - began)}  # fmt: skip
    print(json.dumps(result), flush=True)


async def _killed(words: list[str], proxy: FlakyProxy, size: int) -> int:
    """Kill it at random places, evenly spread; how often that was."""
    chosen = random.Random(20)
    marks = sorted(chosen.uniform(0.01, 0.98) * size for _ in range(KILLS))
    kills = 0
    for mark in [*marks, None]:
        process = await asyncio.create_subprocess_exec(*words)
        if mark is None:
            assert await process.wait() == 0
            return kills
        while proxy.sent < mark:  # noqa: ASYNC110 - the mark is in bytes, and one more event would cost as much
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        kills += 1
        await process.wait()
    return kills


async def _cut(proxy: FlakyProxy) -> None:
    while True:
        await asyncio.sleep(DROP_S)
        proxy.drop()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        asyncio.run(measure(Path(sys.argv[1])))
    else:
        _, url, folder, stream, size, index = sys.argv
        asyncio.run(client(url, Path(folder), Transfer(stream=stream, size=int(size), index=index)))
