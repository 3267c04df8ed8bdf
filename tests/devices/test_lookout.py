"""Looking at devices in threads of their own: a driver that does not come back holds up nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from appliance.devices.energy import Work
from appliance.devices.lookout import SILENT_S
from appliance.devices.watch import DeviceWatch, find_devices
from appliance.domain.device import Device, DeviceKind, cuda
from appliance.domain.device_reading import DeviceFigures, Reading


def device(index: int) -> Device:
    return Device(kind=DeviceKind.CUDA, index=index, uuid=f"GPU-{index}", name="scripted", driver="0")


class Scripted:
    """A driver of two devices; asking the first one hangs while ``hangs`` is set."""

    devices = (device(0), device(1))

    def __init__(self) -> None:
        self.hangs = threading.Event()
        self.goes_on = threading.Event()
        self.readings = [0, 0]
        self.energy_j: float | None = None

    def read(self, device: Device) -> Reading:
        """One that counts."""
        if device.index == 0 and self.hangs.is_set():
            assert self.goes_on.wait(60), "nobody let it go on"
        self.readings[device.index] += 1
        return Reading(power_w=float(self.readings[device.index]), energy_j=self.energy_j)


def until(holds: Callable[[], bool]) -> None:
    """Wait for it."""
    end_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end_s, "it did not come to that"
        time.sleep(0.01)


def test_a_device_that_does_not_answer_says_so_and_holds_up_nobody() -> None:
    driver, now_s = Scripted(), [100.0]
    watch = DeviceWatch(driver, clock=lambda: now_s[0])
    watch.look()
    driver.hangs.set()
    watch.busy = True
    watch.start()
    until(lambda: driver.readings[1] >= 2)
    (first, second) = (look.reading for _, look in watch.looks())
    assert not first.silent, "it may still come back"
    now_s[0] += SILENT_S
    begin_s = time.monotonic()
    (first, second) = (look.reading for _, look in watch.looks())
    assert time.monotonic() - begin_s < 1, "nobody waits for it"
    assert first == Reading(silent=True)
    assert not second.silent
    driver.goes_on.set()
    until(lambda: not watch.looks()[0][1].reading.silent)
    watch.close()


def test_a_driver_that_does_not_answer_at_the_start_is_given_up() -> None:
    driver = Scripted()
    driver.hangs.set()
    watch = find_devices(lambda: driver, patience_s=0.05)
    assert watch.looks() == ()
    assert watch.problem == "NVML has not answered for 0.05 s"
    driver.goes_on.set()


def test_where_there_is_no_driver_it_says_why() -> None:
    def absent() -> Scripted:
        raise OSError("NVML Shared Library Not Found")

    watch = find_devices(absent)
    assert (watch.looks(), watch.problem) == ((), "NVML Shared Library Not Found")
    assert watch.figures(0.0, {}) == ()


def test_joules_are_shared_out_among_the_versions_of_each_device() -> None:
    driver, now_s = Scripted(), [0.0]
    watch = DeviceWatch(driver, clock=lambda: now_s[0])
    for at_s, energy_j, run_ns in ((0.0, 0.0, 0), (10.0, 800.0, 0), (20.0, 2_600.0, 1_000)):
        now_s[0], driver.energy_j = at_s, energy_j
        watch.look()
        work = {cuda(0): {"a/1": Work(run_ns, run_ns)}, cuda(1): {"b/1": Work(run_ns, run_ns // 2)}}
        first, second = watch.figures(at_s, work)
    assert (first.idle_w, set(first.energy), first.energy["a/1"].joules) == (80.0, {"a/1"}, 1_000.0)
    assert (second.energy["b/1"].joules, second.energy["b/1"].inferences) == (1_000.0, 500)


def test_what_a_version_did_on_another_device_is_not_counted_on_this_one() -> None:
    driver, now_s = Scripted(), [0.0]
    watch = DeviceWatch(driver, clock=lambda: now_s[0])
    figures: tuple[DeviceFigures, ...] = ()
    for at_s, energy_j, run_ns, index in (
        (0.0, 0.0, 0, 0),
        (10.0, 800.0, 0, 0),
        (20.0, 2_600.0, 1_000, 0),
        (30.0, 3_400.0, 1_000, 1),
        (40.0, 5_200.0, 1_500, 1),
    ):
        now_s[0], driver.energy_j = at_s, energy_j
        watch.look()
        figures = watch.figures(at_s, {cuda(index): {"a/1": Work(run_ns, run_ns)}})
    assert [set(each.energy) for each in figures] == [set(), {"a/1"}]
    assert (figures[1].energy["a/1"].inferences, figures[1].energy["a/1"].joules) == (500, 1_000.0)
