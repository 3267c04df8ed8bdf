"""All figures that a box tells its fleet each minute, as records; what was taken counts as told once it is settled."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.fleet.records import AnyRecord, Energy, Inventory
from appliance.telemetry.energy import METHOD, PackageEnergy
from appliance.telemetry.inventory import inventory
from appliance.telemetry.minutes import MS_NS, Minutes, health
from appliance.telemetry.snapshot import Snapshot


class Figures:
    """What was done, how the box is, what it used, and once what it is."""

    def __init__(self) -> None:
        self._minutes = Minutes()
        self._energy = PackageEnergy()
        self._inventory = False
        self._rows = 0
        self._at_ns = 0

    def take(self, now: Snapshot) -> list[AnyRecord]:
        """The records of this moment."""
        records: list[AnyRecord] = [*self._minutes.take(now), health(now), *self._energies(now)]
        if not self._inventory:
            records.append(Inventory(at_ms=int(now.wall_s * 1000), facts=inventory()))
        return records

    def settled(self, now: Snapshot) -> None:
        """What was taken of this snapshot is told."""
        self._minutes.settled(now)
        self._energy.settled()
        self._inventory, self._rows, self._at_ns = True, _rows(now), now.engine.now_ns

    def _energies(self, now: Snapshot) -> Iterator[Energy]:
        """What was used since the last time; nothing at the first, whose window is not known."""
        for device, joules in self._energy.used():
            if self._at_ns:
                yield Energy(
                    at_ms=int(now.wall_s * 1000),
                    device=device,
                    method=METHOD,
                    window_ms=(now.engine.now_ns - self._at_ns) // MS_NS,
                    joules=joules,
                    inferences=max(_rows(now) - self._rows, 0),
                )


def _rows(now: Snapshot) -> int:
    return sum(each.statistics.inferences for each in now.engine.versions)
