"""What a device's readings come to over time, and whose its memory is. Pure.

Some faults are told once, as errors of the driver (Xid): those count until the driver begins anew, which its counter of
energy shows, or the daemon does. All others are seen anew with each reading, and are over when they are not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from appliance.domain.device_reading import FATAL_XIDS, Reading

XIDS_KEPT: Final = 16
"""Of the driver's errors, the last ones; fatal ones are kept beyond that."""


class Health:
    """Of one device."""

    def __init__(self) -> None:
        self._xids: tuple[int, ...] = ()
        self._counter_j: float | None = None

    def take(self, reading: Reading) -> Reading:
        """The reading with the driver's errors since it began."""
        if reading.counter_j is not None:
            if self._counter_j is not None and reading.counter_j < self._counter_j:
                self._xids = ()
            self._counter_j = reading.counter_j
        told = (*self._xids, *reading.xids)
        fatal = dict.fromkeys(xid for xid in told[:-XIDS_KEPT] if xid in FATAL_XIDS)
        self._xids = (*fatal, *told[-XIDS_KEPT:])
        return replace(reading, xids=self._xids)


def others_bytes(reading: Reading, own: Collection[int]) -> int | None:
    """What of the device's memory is not held by the processes ``own``; None where that cannot be told: the driver does
    not say, or it names none of them, as where it counts processes otherwise than this system does."""
    if reading.memory_used_bytes is None:
        return None
    if not own:
        return reading.memory_used_bytes
    held = [size for pid, size in (reading.processes or {}).items() if pid in own]
    return max(reading.memory_used_bytes - sum(held), 0) if held else None
