"""A model whose session on a GPU goes with each capture, in a whole daemon with real workers: what that costs the model
beside it in the same worker. Driver and device are simulated, and no GPU is here."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.conftest import Serve
from tests.faults.test_session_room import DRIVER
from tests.faults.test_workers import version_in
from tests.runtimes.pretended_cuda import LOSES

NEIGHBOUR = "mlp"
PRETENDED = """
from types import MappingProxyType

from appliance.runtimes import runtime

runtime._BUILT_IN = MappingProxyType({**runtime._BUILT_IN, "onnx": "tests.runtimes.pretended_cuda:LosingCuda"})
"""
"""Run by each process before anything else."""
ENOUGH_S = 40


@pytest.fixture
def daemon(serve: Serve, tmp_path: Path) -> ApplianceProcess:
    """Both models in one worker."""
    root, python = tmp_path / "models", tmp_path / "python"
    write_model(NEIGHBOUR, root)
    (root / NEIGHBOUR / "config.pbtxt").write_text("instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]")
    shutil.copytree(root / NEIGHBOUR, root / LOSES)
    python.mkdir()
    (python / "sitecustomize.py").write_text(PRETENDED)
    paths = os.pathsep.join((str(python), os.environ["PYTHONPATH"]))
    return serve(root, before=DRIVER, environment={"PYTHONPATH": paths})


def answer(daemon: ApplianceProcess, model: str) -> Any:
    feed = triton.InferInput("x", [1, 64], "FP32")
    feed.set_data_from_numpy(np.ones((1, 64), np.float32))
    client = triton.InferenceServerClient(daemon.http)
    try:
        return client.infer(model, [feed]).as_numpy("y").tolist()
    finally:
        client.close()


def restarts_of(daemon: ApplianceProcess, model: str) -> dict[str, int]:
    return {cause: count for cause, count in version_in(daemon.status(), model)["restarts"].items() if count}


def test_a_model_whose_session_goes_with_each_capture_costs_its_neighbour_one_restart(
    daemon: ApplianceProcess,
) -> None:
    expected, until = answer(daemon, NEIGHBOUR), time.monotonic() + ENOUGH_S
    refused = set[str]()
    while True:
        assert time.monotonic() < until, f"{restarts_of(daemon, NEIGHBOUR)} and still {refused}"
        try:
            assert answer(daemon, LOSES) == expected
            break
        except InferenceServerException as problem:
            refused.add(str(problem))
    assert any("cannot be made anew: cuDNN is not there any more" in each for each in refused)
    daemon.wait_log(f"{LOSES}/1 is given up in this process: cuDNN is not there any more")
    for _ in range(20):
        assert [answer(daemon, model) for model in (LOSES, NEIGHBOUR)] == [expected] * 2
    assert [restarts_of(daemon, model) for model in (LOSES, NEIGHBOUR)] == [{"gave up": 1}] * 2
    status = daemon.status()
    assert version_in(status, NEIGHBOUR)["notes"] == []
    (note,) = version_in(status, LOSES)["notes"]
    assert note.startswith("it runs without CUDA graphs")
