"""A whole daemon with real workers under a simulated driver that tells of instances (MIG). No GPU is here."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Serve
from tests.faults.clients import FAKE_SECTIONS, ask
from tests.faults.fake_models import write_fake
from tests.faults.test_workers import version_in, worker_of

DRIVER = """
import pynvml
from tests.devices.simulated_nvml import Board, SimulatedNvml
parts = {place: Board(uuid=f"MIG-{place}", name="simulated MIG 1g.10gb", memory_bytes=10 << 30, processes=())
         for place in (0, 3)}
pynvml.nvmlLib = SimulatedNvml(Board(uuid="GPU-0", mig=True, instances=parts), Board(uuid="GPU-1", processes=()))
"""
NOT_BEFORE = "; GPUs are found when the appliance starts, and it is not tried again before that"


def test_each_instance_has_a_worker_that_sees_no_other_device(serve: Serve, tmp_path: Path) -> None:
    for index in range(3):
        group = f"instance_group {{ kind: KIND_GPU gpus: [ {index} ] }}"
        write_fake(tmp_path, f"serves{index}", extra=group)
        write_fake(tmp_path, f"tells{index}", extra=group, mode="tell_device")
    daemon = serve(tmp_path, FAKE_SECTIONS, before=DRIVER)
    status = daemon.status()
    told = [version_in(status, f"tells{index}")["reason"] for index in range(3)]
    assert told == ["cuda:0 b'MIG-0'", "cuda:0 b'MIG-3'", "cuda:0 b'GPU-1'"]
    assert [version_in(status, f"serves{index}")["device"] for index in range(3)] == [
        "cuda:0",
        "cuda:1",
        "cuda:2",
    ]
    assert len({worker_of(status, f"serves{index}/1")["pid"] for index in range(3)}) == 3
    assert [(each["index"], each["uuid"]) for each in status["devices"]] == [
        (0, "MIG-0"),
        (1, "MIG-3"),
        (2, "GPU-1"),
    ]
    assert ask(daemon.grpc, "serves1").as_numpy("y").tolist() == [[0, 1, 2, 3]]


def test_an_instance_is_asked_for_by_its_uuid_and_what_its_gpu_can_do(serve: Serve, tmp_path: Path) -> None:
    group = "instance_group { kind: KIND_GPU }"
    asked = {"instance": "MIG-3", "whole": "GPU-77,GPU-1", "cut": "GPU-0", "unclear": "MIG-0,MIG-3,GPU-1"}
    for name, uuids in asked.items():
        write_fake(tmp_path, name, extra=group, gpu_uuids=uuids, min_compute_capability="9.0")
    write_fake(tmp_path, "newer", extra=group, gpu_uuids="MIG-3", min_compute_capability="10.0")
    driver = f"{DRIVER}\npynvml.nvmlLib.boards[0].instances[5] = Board(uuid='MIG-0f', name='simulated MIG')\n"
    daemon = serve(tmp_path, FAKE_SECTIONS, before=driver)
    status = daemon.status()
    assert [each["capability"] for each in status["devices"]] == [[9, 0]] * 4
    assert version_in(status, "instance")["device"] == "cuda:1"
    assert version_in(status, "whole")["device"] == "cuda:3"
    assert ask(daemon.grpc, "instance").as_numpy("y").tolist() == [[0, 1, 2, 3]]
    each = ", ".join(f"cuda:{number} (compute capability 9.0)" for number in range(4))
    there = f" (min_compute_capability), UUID {{}} (gpu_uuids), and the driver tells of {each}; "
    for name, capability, uuids, advice in (
        ("cut", "9.0", "GPU-0", "ask for one of those, or for any"),
        ("newer", "10.0", "MIG-3", "ask for one of those, or for any"),
        ("unclear", "9.0", "MIG-0, MIG-3, GPU-1", "several begin with MIG-0: give more of it"),
    ):
        version = version_in(status, name)
        assert version["state"] == "UNAVAILABLE"
        assert version["reason"] == (
            f"asks for compute capability {capability} or more{there.format(uuids)}{advice}{NOT_BEFORE}"
        )
