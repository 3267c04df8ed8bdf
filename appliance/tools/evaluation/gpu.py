"""Which GPU a job runs on, where one is named: the number counts as the driver and the appliance do.

CUDA would count anew where some GPUs are hidden from it, and shows a process one instance (MIG) at most. So it is told
of the one alone, by its UUID, as workers are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from appliance.devices.nvml import Nvml
from appliance.domain.device import Device, DeviceName, cuda
from appliance.domain.device_wish import ON_CPU, ON_CUDA, DeviceWish, absence
from appliance.domain.errors import ArtefactError

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


def take_device(wish: DeviceWish) -> DeviceName:
    """What CUDA calls the device that is asked for, in this process, which must not have used CUDA for another one. One
    that is asked for by more than its kind is the only one that CUDA sees from then on, if the driver tells of it.
    Raises ArtefactError when it tells of no such."""
    if wish in (ON_CPU, ON_CUDA):
        return wish.first
    try:
        driver = Nvml()
    except OSError:  # nobody tells which there are
        if wish != wish.by_number:
            raise ArtefactError(absence(wish, ())) from None
        return wish.first  # CUDA will say
    try:
        found, devices = device_for(wish, driver.devices), driver.devices
    finally:
        driver.close()
    if found is not None:
        os.environ[VISIBLE] = found.uuid
        return cuda(0)
    if wish != wish.by_number:
        raise ArtefactError(absence(wish, devices))
    known = ", ".join(str(each.called) for each in devices)
    raise ArtefactError(f"there is no device '{wish}' here; the driver tells of {known or 'none'}")


def device_for(wish: DeviceWish, devices: Sequence[Device]) -> Device | None:
    """The first of the driver's devices that is what is asked for, though not all that it names be there; None where
    there is none."""
    return next(filter(wish.allows, devices), None)
