"""Whether a device's hardware has slowed it for so long that models are better off elsewhere. Pure.

Peaks are everyday: what counts has lasted without a break, and is over when it has been away for longer than it took to
count. A look that does not tell is neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.domain.device_reading import throttled

SLOWED_S: Final = 30.0
"""A peak of the load, or an air filter that is being changed, is over by then."""
WELL_S: Final = 300.0
"""A device that models have left cools down at once, and would be slowed again by the next ones."""


class Throttling:
    """Of one device. ``slow`` says why it counts as slowed, as the end of a sentence; "": it does not."""

    def __init__(self) -> None:
        self.slow = ""
        self._since_s: float | None = None
        """Since when each look has told against what counts."""

    def take(self, at_s: float, throttle: Sequence[str] | None) -> None:
        """Take in a look: the reasons of low clocks at ``at_s``; None: they were not told."""
        reasons = throttled(throttle or ())
        if throttle is None or bool(reasons) is bool(self.slow):
            self._since_s = None
            return
        if self._since_s is None:
            self._since_s = at_s
        if at_s - self._since_s >= (WELL_S if self.slow else SLOWED_S):
            self._since_s = None
            self.slow = (
                f"has been slowed by its hardware for {SLOWED_S:g} s ({', '.join(reasons)}); look at its cooling "
                "and its power"
                if reasons
                else ""
            )
