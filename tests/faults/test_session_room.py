"""How much of a GPU a session may take, from the driver to the runtime: a whole daemon with real workers. The driver is
simulated, and no GPU is here."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Serve
from tests.faults.clients import FAKE_SECTIONS, ask
from tests.faults.fake_models import write_fake
from tests.faults.test_workers import version_in

GIB = 1 << 30
DRIVER = """
import pynvml
from tests.devices.simulated_nvml import Board, SimulatedNvml
others = ((4711, 2 << 30),)
boards = [
    Board(uuid=f"GPU-{index}", memory_bytes=(10 + index) << 30, used_bytes=2 << 30, processes=others)
    for index in range(2)
]
pynvml.nvmlLib = SimulatedNvml(*boards)
"""


def test_a_runtime_is_told_what_is_left_of_its_device(serve: Serve, tmp_path: Path) -> None:
    for index in range(2):
        group = f"instance_group {{ kind: KIND_GPU gpus: [ {index} ] }}"
        write_fake(tmp_path, f"serves{index}", extra=group)
        write_fake(tmp_path, f"tells{index}", extra=group, mode="tell_room")
    write_fake(tmp_path, "processor", mode="tell_room")
    daemon = serve(tmp_path, FAKE_SECTIONS, before=DRIVER)
    status = daemon.status()
    told = [version_in(status, f"tells{index}")["reason"] for index in range(2)]
    assert told == [f"{(7 + index) * GIB} bytes" for index in range(2)], "less others' 2 GiB, and a context"
    assert version_in(status, "processor")["reason"] == "0 bytes"
    for index in range(2):
        assert ask(daemon.grpc, f"serves{index}").as_numpy("y").tolist() == [[0, 1, 2, 3]]
