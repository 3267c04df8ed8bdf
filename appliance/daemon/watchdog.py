"""Let the service manager know that models are answered, where it asks for that (``WatchdogSec`` of systemd), and that
the start goes on, however long models take to load."""

from __future__ import annotations

import asyncio
import os
from typing import Final

from appliance.daemon.canary import Canary
from appliance.engine.port import EnginePort
from appliance.telemetry.notify import notify

PINGS: Final = 2
"""Within the time after which the service manager takes us for dead, as sd_watchdog_enabled(3) has it."""


class Watchdog:
    """A timer of the loop that it watches: one that hangs in a turn says nothing. Until models can be asked it asks for
    more time to start; from then on it says that all is well when a model has answered. Owner: the daemon."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._interval_s = _wanted_s() / PINGS
        self._timer: asyncio.TimerHandle | None = None
        self._canary: Canary | None = None

    def start(self) -> None:
        """Begin, where it is wanted."""
        if self._interval_s > 0:
            self._timer = self._loop.call_later(self._interval_s, self._turned)

    def serves(self, engine: EnginePort) -> None:
        """Models of ``engine`` can be asked from here on."""
        self._canary = Canary(engine, lambda: notify(WATCHDOG="1"))

    def stops(self) -> None:
        """They cannot any more: it is enough that the loop turns."""
        self._canary = None

    def stop(self) -> None:
        """Say nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _turned(self) -> None:
        if self._canary is not None:
            self._canary.look()
        else:
            more = int(PINGS * PINGS * self._interval_s * 1e6)
            notify(WATCHDOG="1", EXTEND_TIMEOUT_USEC=str(more))
        self.start()


def _wanted_s() -> float:
    """How long this process may be silent; 0: nobody listens to it, or not to this process."""
    within, whose = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not within.isdecimal() or whose not in ("", str(os.getpid())):
        return 0.0
    return int(within) / 1e6
