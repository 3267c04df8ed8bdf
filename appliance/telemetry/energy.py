"""What the processor used, where the system lets it be read: the counters of Intel's and AMD's packages (RAPL).

They count the whole package, with all that runs on it, so joules per inference are of the box as it was, not of one
model. Windows of a minute: the counters are too coarse for single requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

POWERCAP: Final = Path("/sys/class/powercap")
METHOD: Final = "rapl"
MICRO: Final = 1_000_000


class PackageEnergy:
    """Reads the counters below ``root``; a box without any, or that keeps them from us, has none. What was used counts
    from the reading that was settled last."""

    def __init__(self, root: Path = POWERCAP) -> None:
        zones = root.glob("intel-rapl:[0-9]*") if root.is_dir() else ()
        self._zones = tuple(
            sorted(each for each in zones if each.name.count(":") == 1)
        )  # else: a part of a package
        self._settled: dict[Path, int] = {}
        self._now = self._read()
        self.settled()

    def used(self) -> tuple[tuple[str, float], ...]:
        """Each package by name, and its joules."""
        self._now = self._read()
        return tuple(self._used())

    def settled(self) -> None:
        """What was used until the last reading is told."""
        self._settled = self._now

    def _read(self) -> dict[Path, int]:
        found = {}
        for zone in self._zones:
            with suppress(OSError, ValueError):
                found[zone] = int((zone / "energy_uj").read_text())
        return found

    def _used(self) -> Iterator[tuple[str, float]]:
        for zone, now in self._now.items():
            before = self._settled.get(zone)
            with suppress(OSError, ValueError):
                name = (zone / "name").read_text().strip()
                limit = int((zone / "max_energy_range_uj").read_text())
                if before is not None:
                    yield name, (now - before if now >= before else now + limit - before) / MICRO
