"""A model that was unloaded by hand and that the repository index still lists, in the words of both protocols."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from models.generate import write_model
from tests.conftest import Serve

GONE = "Request for unknown model: 'mlp' has no available versions"
NO_VERSION = "Request for unknown model: 'mlp' version 1 is not at ready state"
NO_FIGURES = "requested model 'mlp' is not available"

pytestmark = pytest.mark.every_front_end


def _told(client: Any, version: str) -> dict[str, tuple[str, str]]:
    """Status and words of what is asked of the model."""
    module = http if isinstance(client, http.InferenceServerClient) else grpc
    tensor = module.InferInput("x", [1, 64], "FP32")
    asked: dict[str, Callable[[], Any]] = {
        "infer": lambda: client.infer("mlp", [tensor], model_version=version, request_id="7"),
        "metadata": lambda: client.get_model_metadata("mlp", version),
        "config": lambda: client.get_model_config("mlp", version),
        "statistics": lambda: client.get_inference_statistics("mlp", version),
    }
    told = {}
    for name, ask in asked.items():
        with pytest.raises(InferenceServerException) as refused:
            ask()
        told[name] = (str(refused.value.status()).removeprefix("StatusCode."), str(refused.value.message()))
    return told


def test_what_was_unloaded_has_no_available_versions(serve: Serve, tmp_path: Path) -> None:
    write_model("mlp", tmp_path / "models")
    control = tmp_path / "control"
    daemon = serve(tmp_path / "models", {"control": {"socket": str(control)}})
    with (
        grpc.InferenceServerClient(f"unix:{control}") as operator,
        grpc.InferenceServerClient(daemon.grpc) as over_grpc,
        http.InferenceServerClient(daemon.http) as over_http,
    ):
        operator.unload_model("mlp")
        daemon.until("its end", lambda now: [entry["state"] for entry in now["models"]] == ["UNAVAILABLE"])
        told = {"infer": GONE, "metadata": GONE, "config": GONE, "statistics": NO_FIGURES}
        assert _told(over_grpc, "") == {name: ("NOT_FOUND", text) for name, text in told.items()}
        assert _told(over_http, "") == {name: ("404", text) for name, text in told.items()}
        assert set(_told(over_grpc, "1").values()) == {("UNAVAILABLE", NO_VERSION)}
        assert set(_told(over_http, "1").values()) == {("503", NO_VERSION)}
        assert {status for status, _ in _told(over_grpc, "9").values()} == {"NOT_FOUND"}
        assert {status for status, _ in _told(over_http, "9").values()} == {"404"}
        assert not over_grpc.is_model_ready("mlp")
        assert not over_http.is_model_ready("mlp")
        operator.load_model("mlp")
        assert over_grpc.is_model_ready("mlp")
        assert over_http.get_inference_statistics("mlp")["model_stats"]
