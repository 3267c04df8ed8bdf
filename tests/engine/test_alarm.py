"""The alarm: it rings once for each time that was set, not before it, and not when it was put off or closed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from multiprocessing.connection import wait

import pytest

from appliance.engine.alarm import Alarm


class Bell:
    """An alarm, and when it rang."""

    def __init__(self) -> None:
        self.rang: list[int] = []
        self.alarm = Alarm(asyncio.get_running_loop(), lambda: self.rang.append(time.monotonic_ns()))

    async def heard(self, times: int) -> None:
        """Until it rang so often."""
        async with asyncio.timeout(10):
            while len(self.rang) < times:  # noqa: ASYNC110  a bell that must not ring has no event to wait for
                await asyncio.sleep(0.001)


@pytest.fixture
async def bell() -> AsyncIterator[Bell]:
    made = Bell()
    yield made
    made.alarm.close()


async def test_it_rings_once_for_a_time_and_never_before_it(bell: Bell) -> None:
    for number, after_ns in enumerate((50_000, 700_000, 3_000_000), 1):
        at_ns = time.monotonic_ns() + after_ns
        bell.alarm.set(at_ns)
        await bell.heard(number)
        await asyncio.sleep(0.002)
        assert len(bell.rang) == number
        assert bell.rang[-1] >= at_ns


async def test_a_time_that_is_over_rings_at_once(bell: Bell) -> None:
    for number, at_ns in enumerate((time.monotonic_ns() - 1_000_000, 0), 1):
        bell.alarm.set(at_ns)
        await bell.heard(number)


async def test_only_the_time_set_last_counts(bell: Bell) -> None:
    now_ns = time.monotonic_ns()
    bell.alarm.set(now_ns + 1_000_000)
    bell.alarm.set(now_ns + 20_000_000)
    await bell.heard(1)
    assert bell.rang[0] >= now_ns + 20_000_000
    bell.alarm.set(0)
    assert wait([bell.alarm._timer], 10), "it has expired, and the loop has not looked"
    bell.alarm.set(time.monotonic_ns() + 3_600_000_000_000)
    await asyncio.sleep(0.005)
    assert len(bell.rang) == 1


async def test_it_is_silent_once_it_is_closed() -> None:
    bell = Bell()
    bell.alarm.set(time.monotonic_ns() + 1_000_000)
    bell.alarm.close()
    await asyncio.sleep(0.005)
    assert not bell.rang
