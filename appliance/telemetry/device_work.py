"""What the versions on each device have done, for the account of its energy."""

from __future__ import annotations

from typing import Final

from appliance.devices.energy import Work
from appliance.devices.processor import ProcessorAccount
from appliance.devices.watch import DeviceWatch
from appliance.domain.device import CPU, DeviceName
from appliance.domain.device_reading import DeviceFigures
from appliance.domain.energy import ProcessorEnergy
from appliance.telemetry.meter import VersionStatistics
from appliance.telemetry.snapshot import EngineStatus

SECOND_NS: Final = 1_000_000_000


def device_figures(watch: DeviceWatch, status: EngineStatus) -> tuple[DeviceFigures, ...]:
    """Devices as they are now, with what the versions on each of them did."""
    return watch.figures(status.now_ns / SECOND_NS, _by_device(status))


def count_energy(watch: DeviceWatch, status: EngineStatus) -> None:
    """Enter into the accounts of devices what the versions on each of them did, for whoever asks later."""
    watch.count(_by_device(status))


def processor_energy(account: ProcessorAccount, status: EngineStatus) -> ProcessorEnergy | None:
    """What the versions on the processor used until now."""
    work = _by_device(status)
    own = work.pop(CPU, {})
    elsewhere_ns = sum(done.run_ns for versions in work.values() for done in versions.values())
    return account.take(status.now_ns / SECOND_NS, own, elsewhere_ns)


def _by_device(status: EngineStatus) -> dict[DeviceName, dict[str, Work]]:
    work: dict[DeviceName, dict[str, Work]] = {}
    for each in status.versions:
        done = work.setdefault(each.device, {})
        done[f"{each.name}/{each.version}"] = _work(each.statistics)
    return work


def _work(statistics: VersionStatistics) -> Work:
    return Work(sum(each.run_ns for each in statistics.batches), statistics.inferences)
