"""What the processor used, where the system lets it be read: the counters of Intel's and AMD's packages (RAPL).

They count the whole package, with all that runs on it, so joules per inference are of the box as it was, not of one
model. Windows of a minute: the counters are too coarse for single requests.
"""

from __future__ import annotations

from pathlib import Path

from appliance.devices.rapl import POWERCAP, Rapl, used_joules


class PackageEnergy:
    """Reads the counters below ``root``. What was used counts from the reading that was settled last."""

    def __init__(self, root: Path = POWERCAP) -> None:
        self._rapl = Rapl(root)
        self._settled = self._now = self._rapl.read()

    def used(self) -> tuple[tuple[str, float], ...]:
        """Each package by name, and its joules."""
        self._now = self._rapl.read()
        return used_joules(self._settled, self._now)

    def settled(self) -> None:
        """What was used until the last reading is told."""
        self._settled = self._now
