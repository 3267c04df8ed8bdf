"""What counts joules and memory beside a trial: the processor's packages (RAPL), or a device (NVML).

Both count everything that the package or the device draws, idle power and other work included, so a trial wants a quiet
machine. What is not told is None, never zero.
"""

from __future__ import annotations

import os
from typing import Final, Protocol

from appliance.devices import energy, rapl
from appliance.devices.lookout import Devices
from appliance.devices.nvml import Nvml
from appliance.devices.rapl import Rapl, used_joules
from appliance.domain.device import Device
from appliance.domain.device_wish import DeviceWish
from appliance.tools.evaluation.gpu import device_for

WINDOW_S_MIN: Final = 0.1
"""Shorter runs are not counted: drivers renew their counters as seldom as ten times a second."""


class Meter(Protocol):
    """Counts from when it was opened."""

    name: str
    """How it counts; "" where it does not."""
    device: str
    """The accelerator that it looks at; "" for none."""

    def joules(self) -> float | None:
        """What was drawn so far."""

    def device_bytes(self) -> int | None:
        """Memory of the accelerator that this process has; where the driver does not know processes, what has been
        taken by all of them since."""


class ProcessorMeter:
    """The packages of the processor; of no use below a hypervisor that hides them."""

    device = ""

    def __init__(self, packages: Rapl) -> None:
        self._packages = packages
        self._before = packages.read()
        self._joules = 0.0
        self.name = rapl.METHOD if self._before else ""

    def joules(self) -> float | None:
        """The sum of all packages; counted at each look, so that counters which begin anew are noticed."""
        now = self._packages.read()
        if not self._before or now.keys() != self._before.keys():
            return None
        self._joules += sum(each for _, each in used_joules(self._before, now))
        self._before = now
        return self._joules

    def device_bytes(self) -> int | None:
        """None: there is no accelerator."""
        return None


class DeviceMeter:
    """The device of a driver that models run on."""

    name = ""

    def __init__(self, driver: Devices, device: Device) -> None:
        self._driver = driver
        self._device = device
        self.device = self._device.name
        before = driver.read(self._device)
        self._used_before = before.memory_used_bytes
        if before.energy_j is not None:
            self.name = energy.METHOD

    def joules(self) -> float | None:
        """The driver's counter."""
        return self._driver.read(self._device).energy_j

    def device_bytes(self) -> int | None:
        """As the port says."""
        now = self._driver.read(self._device)
        own = (now.processes or {}).get(os.getpid())
        if own is not None:
            return own
        if now.memory_used_bytes is None or self._used_before is None:
            return None
        return max(now.memory_used_bytes - self._used_before, 0)


class NoMeter:
    """Where nobody tells."""

    name = device = ""

    def joules(self) -> float | None:
        """None."""
        return None

    def device_bytes(self) -> int | None:
        """None."""
        return None


def open_meter(wish: DeviceWish) -> Meter:
    """What can count here for models that ask for that device."""
    if wish.first.is_cpu:
        return ProcessorMeter(Rapl())
    try:
        driver = Nvml()
    except OSError:  # nobody tells of the device, which a trial on it does not need
        return NoMeter()
    found = device_for(wish, driver.devices)
    return DeviceMeter(driver, found) if found else NoMeter()


def accelerator_of(wish: DeviceWish) -> str:
    """What models that ask for that device run on beside the processor: its name, "cuda" or "cuda:1" where nobody tells
    it, "" for none."""
    return "" if wish.first.is_cpu else open_meter(wish).device or str(wish)


def row_joules(
    joules_before: float | None, joules_after: float | None, window_s: float, rows: int
) -> float | None:
    """Joules of one of ``rows`` rows; None where nothing counted, or the window is too short for the counter."""
    if joules_before is None or joules_after is None or window_s < WINDOW_S_MIN or not rows:
        return None
    drawn = joules_after - joules_before
    return drawn / rows if drawn > 0 else None
