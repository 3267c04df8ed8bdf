"""All figures that a box tells its fleet each minute, as records; what was taken counts as told once it is settled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from appliance.devices.energy import METHOD as NVML
from appliance.devices.rapl import METHOD
from appliance.domain.device import CPU
from appliance.domain.energy import KWH_J
from appliance.fleet.records import AnyRecord, Energy, Inventory
from appliance.telemetry.energy import PackageEnergy
from appliance.telemetry.inventory import devices_made_of, inventory
from appliance.telemetry.loads import Loads
from appliance.telemetry.minutes import MS_NS, Minutes, health
from appliance.telemetry.snapshot import Snapshot


class Figures:
    """What was done, how the box is, what it used, how its versions were loaded, and what it is: at the start, and when
    that changes."""

    def __init__(self) -> None:
        self._minutes = Minutes()
        self._loads = Loads()
        self._energy = PackageEnergy()
        self._devices: Mapping[tuple[str, str], tuple[float, int]] = {}
        self._machine = inventory()
        self._told: Mapping[str, str] = {}
        self._rows = 0
        self._at_ns = 0

    def take(self, now: Snapshot) -> list[AnyRecord]:
        """The records of this moment."""
        records: list[AnyRecord] = [*self._minutes.take(now), health(now), *self._energies(now)]
        records += self._loads.take(now)
        if (facts := self._facts(now)) != self._told:
            records.append(Inventory(at_ms=int(now.wall_s * 1000), facts=facts))
        return records

    def settled(self, now: Snapshot) -> None:
        """What was taken of this snapshot is told."""
        self._minutes.settled(now)
        self._loads.settled(now)
        self._energy.settled()
        self._devices = _counted(now)
        self._told, self._rows, self._at_ns = self._facts(now), _rows(now), now.engine.now_ns

    def _facts(self, now: Snapshot) -> Mapping[str, str]:
        return {**self._machine, **devices_made_of([each.device for each in now.devices])}

    def _energies(self, now: Snapshot) -> Iterator[Energy]:
        """What was used since the last time; nothing at the first, whose window is not known."""
        used = self._energy.used()
        if not self._at_ns:
            return
        at_ms, window_ms = int(now.wall_s * 1000), (now.engine.now_ns - self._at_ns) // MS_NS
        rows = max(_rows(now) - self._rows, 0)
        for device, joules in used:
            yield Energy(
                at_ms=at_ms,
                device=device,
                method=METHOD,
                window_ms=window_ms,
                joules=joules,
                inferences=rows,
                cost=joules / KWH_J * now.kwh_price,
            )
        for (device, model), (total, done) in _counted(now).items():
            joules_before, done_before = self._devices.get(
                (device, model), (0.0, 0) if model else (total, done)
            )
            if total > joules_before:
                yield Energy(
                    at_ms=at_ms,
                    device=device,
                    method=METHOD if device == str(CPU) else NVML,
                    window_ms=window_ms,
                    joules=total - joules_before,
                    inferences=max(done - done_before, 0),
                    model=model,
                    cost=(total - joules_before) / KWH_J * now.kwh_price,
                )


def _rows(now: Snapshot) -> int:
    return sum(each.statistics.inferences for each in now.engine.versions)


def _counted(now: Snapshot) -> Mapping[tuple[str, str], tuple[float, int]]:
    """Joules and rows of each device as a whole ("") and of each version on it."""
    counted = {}
    for each in now.devices:
        board = each.reading.board
        uuid, energy_j = (each.device.uuid if board is None else board.uuid), each.reading.counter_j
        if energy_j is not None:  # of instances that of their GPU, once
            counted[uuid, ""] = (energy_j, _rows(now))
        for model, told in each.energy.items():
            counted[each.device.uuid, model] = (told.joules, told.inferences)
    for model, told in now.processor.versions.items() if now.processor is not None else ():
        counted[str(CPU), model] = (told.joules, told.inferences)
    return counted
