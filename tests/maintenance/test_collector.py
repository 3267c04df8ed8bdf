"""What cycles hold is freed a moment after versions changed, and not while requests are under way."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from appliance.maintenance import collector
from appliance.maintenance.collector import Collector


class Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def left_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(collector, "PAUSE_S", 0.001)
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
