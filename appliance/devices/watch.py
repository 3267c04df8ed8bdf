"""All devices of the machine as they were seen last, and an account of energy for each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from appliance.devices.energy import EnergyAccount, Work
from appliance.devices.lookout import Devices, Look, Lookout
from appliance.devices.nvml import Nvml
from appliance.domain.device import Device, DeviceName
from appliance.domain.device_reading import DeviceFigures

ASKED_S: Final = 30.0
"""Figures that were asked for are soon asked for again: so long devices are looked at each second."""
FOUND_S: Final = 20.0
"""Loading the driver's library and looking at all devices takes a second; with a device that is lost it may not end."""


class DeviceWatch:
    """What status, metrics, telemetry and the engine are told of devices; none where there is no driver, for the reason
    ``problem``. Used by one thread, and never waits for a driver. ``busy``: devices are in use."""

    def __init__(
        self, driver: Devices | None, problem: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.problem = problem
        self.busy = False
        self._asked_s = -ASKED_S
        found = driver.devices if driver is not None else ()
        self._lookouts = tuple(
            Lookout(driver, device, self._wanted, clock) for device in found if driver is not None
        )
        self._accounts = {device: EnergyAccount() for device in found}
        self._counted: dict[Device, Look] = {}
        self._homes: dict[str, DeviceName] = {}
        """The device of each version, as it was told last."""

    def _wanted(self, now_s: float) -> bool:
        return self.busy or now_s - self._asked_s < ASKED_S

    def look(self) -> None:
        """Look at all devices once, however long that takes."""
        for lookout in self._lookouts:
            lookout.look()

    def start(self) -> None:
        """Look at them from now on, each in a thread of its own."""
        for lookout in self._lookouts:
            lookout.start()

    def close(self) -> None:
        """Look no more."""
        for lookout in self._lookouts:
            lookout.close()

    def looks(self) -> tuple[tuple[Device, Look], ...]:
        """How each device was when it was looked at last."""
        return tuple((lookout.device, lookout.last()) for lookout in self._lookouts)

    def figures(
        self, now_s: float, work: Mapping[DeviceName, Mapping[str, Work]]
    ) -> tuple[DeviceFigures, ...]:
        """``work`` is what versions have done by their device. Who asks will ask again: see ASKED_S."""
        self._asked_s = now_s
        self.count(work)
        return tuple(self._figures(device, look) for device, look in self.looks())

    def count(self, work: Mapping[DeviceName, Mapping[str, Work]]) -> None:
        """Enter into the accounts what the last looks show, and ``work``. That is for nobody to see yet, so devices are
        looked at no oftener."""
        for device, account in self._accounts.items():
            for name, done in work.get(device.called, {}).items():
                if self._homes.get(name, device.called) != device.called:
                    account.arrive(name, done)
        self._homes = {name: device for device, versions in work.items() for name in versions}
        for device, look in self.looks():
            if look.reading.energy_j is not None and self._counted.get(device) != look:
                self._counted[device] = look
                self._accounts[device].take(look.at_s, look.reading.energy_j, work.get(device.called, {}))

    def _figures(self, device: Device, look: Look) -> DeviceFigures:
        account = self._accounts[device]
        return DeviceFigures(
            device=device, reading=look.reading, idle_w=account.idle_w, energy=account.versions
        )


def find_devices(open_driver: Callable[[], Devices] = Nvml, patience_s: float = FOUND_S) -> DeviceWatch:
    """The watch of this machine's devices, each of which has been looked at; gives up a driver that does not answer."""
    found: list[DeviceWatch] = []

    def find() -> None:
        try:
            watch = DeviceWatch(open_driver())
            watch.look()
        except OSError as problem:
            watch = DeviceWatch(None, str(problem))
        found.append(watch)

    thread = threading.Thread(target=find, name="find-devices", daemon=True)
    thread.start()
    thread.join(patience_s)
    return found[0] if found else DeviceWatch(None, f"NVML has not answered for {patience_s:g} s")
