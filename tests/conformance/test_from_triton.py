"""docs/FROM-TRITON.md names every RPC, path, extension and metric, and each is what the document says."""

from __future__ import annotations

import http.client
import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from appliance.domain.errors import (
    ApplianceError,
    DeadlineExpired,
    DeadlineUnreachable,
    InvalidRequest,
    QueueFull,
)
from appliance.domain.protocol import EXTENSIONS, SYSTEM_SHARED_MEMORY
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from appliance.frontend.http import application
from appliance.frontend.statuses import statuses_of
from models.generate import write_model
from models.generators.graph import constant, model_bytes, node, tensor_port
from tests.appliance_process import ApplianceProcess
from tests.conformance.grpc.stub import Stub
from tests.conftest import Serve

DOCUMENT = (Path(__file__).parents[2] / "docs" / "FROM-TRITON.md").read_text()
ONLY_THERE = {"/v2/models/*/generate", "/v2/models/*/generate_stream"}
"""Paths of Triton that are no routes here."""
ON_THE_SOCKET = {"RepositoryModelLoad", "RepositoryModelUnload"}

ERRORS_THAT_DIFFER: dict[str, type[ApplianceError]] = {
    "Request timeout expired": DeadlineExpired,
    "cannot be served before its deadline": DeadlineUnreachable,
    "Exceeds maximum queue size": QueueFull,
    "is not valid UTF-8": InvalidRequest,
}


def rows(heading: str) -> dict[str, str]:
    """What stands in the first column of the table below ``heading`` to what it is said to be."""
    section = DOCUMENT.partition(f"\n## {heading}")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| (.+?) \| (same|other|absent) \| ?(?:.*?)\|$", section, re.MULTILINE)
    names = [(name, said) for column, said in lines for name in re.findall(r"`([^`]+)`", column)]
    assert len(names) == len(dict(names)), "something is said twice"
    assert len(lines) == section.count("\n|") - 2, "a line is neither same nor other nor absent"
    return dict(names)


def paths() -> dict[tuple[str, str], str]:
    """Methods and paths of HTTP, ``*`` for each segment that is a name, to what they are said to be."""
    found = {}
    for line, said in rows("HTTP").items():
        method, _, pattern = line.partition(" ")
        pieces = re.findall(r"\[.*?\]|[^\[]+", pattern)
        choices = [("", piece[1:-1]) if piece.startswith("[") else (piece,) for piece in pieces]
        for choice in itertools.product(*choices):
            found[method, re.sub(r"\{\w+\}", "*", "".join(choice))] = said
    return found


@pytest.fixture(scope="module")
def methods() -> dict[str, Any]:
    return {each.name: each for each in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}


def test_every_rpc_is_there(methods: dict[str, Any]) -> None:
    assert rows("RPCs").keys() == methods.keys()


def test_every_route_is_there() -> None:
    anything: Any = _Anything()
    tables = (
        application._inference_routes(anything),
        application._protocol_routes(anything),
        application._extension_routes(anything),
        application._figures_routes(anything),
    )
    routes = {(method, re.sub(r"\{\w+\}", "*", path)) for table in tables for method, path, _ in table}
    assert {each for each in paths() if each[1] not in ONLY_THERE} == routes


class _Anything:
    """Has every handler."""

    def __getattr__(self, name: str) -> Any:
        return name


def test_every_extension_is_there() -> None:
    offered = {name for name, said in rows("Extensions").items() if said != "absent"}
    assert offered == {*EXTENSIONS, SYSTEM_SHARED_MEMORY}


def test_options_and_habits_are_told() -> None:
    assert len(rows("Options")) > 60
    assert all(option.startswith("--") for option in rows("Options"))
    rows("Habits")


def test_statuses_that_differ_are_as_they_are_told() -> None:
    section = DOCUMENT.partition("\n## Errors\n")[2].partition("\n## ")[0]
    told = {
        text: (grpc_status, int(http_status))
        for text, grpc_status, http_status in re.findall(
            r"^\| `([^`]+)` \| [^|]+ \| `([A-Z_]+)`, (\d+) \|", section, re.MULTILINE
        )
    }
    assert len(told) == section.count("\n|") - 2
    found = {text: statuses_of(kind("")) for text, kind in ERRORS_THAT_DIFFER.items()}
    assert told == {text: (each.grpc.name, each.http) for text, each in found.items()}


@pytest.mark.every_front_end
def test_texts_that_are_no_text_are_refused_as_is_told(serve: Serve, tmp_path: Path) -> None:
    write_model("string_concat", tmp_path)
    daemon = serve(tmp_path)
    with triton.InferenceServerClient(daemon.grpc) as client:
        feeds = [triton.InferInput(name, [1, 1], "BYTES") for name in "ab"]
        for feed in feeds:
            feed.set_data_from_numpy(np.array([[b"whole\x00text"]], np.object_))
        answer = client.infer("string_concat", feeds).as_numpy("y")
        assert answer is not None
        assert answer.tolist() == [[b"whole\x00text" * 2]]
        feeds[0].set_data_from_numpy(np.array([[b"\xff"]], np.object_))
        with pytest.raises(InferenceServerException, match="is not valid UTF-8") as refusal:
            client.infer("string_concat", feeds)
        assert refusal.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.every_front_end
def test_runs_that_failed_are_not_among_executions(serve: Serve, tmp_path: Path) -> None:
    graph = model_bytes(
        "look_up",
        [node("Gather", ["table", "x"], ["y"])],
        inputs=[tensor_port("x", "INT64", ["batch"])],
        outputs=[tensor_port("y", "FP32", ["batch"])],
        constants=[constant("table", np.zeros(3, np.float32))],
    )
    (tmp_path / "look_up" / "1").mkdir(parents=True)
    (tmp_path / "look_up" / "1" / "model.onnx").write_bytes(graph)
    daemon = serve(tmp_path)
    with triton.InferenceServerClient(daemon.grpc) as client:
        feed = triton.InferInput("x", [1], "INT64")
        feed.set_data_from_numpy(np.array([99], np.int64))
        with pytest.raises(InferenceServerException, match="model 'look_up' failed"):
            client.infer("look_up", [feed])
        (found,) = client.get_inference_statistics("look_up").model_stats
        assert (found.inference_count, found.execution_count, found.inference_stats.fail.count) == (0, 0, 1)
        assert not found.batch_stats
        feed.set_data_from_numpy(np.array([2], np.int64))
        client.infer("look_up", [feed])
        (found,) = client.get_inference_statistics("look_up").model_stats
        assert (found.inference_count, found.execution_count, found.inference_stats.fail.count) == (1, 1, 1)
        assert [each.compute_infer.count for each in found.batch_stats] == [1]


@pytest.mark.every_front_end
def test_what_is_said_is_so(serve: Serve, tmp_path: Path, methods: dict[str, Any]) -> None:
    shutil.copytree(write_model("mlp", tmp_path / "models") / "1", tmp_path / "models" / "mlp" / "2")
    socket = tmp_path / "control"
    daemon = serve(
        tmp_path / "models", {"control": {"socket": str(socket)}, "metrics": {"triton_names": True}}
    )
    for (method, path), said in paths().items():
        status = _status_of(daemon, method, path)
        if "sharedmemory" in path and said == "other":
            assert (status, said) == (501, "other"), (
                "off by default; tests/conformance/shared_memory has it on"
            )
            continue
        assert (status < 400) == (said != "absent"), (method, path, status)
    for name, said in rows("RPCs").items():
        if "SharedMemory" in name and said == "other":
            assert (_answers(daemon.grpc, methods[name]), said) == (False, "other")
            continue
        address = f"unix:{socket}" if name in ON_THE_SOCKET else daemon.grpc
        assert _answers(address, methods[name]) == (said != "absent"), name
    assert not _answers(daemon.grpc, methods["RepositoryModelLoad"])
    exposed = set(re.findall(r"^# TYPE (\w+)", daemon.get("/metrics").decode(), re.MULTILINE))
    for name, said in rows("Metrics").items():
        assert (said == "same") == (name in exposed), name
    assert {name for name in exposed if name.startswith("nv_")} == {
        name for name, said in rows("Metrics").items() if said == "same"
    }


@pytest.mark.every_front_end
def test_habits_are_as_they_are_said_to_be(serve: Serve, tmp_path: Path) -> None:
    shutil.copytree(write_model("mlp", tmp_path) / "1", tmp_path / "mlp" / "2")
    daemon = serve(tmp_path)
    with triton.InferenceServerClient(daemon.grpc) as client:
        feed = triton.InferInput("x", [1, 64], "FP32")
        feed.set_data_from_numpy(np.zeros((1, 64), np.float32))
        assert client.infer("mlp", [feed]).get_response().model_version == "2"
        assert [client.is_model_ready("mlp", version) for version in "12"] == [False, True]
        with pytest.raises(InferenceServerException, match="no model here keeps state"):
            client.infer("mlp", [feed], sequence_id=1, sequence_start=True)
        feed.set_shared_memory("region", 256)
        with pytest.raises(InferenceServerException, match="shared memory"):
            client.infer("mlp", [feed])


def _status_of(daemon: ApplianceProcess, method: str, path: str) -> int:
    """What a plain request of that kind for the one model, or its version that serves, is answered with."""
    path = path.replace("/versions/*", "/versions/2").replace("*", "mlp")
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 64], "data": [0.0] * 64}
    body = json.dumps({"inputs": [tensor]} if path.endswith("/infer") else {}) if method == "POST" else None
    connection = http.client.HTTPConnection(daemon.http, timeout=30)
    try:
        connection.request(method, path, body)
        return connection.getresponse().status
    finally:
        connection.close()


def _answers(address: str, method: Any) -> bool:
    """Whether the RPC, asked of the one model, is answered."""
    request = getattr(pb, method.input_type.name)()
    if "name" in method.input_type.fields_by_name and method.name.startswith("Model"):
        request.name = "mlp"
    if method.name.startswith("RepositoryModel") or "Infer" in method.name:
        request.model_name = "mlp"
    if "Infer" in method.name:
        request.inputs.add(name="x", datatype="FP32", shape=[1, 64])
        request.raw_input_contents.append(bytes(256))
    with Stub(address) as stub:
        try:
            if method.client_streaming:
                (answer,) = stub.stream(iter([request]))
                return not answer.error_message
            stub.call(method.name, request)
        except grpc.RpcError:
            return False
    return True
