"""One package on boxes whose GPUs differ, and on one box whose GPU is exchanged while its daemon is away: real daemons
with a store under a simulated driver. No GPU is here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from appliance.cli.main import main
from tests.appliance_process import ApplianceProcess
from tests.conftest import Serve
from tests.faults.clients import ask
from tests.faults.test_swaps import write_version
from tests.faults.test_swaps_of_the_store import SECTIONS

DRIVER = """
import pynvml
from tests.devices.simulated_nvml import Board, SimulatedNvml
pynvml.nvmlLib = SimulatedNvml(Board(uuid="GPU-1f", name="T4", capability=(7, 5)), Board(%s))
"""
SAME, ADA = 'uuid="GPU-2f", name="T4", capability=(7, 5)', 'uuid="GPU-2f", name="L4", capability=(8, 9)'
ASKED = """
instance_group { kind: %s }
parameters { key: "min_compute_capability" value { string_value: "8.9" } }
parameters { key: "gpu_uuids" value { string_value: "GPU-2f" } }
"""
REFUSED = "asks for compute capability 8.9 or more (min_compute_capability), UUID GPU-2f (gpu_uuids), and "


def installed(folder: Path, name: str, kind: str, *words: str) -> Path:
    """The store in ``folder`` with a package of a model that asks for a GPU, made on a machine that has none."""
    state, config, package = folder / "state", folder / "store.toml", str(folder / f"{name}.model")
    state.mkdir(exist_ok=True)
    config.write_text('[store]\nfree_floor_bytes = 0\n[packages]\nunsigned = "allow"\n')
    source = write_version(folder / "sources" / name, 1).parent
    (source / "config.pbtxt").write_text(ASKED % kind)
    assert main(["model", "pack", str(source), "--version", "1", "--name", name, "-o", package, *words]) == 0
    assert main(["model", "verify", package, "--config", str(config)]) == 0
    assert main(["model", "install", package, "--state-dir", str(state), "--config", str(config)]) == 0
    return state


def version_of(daemon: ApplianceProcess, state: str) -> Any:
    """The only model's, once it is in that state."""
    now = daemon.until(state, lambda now: [each["state"] for each in now["models"]] == [state])
    return now["models"][0]


def test_a_refusal_counts_for_the_gpus_that_there_were(serve: Serve, tmp_path: Path) -> None:
    state = installed(tmp_path, "t", "KIND_GPU", "--no-proof")
    none_such = (
        f"{REFUSED}the driver tells of cuda:0 (compute capability 7.5), cuda:1 (compute "
        "capability 7.5); ask for one of those, or for any"
    )
    nobody_tells = f"{REFUSED}NVML tells of no GPU here; 'notices' of 'appliance status' say why"
    broken = "import sys; sys.modules['pynvml'] = None"
    for before, said in (
        (DRIVER % SAME, none_such),
        (broken, nobody_tells),
        (
            DRIVER % ADA,
            "asks for device 'cuda', but the installed onnxruntime",
        ),  # it got as far as its worker
        (DRIVER % SAME, none_such),
    ):
        daemon = serve(None, SECTIONS, arguments=("--state-dir", str(state)), before=before)
        version = version_of(daemon, "UNAVAILABLE")
        assert version["reason"].startswith(said)
        absent = version["reason"].endswith(
            "found when the appliance starts, and it is not tried again before that"
        )
        assert absent is (before != DRIVER % ADA)
        assert (version["device"], version["next_try_ms"] > 0) == (
            ("cuda", False) if absent else ("cuda:1", True)
        )
        assert any("nothing tells of one" in each for each in daemon.status()["notices"]) is (
            before == broken
        )
        daemon.stop()


def test_kind_auto_serves_from_the_processor_where_no_gpu_is_what_it_asks_for(
    serve: Serve, tmp_path: Path
) -> None:
    state = installed(tmp_path, "t", "KIND_AUTO")
    lacks_nothing = "from appliance.runtimes import auto_device; auto_device.cuda_problem = str"
    for before, serves in ((DRIVER % SAME, True), (DRIVER % ADA, False), ("", True)):
        daemon = serve(
            None, SECTIONS, arguments=("--state-dir", str(state)), before=f"{before}\n{lacks_nothing}"
        )
        version = version_of(daemon, "READY" if serves else "UNAVAILABLE")
        assert version["device"] == ("cpu" if serves else "cuda:1")
        if serves:
            assert ask(daemon.grpc, "t").as_numpy("y").tolist() == [[0, 1, 2, 3]]
        daemon.stop()
