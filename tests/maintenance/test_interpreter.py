"""What cycles hold is freed a moment after versions changed, and not while requests are under way; what fills up later
has its memory from the start."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from appliance.maintenance import interpreter
from appliance.maintenance.interpreter import Collector


class Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def left_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(interpreter, "PAUSE_S", 0.001)
    gc.disable()
    yield
    gc.enable()


async def test_versions_that_changed_leave_nothing_once_no_request_is_under_way() -> None:
    looked, requests = asyncio.Event(), 1
    gone = weakref.ref(Cycle())

    def at_work() -> bool:
        looked.set()
        return requests > 0

    here = Collector(asyncio.get_running_loop(), at_work)
    here.changed()
    here.changed()
    await looked.wait()
    assert gone() is not None
    requests = 0
    freed = asyncio.Event()
    weakref.finalize(gone(), freed.set)
    await asyncio.wait_for(freed.wait(), 30)
    looked.clear()
    here.changed()
    here.close()
    await asyncio.sleep(0.01)
    assert not looked.is_set()


GROWTH = """
import sys
from appliance.maintenance.interpreter import reserve

def mapped():
    with open("/proc/self/maps") as maps:
        spans = [line.split(maxsplit=1)[0].split("-") for line in maps]
    return sum(int(end, 16) - int(begin, 16) for begin, end in spans)

kept = reserve(int(sys.argv[1]))
before = mapped()
table = [(number, f"reason {number}") for number in range(1_000_000, 1_008_000)]
print(mapped() - before)
"""


def growth(reserved: int) -> int:
    """Bytes of address space that 1.2 MB of small objects take from the system in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, str(reserved)], capture_output=True, text=True, check=True, timeout=60
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="of CPython's allocator")
def test_what_fills_up_later_takes_no_memory_from_the_system() -> None:
    assert growth(4 << 20) < 512 << 10, "the list's own table, which is no small object"
    assert growth(0) >= 1 << 20
