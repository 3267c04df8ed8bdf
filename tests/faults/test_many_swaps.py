"""Two hundred models change their versions at one moment, in real processes, and nobody who asks notices."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto

from tests.conftest import Serve
from tests.faults.clients import Stream, ask
from tests.repository.onnx_files import plain_model, write_version

MODELS = 200


def serving(now: Any) -> set[str]:
    """Versions that are ready, and nothing else is there or on its way."""
    found = {f"{entry['name']}/{entry['version']}" for entry in now["models"]}
    ready = {
        f"{entry['name']}/{entry['version']}"
        for entry in now["models"]
        if entry["state"] == "READY" and entry["trial"] is None
    }
    return ready if ready == found else set()


def held(now: Any) -> set[str]:
    """Versions that are in some worker."""
    return {model for worker in now["workers"] for model in worker["models"]}


@pytest.mark.timeout(240)
def test_two_hundred_swaps_of_different_models_at_once(serve: Serve, tmp_path: Path) -> None:
    root, staging, model = tmp_path / "models", tmp_path / "staging", plain_model(element=TensorProto.UINT8)
    names = [f"m{number}" for number in range(MODELS)]
    for name in (*names, "bystander"):
        write_version(root, name, model)
    daemon = serve(root, {"swap": {"watch_s": 0.1}})
    first = {f"{name}/1" for name in (*names, "bystander")}
    daemon.until("all of them", lambda now: serving(now) == first, timeout_s=90.0)
    for name in names:
        write_version(staging, name, model, 2)

    swapped = {*(f"{name}/2" for name in names), "bystander/1"}
    with (
        Stream(daemon.grpc, "bystander", threads=2) as bystander,
        Stream(daemon.grpc, "m7", threads=2) as own,
    ):
        bystander.wait_for(20)
        own.wait_for(20)
        for name in names:
            (staging / name / "2").rename(root / name / "2")
        daemon.signal(signal.SIGHUP)
        now = daemon.until("all the others", lambda now: serving(now) == swapped, timeout_s=120.0)
        bystander.wait_for(20)
        own.wait_for(20)
    for stream in (bystander, own):
        assert set(stream.outcomes) == {"OK"}
        assert not stream.wrong
    assert now["swaps"]["endings"] == {"live": 2 * MODELS + 1}
    for name in names:
        assert ask(daemon.grpc, name).get_response().model_version == "2"
    daemon.until("the end of what was before", lambda now: held(now) == swapped)
