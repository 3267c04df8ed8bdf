"""Unmodified clients of other projects: they reach us, and they can be imported beside us in either order."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.clients.conftest import RunClient

pytestmark = pytest.mark.clients

OURS = "import appliance.daemon.daemon; from appliance.frontend.grpc.wire_pb import inference_pb2 as ours"
THEIRS = {
    "tritonclient": "import tritonclient.grpc, tritonclient.grpc.aio, tritonclient.http, tritonclient.http.aio",
    "kserve": "import kserve; from kserve.protocol.grpc import grpc_predict_v2_pb2",
    "mlserver": "import mlserver, mlserver.grpc.server",
}
BOTH_WORK = "assert ours.ModelInferRequest(model_name='x').SerializeToString() == b'\\n\\x01x'"


@pytest.mark.parametrize("client", list(THEIRS))
@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_one_process_holds_us_and_them(
    require_client: Callable[[str], None], run_client: RunClient, client: str, first: str
) -> None:
    require_client(client)
    lines = [OURS, THEIRS[client]] if first == "ours" else [THEIRS[client], OURS]
    run_client("\n".join([*lines, BOTH_WORK]))


@pytest.mark.every_front_end
def test_kserves_grpc_client(serve: Any, model_directory: Any, run_client: RunClient) -> None:
    process = serve(model_directory("add_sub"))
    said = json.loads(run_client("kserve_client.py", process.grpc))
    assert [said[key] for key in ("live", "ready", "model_ready", "unknown_ready")] == [
        True,
        True,
        True,
        False,
    ]
    rows = np.arange(32).reshape(2, 16)
    for form in ("raw", "typed"):
        assert said[form]["id"] == form
        assert said[form]["version"] == "1"
        assert said[form]["outputs"] == {"OUTPUT0": (rows + rows).tolist(), "OUTPUT1": (rows - rows).tolist()}
    assert "unknown model: 'nope'" in said["unknown"]


@pytest.mark.every_front_end
def test_kserves_rest_client(serve: Any, model_directory: Any, run_client: RunClient) -> None:
    process = serve(model_directory("add_sub"))
    said = json.loads(run_client("kserve_rest_client.py", f"http://{process.http}"))
    assert [said[key] for key in ("live", "ready", "model_ready", "unknown_ready")] == [
        True,
        True,
        True,
        False,
    ]
    rows = np.arange(32).reshape(2, 16)
    for form in ("json", "binary"):
        answer = {"id": form, "OUTPUT0": (rows + rows).tolist(), "OUTPUT1": (rows - rows).tolist()}
        assert said[form] == [answer] * len(said[form])
    assert "unknown model: 'nope'" in said["unknown"]
