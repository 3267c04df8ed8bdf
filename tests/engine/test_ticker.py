"""The ticker: a turn on the spot for a lone request, company under load, no turn lost, none after a failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from appliance.engine import ticker as subject
from appliance.engine.alarm import Alarm
from appliance.engine.ticker import HOLD_NS, PATIENCE, TICK_NS, Ticker


class CountingEngine:
    """Records what each turn found."""

    def __init__(self) -> None:
        self.arrivals = 0
        self.may_wait = True
        self.turns: list[int] = []
        self.last_ns = 0
        self.handed = 0
        self.fail = False
        self._served = 0

    def turn(self) -> None:
        if self.fail:
            raise AssertionError("broken")
        self.turns.append(self.arrivals - self._served)
        self._served = self.arrivals
        self.last_ns = time.monotonic_ns()

    def hand_out(self) -> None:
        self.handed += 1


Ticking = Callable[[], tuple[Ticker, CountingEngine, list[BaseException]]]


@pytest.fixture
async def ticking() -> AsyncIterator[Ticking]:
    """Makes tickers, and closes them."""
    made: list[Ticker] = []

    def make() -> tuple[Ticker, CountingEngine, list[BaseException]]:
        failures: list[BaseException] = []
        ticker, engine = Ticker(asyncio.get_running_loop(), failures.append), CountingEngine()
        made.append(ticker)
        ticker.attach(engine)
        return ticker, engine, failures

    yield make
    for ticker in made:
        ticker.close()


async def iterations(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110  each iteration of the loop is what is under test
            await asyncio.sleep(0)


async def lonely(ticker: Ticker, engine: CountingEngine) -> None:
    """Requests one by one until the ticker has learned that there is no company."""
    for _ in range(PATIENCE + 2):
        engine.arrivals += 1
        before = len(engine.turns)
        ticker.arrived()
        await until(lambda before=before: len(engine.turns) > before)  # type: ignore[misc]


async def test_a_lone_request_gets_its_turn_on_the_spot_and_its_outcome_later(ticking: Ticking) -> None:
    ticker, engine, _ = ticking()
    await lonely(ticker, engine)
    await iterations(3)
    turns, handed = len(engine.turns), engine.handed
    engine.arrivals += 1
    ticker.arrived()
    assert len(engine.turns) == turns + 1
    assert engine.handed == handed, "no outcome inside submit"
    await iterations(2)
    assert engine.handed > handed


async def test_requests_that_come_one_by_one_share_a_turn(ticking: Ticking) -> None:
    ticker, engine, _ = ticking()
    await until(lambda: bool(engine.turns))
    for _ in range(5):
        engine.arrivals += 1
        ticker.arrived()
        await iterations(2)
    await until(lambda: sum(engine.turns) == 5)
    assert max(engine.turns) > 1


async def test_company_is_found_again_after_loneliness(ticking: Ticking) -> None:
    ticker, engine, _ = ticking()
    await lonely(ticker, engine)
    for _ in range(200):
        engine.arrivals += 1
        ticker.arrived()
        await iterations(3)
    assert max(engine.turns[-20:]) > 1


async def test_a_stream_of_requests_cannot_put_a_turn_off_for_ever(ticking: Ticking) -> None:
    ticker, engine, _ = ticking()
    await until(lambda: bool(engine.turns))
    turns, start = len(engine.turns), time.monotonic_ns()
    while len(engine.turns) == turns:
        engine.arrivals += 1
        ticker.arrived()
        await iterations(1)
        assert time.monotonic_ns() - start < 1000 * HOLD_NS


async def test_nothing_waits_that_may_not(ticking: Ticking) -> None:
    ticker, engine, _ = ticking()
    await until(lambda: bool(engine.turns))
    engine.may_wait = False
    turns = len(engine.turns)
    ticker.news()
    await iterations(1)
    assert len(engine.turns) == turns + 1


async def test_a_timer_brings_a_turn(ticking: Ticking) -> None:
    ticker, engine, _ = ticking()
    await until(lambda: bool(engine.turns))
    turns = len(engine.turns)
    ticker.at(time.monotonic_ns() + 2_000_000)
    async with asyncio.timeout(10):
        while len(engine.turns) == turns:  # noqa: ASYNC110  the ticker has no event to wait for
            await asyncio.sleep(0.001)


async def test_no_wish_is_forgotten_because_an_earlier_one_was_there(ticking: Ticking) -> None:
    ticker, engine, _ = ticking()
    await until(lambda: bool(engine.turns))
    now_ns = time.monotonic_ns()
    wishes = [now_ns + after_ms * 1_000_000 for after_ms in (20, 40, 10, 30, 40)]
    for wish in wishes:
        ticker.at(wish)
    for wish in sorted(wishes):
        async with asyncio.timeout(10):
            while engine.last_ns < wish:  # noqa: ASYNC110  the ticker has no event to wait for
                await asyncio.sleep(0.001)


async def test_wishes_far_ahead_share_turns_and_are_hardly_late(ticking: Ticking) -> None:
    """A client names ever other deadlines; each wish is kept until it comes, however many there are."""
    ticker, _, _ = ticking()
    now_ms = time.monotonic_ns() // 1_000_000
    for _ in range(2):
        for number in range(20_000):
            ticker.at((now_ms + 10**9 - number) * 1_000_000)
    assert len(ticker._due) <= 64
    due_ms = [due * TICK_NS // 1_000_000 for due in ticker._due]
    assert all(now_ms + 10**9 - 20_000 < due <= now_ms + 10**9 + 10**9 // 512 for due in due_ms)


class EarlyAlarm(Alarm):
    """Rings when half of the time has passed."""

    def set(self, at_ns: int) -> None:
        super().set((at_ns + time.monotonic_ns()) // 2)


async def test_a_turn_that_was_asked_for_is_never_early(
    ticking: Ticking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "Alarm", EarlyAlarm)
    ticker, engine, _ = ticking()
    await until(lambda: bool(engine.turns))
    for wait_ns in (400_000, 1_600_000, 5_000_000):
        at_ns, turns = time.monotonic_ns() + wait_ns, len(engine.turns)
        ticker.at(at_ns)
        await until(lambda turns=turns: len(engine.turns) > turns)  # type: ignore[misc]
        assert engine.last_ns >= at_ns


class NotedAlarm(Alarm):
    """Notes what it is set to."""

    times: list[int]

    def set(self, at_ns: int) -> None:
        self.times = [*getattr(self, "times", ()), at_ns]
        super().set(at_ns)


async def test_a_turn_is_due_in_the_tick_in_which_it_was_asked_for(
    ticking: Ticking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of Triton wait for a tenth of a millisecond for company: a timer of the loop's has whole ones."""
    monkeypatch.setattr(subject, "Alarm", NotedAlarm)
    ticker, _, _ = ticking()
    alarm = ticker._alarm
    assert isinstance(alarm, NotedAlarm)
    now_ns = time.monotonic_ns()
    wishes = [now_ns + after_us * 1_000 for after_us in (40_000, 5_000, 500, 100)]
    for wish in wishes:
        ticker.at(wish)
    for wish, at_ns in zip(wishes, alarm.times, strict=True):
        assert wish <= at_ns < wish + TICK_NS


async def test_an_engine_that_fails_gets_no_more_turns_and_somebody_is_told(ticking: Ticking) -> None:
    ticker, engine, failures = ticking()
    await until(lambda: bool(engine.turns))
    engine.fail = True
    ticker.soon()
    await until(lambda: bool(failures))
    engine.fail = False
    turns = len(engine.turns)
    ticker.soon()
    ticker.arrived()
    ticker.news()
    await iterations(50)
    assert len(engine.turns) == turns
    assert len(failures) == 1
