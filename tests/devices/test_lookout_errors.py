"""An error that is no fault of the device, while it is read."""

from __future__ import annotations

import pytest

from appliance.devices.lookout import SILENT_S, Lookout
from appliance.domain.device import Device, DeviceKind
from appliance.domain.device_reading import Reading

DEVICE = Device(kind=DeviceKind.CUDA, index=0, uuid="u", name="d", driver="r")


class Driver:
    """Gives what ``readings`` says, or raises it."""

    devices = (DEVICE,)

    def __init__(self, *readings: Reading | Exception) -> None:
        self._readings = list(readings)

    def read(self, device: Device) -> Reading:
        reading = self._readings.pop(0)
        if isinstance(reading, Exception):
            raise reading
        return reading


def test_a_reading_that_raises_is_no_silence(capfd: pytest.CaptureFixture[str]) -> None:
    now_s = [100.0]
    driver = Driver(Reading(power_w=80.0), AttributeError("no such function"), Reading(power_w=90.0))
    lookout = Lookout(driver, DEVICE, lambda _: True, lambda: now_s[0])
    lookout.look()
    lookout.look()
    now_s[0] += 3 * SILENT_S
    assert lookout.last().reading == Reading(power_w=80.0), "what was known"
    lookout.look()
    assert lookout.last().reading.power_w == 90.0
    assert "cuda:0 cannot be read: AttributeError('no such function')" in capfd.readouterr().err
