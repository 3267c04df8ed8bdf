"""Joules of a box that nobody asks for figures: NVIDIA's own Python module on a simulated driver. No GPU is here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from appliance.daemon.device_care import DeviceCare
from appliance.devices.lookout import REST_S
from appliance.devices.nvml import Nvml
from appliance.devices.watch import DeviceWatch
from appliance.domain.device import cuda
from appliance.domain.device_reading import DeviceFigures
from appliance.domain.model import VersionState
from appliance.telemetry.meter import VersionMeter
from appliance.telemetry.recent import PERIOD_S
from appliance.telemetry.snapshot import EngineStatus, VersionStatus
from tests.conftest import Serve
from tests.devices.simulated_nvml import Board, SimulatedNvml
from tests.faults.clients import FAKE_SECTIONS, ask
from tests.faults.fake_models import write_fake
from tests.frontend.http.engine_figures import made_up_status

HOUR_S = 3600
IDLE_W, BUSY_W = 80, 300
SECOND = 1_000_000_000
DRIVER = """
import time
import pynvml
from appliance.devices import energy, lookout
from appliance.telemetry import recent
from tests.devices.simulated_nvml import Board, SimulatedNvml
energy.WINDOW_S = recent.PERIOD_S = lookout.LOOK_S = lookout.REST_S = 0.2
class Metered(Board):
    looks = 0
    @property
    def energy_mj(self):
        Metered.looks += 1
        print(f"looked {self.looks} times", flush=True)
        return int(time.monotonic() * 80_000)
    @energy_mj.setter
    def energy_mj(self, _):
        pass
pynvml.nvmlLib = SimulatedNvml(Metered(processes=()))
"""
"""A driver that counts how often its counter of energy was read, and windows for which a test can wait."""


class Clocked:
    """A box whose GPU is looked at every ten seconds, as is done while nobody asks, and whose versions are counted as
    often by the ticker of recent figures."""

    def __init__(self, board: Board) -> None:
        self.now_s = 0.0
        self.board = board
        self.meter = VersionMeter("m", 1)
        self.watch = DeviceWatch(Nvml(), clock=lambda: self.now_s)
        self.watch.look()
        self.care = DeviceCare(self.watch, lambda what, **fields: None)

    @property
    def status(self) -> EngineStatus:
        version = VersionStatus(
            name="m",
            version=1,
            state=VersionState.READY,
            reason="",
            queued=0,
            running=0,
            workers=(),
            statistics=self.meter.frozen(),
            device=cuda(0),
        )
        return replace(made_up_status(), now_ns=int(self.now_s * SECOND), versions=(version,))

    def pass_time(self, duration_s: float, power_w: float, rows: int = 0) -> None:
        """Of each period; ``rows`` run in it."""
        for _ in range(int(duration_s / PERIOD_S)):
            self.now_s += max(PERIOD_S, REST_S)
            self.board.energy_mj += int(power_w * PERIOD_S * 1_000)
            if rows:
                self.meter.batch_finished(rows, 0, SECOND, 0)
                self.meter.succeeded(rows, 0, (0, SECOND, 0), SECOND, 0)
            self.watch.look()
            self.care.count(self.status)

    def asked(self) -> DeviceFigures:
        """What one who asks is told."""
        (figures,) = self.care.figures(self.status)
        return figures


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Clocked:
    """On a simulated driver."""
    board = Board(processes=())
    monkeypatch.setattr(pynvml, "nvmlLib", SimulatedNvml(board))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return Clocked(board)


def test_who_asks_for_the_first_time_after_an_idle_hour_and_load_is_told_joules(box: Clocked) -> None:
    box.pass_time(HOUR_S, IDLE_W)
    box.pass_time(60, BUSY_W, rows=100)
    first = box.asked()
    assert first.idle_w == pytest.approx(IDLE_W)
    used = first.energy["m/1"]
    assert used.joules == pytest.approx(60 * (BUSY_W - IDLE_W))
    assert (used.inferences, used.window_s) == (box.status.versions[0].statistics.inferences, 60.0)
    assert [box.asked().energy for _ in range(2)] == [first.energy] * 2, "asking changes nothing"


def test_counting_is_no_asking(box: Clocked) -> None:
    """A GPU that nobody uses or asks for is looked at every ten seconds, not each second."""
    box.pass_time(60, IDLE_W)
    assert not box.watch._wanted(box.now_s)
    box.asked()
    assert box.watch._wanted(box.now_s)


def test_a_daemon_counts_joules_while_nobody_asks(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "serves", extra="instance_group { kind: KIND_GPU }")
    daemon = serve(tmp_path, FAKE_SECTIONS, before=DRIVER)
    looks = _looks(daemon.log())
    daemon.wait_log(f"looked {looks + 20} times")
    (device,) = daemon.status()["devices"]
    assert device["energy"]["idle_w"] is not None, "this is the first one who asks"
    for _ in range(3):
        ask(daemon.grpc, "serves")
    told: Any = daemon.until("joules", lambda now: now["devices"][0]["energy"]["models"].get("serves/1"))
    assert told["devices"][0]["energy"]["models"]["serves/1"]["inferences"] > 0


def _looks(log: str) -> int:
    return max(int(line.split()[1]) for line in log.splitlines() if line.startswith("looked "))
