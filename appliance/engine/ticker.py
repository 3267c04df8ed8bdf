"""The engine's asyncio shell: when to take a turn. Decides nothing about requests.

A turn that dispatches wakes another process, which costs more than scheduling ten requests; under load the transport
hands requests over one by one, a fraction of a millisecond apart. So a turn may wait for company: until
``QUIET_ITERATIONS`` iterations of the loop in a row brought no new request, at most ``HOLD_NS``. Whether waiting pays
is learned: while it brings company it goes on; when it brought none for ``PATIENCE`` turns, turns are taken on the spot
and waiting is only tried every ``PROBE_TURNS`` turns, so that a lone client pays neither for it nor for an iteration of
the loop. Nothing waits where every worker is busy: a turn wakes nobody then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

from appliance.engine.alarm import Alarm

QUIET_ITERATIONS = 10
HOLD_NS = 1_000_000
TICK_NS = 50_000
"""What is due within so long shares a turn: a part of the shortest delay that a model asks for."""
EXACT_BITS = 10
"""Times are kept to the tick as many ticks ahead as have so many binary digits, and then to so many digits of how far
ahead they are: clients name them, and each is kept until it comes."""
PATIENCE = 16
PROBE_TURNS = 16


class Engine(Protocol):
    """What a ticker runs."""

    @property
    def arrivals(self) -> int:
        """Requests admitted so far."""

    @property
    def may_wait(self) -> bool:
        """Whether a batch that the next turn would dispatch may wait for company."""

    def turn(self) -> None:
        """Handle everything that has come in."""

    def hand_out(self) -> None:
        """Give out the outcomes that turns left."""


class Ticker:
    """Gives an engine its turns on ``loop``; implements its Pace. An engine that raises gets no more turns, and
    ``failed`` is told. Owner: the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, failed: Callable[[BaseException], None]) -> None:
        self._loop = loop
        self._failed = failed
        self._engine: Engine | None = None
        self._awake = False
        self._turning = False
        self._due: list[int] = []
        """A heap of the ticks at which turns are due, each once, and the same as a set."""
        self._asked: set[int] = set()
        self._alarm = Alarm(loop, self._ring)
        """Rings at the first of them."""
        self._patience = PATIENCE
        self._alone = 0
        self._served = 0
        self._seen = 0
        self._quiet = 0
        self._held_since = 0

    def attach(self, engine: Engine) -> None:
        """Name the engine; wishes before this count."""
        self._engine = engine
        self._awake = False
        self.soon()

    # --- Pace

    def soon(self) -> None:
        """Take a turn in one of the next iterations."""
        if not self._awake:
            self._awake = True
            self._loop.call_soon(self._run)

    def arrived(self) -> None:
        """A request was admitted: a turn now, whose outcomes come later, or soon."""
        engine = self._engine
        if engine is None or self._awake or self._turning or self._patience:
            self.soon()
        else:
            self._take_turn(engine)
            self._loop.call_soon(self._guarded, engine.hand_out)

    def news(self) -> None:
        """A worker said something, and nothing else is going on: a turn now, or soon."""
        engine = self._engine
        if engine is None or self._awake or self._turning or self._patience:
            self.soon()
        else:
            self._take_turn(engine)
            self._guarded(engine.hand_out)

    def at(self, at_ns: int) -> None:
        """Take a turn at ``at_ns`` (monotonic), hardly later and never earlier, whatever turns there are before: nobody
        asks again. What is due in one tick, or far ahead at about one time, shares a turn."""
        due = -(-at_ns // TICK_NS)
        ahead = due - time.monotonic_ns() // TICK_NS
        if (coarse := ahead.bit_length() - EXACT_BITS) > 0 and ahead > 0:
            due = -(-due >> coarse) << coarse
        if due in self._asked:
            return
        self._asked.add(due)
        heappush(self._due, due)
        if self._due[0] == due:
            self._alarm.set(due * TICK_NS)

    def broken(self, error: BaseException) -> None:
        """The engine raised where it must not: no more turns, and ``failed`` is told."""
        if self._engine is not None:
            self._engine = None
            self._failed(error)

    def close(self) -> None:
        """Take no more turns."""
        self._engine = None
        self._alarm.close()

    # --- turns

    def _ring(self) -> None:
        now = time.monotonic_ns() // TICK_NS
        if self._due[0] <= now:
            self.soon()
        while self._due and self._due[0] <= now:
            self._asked.discard(heappop(self._due))
        if self._due:
            self._alarm.set(self._due[0] * TICK_NS)

    def _run(self) -> None:
        engine = self._engine
        if engine is None:
            self._awake = False
        elif self._hold(engine):
            self._loop.call_soon(self._run)
        else:
            self._awake = False
            self._take_turn(engine)
            self._guarded(engine.hand_out)

    def _take_turn(self, engine: Engine) -> None:
        self._learn(engine.arrivals)
        self._turning = True
        self._guarded(engine.turn)
        self._turning = False

    def _guarded(self, step: Callable[[], None]) -> None:
        if self._engine is None:
            return
        try:
            step()
        except Exception as error:  # noqa: BLE001  whatever it is, the engine's state can no longer be trusted
            self.broken(error)

    def _hold(self, engine: Engine) -> bool:
        """Whether waiting an iteration longer may bring company."""
        arrivals = engine.arrivals
        if arrivals == self._seen:
            self._quiet += 1
        else:
            self._seen, self._quiet = arrivals, 0
        if not self._patience or self._quiet >= QUIET_ITERATIONS or not engine.may_wait:
            return False
        now_ns = time.monotonic_ns()
        if not self._held_since:
            self._held_since = now_ns
        return now_ns - self._held_since < HOLD_NS

    def _learn(self, arrivals: int) -> None:
        """A turn begins: did waiting bring company?"""
        came = arrivals - self._served
        if came > 1:
            self._patience, self._alone = PATIENCE, 0
        elif came and self._held_since:
            self._patience -= 1
        elif came:
            self._alone += 1
            if self._alone >= PROBE_TURNS:
                self._patience, self._alone = 1, 0
        self._served = arrivals
        self._quiet = self._held_since = 0
