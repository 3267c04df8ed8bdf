"""Workers of a GPU run on the processors nearest to it. The driver is simulated, and so is that one processor of this
machine is nearer than another; no GPU and no machine of two sockets is here."""

from __future__ import annotations

import os
from pathlib import Path

import pynvml
import pytest

from appliance.config.workers import WorkersConfig
from appliance.devices.nvml import Nvml
from appliance.domain.device import Device, DeviceKind, cuda, neighbours
from appliance.workers.settings import WorkerTerms
from tests.conftest import Serve
from tests.devices.simulated_nvml import Board, SimulatedNvml
from tests.faults.clients import FAKE_SECTIONS, ask
from tests.faults.fake_models import write_fake
from tests.faults.test_workers import worker_of

DRIVER = """
import os
import pynvml
from tests.devices.simulated_nvml import Board, SimulatedNvml
pynvml.nvmlLib = SimulatedNvml(Board(near=(max(os.sched_getaffinity(0)), 1_000), processes=()))
"""


def device(index: int, near: tuple[int, ...] | None) -> Device:
    return Device(kind=DeviceKind.CUDA, index=index, uuid=f"GPU-{index}", name="a", driver="0", near=near)


def test_work_is_bound_to_near_processors_that_are_allowed_where_there_are_others() -> None:
    sockets = device(0, (0, 1, 2, 3)), device(1, (4, 5, 6, 7))
    assert neighbours(sockets, range(8)) == {cuda(0): (0, 1, 2, 3), cuda(1): (4, 5, 6, 7)}
    assert neighbours(sockets, {2, 3, 4}) == {cuda(0): (2, 3), cuda(1): (4,)}
    assert neighbours(sockets, {0, 1}) == {}, "one has nothing to choose from, the other none nearby"
    assert neighbours([device(0, tuple(range(8)))], range(8)) == {}, "a machine of one node"
    assert neighbours([device(0, None), device(1, ())], range(8)) == {}, "a driver that does not tell"


@pytest.mark.parametrize("near", [(), (0,), (0, 63, 64, 191)])
def test_the_driver_tells_of_any_number_of_processors(
    monkeypatch: pytest.MonkeyPatch, near: tuple[int, ...]
) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", SimulatedNvml(Board(near=near)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    nvml = Nvml()
    assert nvml.devices[0].near == near
    nvml.close()


def test_what_is_configured_comes_first() -> None:
    near = {cuda(1): (4, 5)}
    plain, bound = WorkerTerms(near=near), WorkerTerms(config=WorkersConfig(cpus=((0,), (1,))), near=near)
    assert [plain.settings(0, each).cpus for each in (cuda(0), cuda(1))] == [(), (4, 5)]
    assert plain.settings(0).cpus == (), "those of the processor run anywhere"
    assert bound.settings(1, cuda(1)).cpus == (1,)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this machine has one processor")
def test_a_daemon_binds_the_workers_of_a_gpu_and_no_others(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "near", extra="instance_group { kind: KIND_GPU }")
    write_fake(tmp_path, "anywhere")
    daemon = serve(tmp_path, FAKE_SECTIONS, before=DRIVER)
    allowed, status = os.sched_getaffinity(daemon.pid), daemon.status()
    assert os.sched_getaffinity(worker_of(status, "near/1")["pid"]) == {max(allowed)}
    assert os.sched_getaffinity(worker_of(status, "anywhere/1")["pid"]) == allowed
    assert ask(daemon.grpc, "near").as_numpy("y").tolist() == [[0, 1, 2, 3]]
