"""Memory that a burst has left in the heap goes back when it is over, and not while requests are under way."""

from __future__ import annotations

import os
import subprocess
import sys

MIB = 1 << 20
BURST = """
import asyncio, ctypes, os, sys
from appliance.maintenance import heap
from appliance.process.memory import resident_of

heap.PERIOD_S = 0.01
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = (ctypes.c_void_p,)

def resident():
    return resident_of(os.getpid()).anonymous

def burst():
    large, small = [], []
    for _ in range(1500):  # large ones between small ones, which stay
        large.append(libc.malloc(100_000))
        ctypes.memset(ctypes.c_void_p(large[-1]), 1, 100_000)
        small.append(libc.malloc(3_000))
    for piece in large:
        libc.free(piece)

async def main():
    looked, busy = asyncio.Event(), True

    def at_work():
        looked.set()
        return busy

    here = heap.Heap(asyncio.get_running_loop(), at_work)
    here.watch()
    before = resident()
    burst()
    await looked.wait()
    kept = resident() - before
    busy = False
    while resident() - before > 32 << 20:
        await asyncio.sleep(0.01)
    here.close()
    print(kept)

asyncio.run(asyncio.wait_for(main(), 30))
"""


def test_what_a_burst_left_goes_back_once_no_request_is_under_way() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", BURST], capture_output=True, text=True, env=os.environ, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 100 * MIB, "requests were under way"
