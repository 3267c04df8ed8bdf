"""What the processor's packages used, as Intel's and AMD's counters (RAPL) say it; the only file that knows them.

They lie in ``powercap`` of sysfs, a zone for each package, and count all that runs on it. Since these counters gave
secrets away, most systems let only root read them: what cannot be read is absent, never zero. Parts of a package
(cores, memory) are zones of their own, whose energy the package's has already, so they are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

POWERCAP: Final = Path("/sys/class/powercap")
METHOD: Final = "rapl"
MICRO: Final = 1_000_000


class PackageCounter(NamedTuple):
    """A package at one moment: its name, its counter, and after which value that begins anew; microjoules."""

    name: str
    energy_uj: int
    range_uj: int


PackageCounters = Mapping[str, PackageCounter]
"""By zone."""


class Rapl:
    """The packages of this machine below ``root``; a machine without counters, or that keeps them from us, has none."""

    def __init__(self, root: Path = POWERCAP) -> None:
        zones = root.glob("intel-rapl:[0-9]*") if root.is_dir() else ()
        self._zones = tuple(sorted(each for each in zones if each.name.count(":") == 1))  # else: a part

    def read(self) -> PackageCounters:
        """All packages that can be read now."""
        found = {}
        for zone in self._zones:
            with suppress(OSError, ValueError):
                found[zone.name] = PackageCounter(
                    name=(zone / "name").read_text().strip(),
                    energy_uj=int((zone / "energy_uj").read_text()),
                    range_uj=int((zone / "max_energy_range_uj").read_text()),
                )
        return found


def used_joules(before: PackageCounters, now: PackageCounters) -> tuple[tuple[str, float], ...]:
    """Each package that both readings have, by name, and its joules between them. A counter that began anew did so
    once; a package takes minutes at full load to get there."""
    return tuple(
        (each.name, _since(before[zone], each) / MICRO) for zone, each in now.items() if zone in before
    )


def _since(before: PackageCounter, now: PackageCounter) -> int:
    more = now.energy_uj - before.energy_uj
    return more if more >= 0 else more + now.range_uj
