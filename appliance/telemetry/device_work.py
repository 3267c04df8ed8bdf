"""What the versions on each device have done, for the account of its energy, and the device as a JSON value."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from typing import Final

from appliance.devices.energy import METHOD, WINDOW_S, Work
from appliance.devices.processor import ProcessorAccount
from appliance.devices.rapl import METHOD as RAPL
from appliance.devices.watch import DeviceWatch
from appliance.domain.device import CPU, DeviceName
from appliance.domain.device_reading import DeviceFigures, VersionEnergy, fault_words, troubles
from appliance.domain.energy import ProcessorEnergy, inference_energy
from appliance.telemetry.meter import VersionStatistics
from appliance.telemetry.snapshot import EngineStatus

Json = bool | int | float | str | list["Json"] | dict[str, "Json"] | None

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


def processor_document(energy: ProcessorEnergy | None, kwh_price: float) -> Json:
    """The value of ``processor``."""
    if energy is None:
        return None
    models: dict[str, Json] = {name: _used(each, kwh_price) for name, each in energy.versions.items()}
    how: dict[str, Json] = {"method": RAPL, "window_s_min": WINDOW_S, "idle_w": energy.idle_w}
    return {"energy": {**how, "models": models}}


def _by_device(status: EngineStatus) -> dict[DeviceName, dict[str, Work]]:
    work: dict[DeviceName, dict[str, Work]] = {}
    for each in status.versions:
        done = work.setdefault(each.device, {})
        done[f"{each.name}/{each.version}"] = _work(each.statistics)
    return work


def device_document(figures: DeviceFigures, kwh_price: float) -> dict[str, Json]:
    """One entry of ``devices``; what the driver does not tell is left out."""
    device, reading = asdict(figures.device), asdict(figures.reading)
    device["instance_of"] = figures.device.instance_of or None
    known = {key: _json(value) for key, value in (device | reading).items() if value is not None}
    energy: dict[str, Json] = {name: _used(each, kwh_price) for name, each in figures.energy.items()}
    how: dict[str, Json] = {"method": METHOD, "window_s_min": WINDOW_S, "idle_w": figures.idle_w}
    shares = {
        "budget_bytes": figures.budget_bytes,
        "others_bytes": figures.others_bytes,
        "unsaid_bytes": figures.unsaid_bytes,
    }
    known |= {key: size for key, size in shares.items() if size is not None}
    if words := fault_words(figures.reading):
        known["fault"] = words
    if figures.slow:
        known["slow"] = figures.slow
    return {**known, "troubles": list(troubles(figures.reading)), "energy": {**how, "models": energy}}


def _used(used: VersionEnergy, kwh_price: float) -> dict[str, Json]:
    """The cost is left out where it is not known."""
    each = inference_energy(used, kwh_price)
    said: dict[str, Json] = {
        "joules": used.joules,
        "inferences": used.inferences,
        "window_s": used.window_s,
        "joules_per_inference": used.per_inference_j,
    }
    if each is not None and each.cost_per_million is not None:
        said["cost_per_million_inferences"] = each.cost_per_million
    return said


def _json(value: object) -> Json:
    if isinstance(value, dict):
        return {str(key): each for key, each in value.items() if each is not None}
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return list(value)
    assert isinstance(value, bool | int | float | str)
    return value


def _work(statistics: VersionStatistics) -> Work:
    return Work(sum(each.run_ns for each in statistics.batches), statistics.inferences)
