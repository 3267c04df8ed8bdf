"""Looks at one device again and again, in a thread of its own: a driver that has lost its device may never answer.

A reading that does not come back is told as such, by whoever asks for the last one; nobody waits for it. Threads are as
many as devices, and the process does not wait for them when it ends.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from appliance.devices.health import Health
from appliance.domain.device import Device
from appliance.domain.device_reading import Reading

LOOK_S: Final = 1.0
"""Drivers do not renew their figures more often than ten times a second, and a fault may cost answers for so long."""
REST_S: Final = 10.0
"""As often it is looked while nobody uses the device or asks for its figures."""
SILENT_S: Final = 10.0
"""A reading takes a millisecond; one that takes so long does not come."""


class Devices(Protocol):
    """A driver that tells of its devices."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """In the driver's order."""

    def read(self, device: Device) -> Reading:
        """How the device is now."""


class Look(NamedTuple):
    """A reading, and when it was."""

    at_s: float
    reading: Reading


class Lookout:
    """Of ``device``. ``wanted`` says at what time something was last asked of it, or that it is in use."""

    def __init__(
        self,
        driver: Devices,
        device: Device,
        wanted: Callable[[float], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.device = device
        self._driver = driver
        self._wanted = wanted
        self._clock = clock
        self._health = Health()
        self._last: Look | None = None
        self._began_s: float | None = None
        """When the reading began that has not come back; written by the thread alone."""
        self._closed = threading.Event()

    def start(self) -> None:
        """Look from now on."""
        threading.Thread(target=self._run, name=f"look-{self.device.called}", daemon=True).start()

    def close(self) -> None:
        """Look no more; a reading that is under way may never end."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(LOOK_S):
            now_s = self._clock()
            if self._last is None or self._wanted(now_s) or now_s - self._last.at_s >= REST_S:
                self.look()

    def look(self) -> None:
        """Look once, however long that takes."""
        self._began_s = began_s = self._clock()
        try:
            self._last = Look(began_s, self._health.take(self._driver.read(self.device)))
        except Exception as problem:  # noqa: BLE001 - whatever it is, it is no fault of the device
            self._last = Look(began_s, self._last.reading if self._last else Reading())
            print(f"{self.device.called} cannot be read: {problem!r}", file=sys.stderr, flush=True)
        finally:
            self._began_s = None

    def last(self) -> Look:
        """The last reading, or that the driver does not answer."""
        began_s, now_s = self._began_s, self._clock()
        if began_s is not None and now_s - began_s >= SILENT_S:
            return Look(now_s, Reading(silent=True))
        return self._last or Look(now_s, Reading())
