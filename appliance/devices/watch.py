"""All devices of the machine, looked at once a second at most, and an account of energy for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from appliance.devices.energy import EnergyAccount, Work
from appliance.devices.nvml import Nvml
from appliance.domain.device import Device, DeviceFigures, DeviceName, Reading

LOOK_S: Final = 1.0
"""A look takes the event loop's time, and drivers do not renew their figures more often than ten times a second."""


class Devices(Protocol):
    """A driver that tells of its devices."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """In the driver's order."""

    def read(self, device: Device) -> Reading:
        """How the device is now."""


class DeviceWatch:
    """What status, metrics and telemetry tell of devices; none where there is no driver. Used by one thread."""

    def __init__(self, driver: Devices | None) -> None:
        self._driver = driver
        self._accounts = {
            device: EnergyAccount() for device in (driver.devices if driver is not None else ())
        }
        self._looked_s: float | None = None
        self._figures: tuple[DeviceFigures, ...] = ()

    def figures(
        self, now_s: float, work: Mapping[DeviceName, Mapping[str, Work]]
    ) -> tuple[DeviceFigures, ...]:
        """``work`` is what versions have done by their device."""
        if self._looked_s is None or now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._figures = tuple(
                self._look(device, now_s, work.get(device.called, {})) for device in self._accounts
            )
        return self._figures

    def _look(self, device: Device, now_s: float, work: Mapping[str, Work]) -> DeviceFigures:
        assert self._driver is not None
        account, reading = self._accounts[device], self._driver.read(device)
        if reading.energy_j is not None:
            account.take(now_s, reading.energy_j, work)
        return DeviceFigures(device=device, reading=reading, idle_w=account.idle_w, energy=account.versions)


def find_devices() -> DeviceWatch:
    """The watch of this machine's devices."""
    try:
        return DeviceWatch(Nvml())
    except OSError:  # no driver: a box without a GPU, which is nothing to tell of
        return DeviceWatch(None)
