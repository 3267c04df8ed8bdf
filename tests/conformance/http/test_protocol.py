"""What the protocol says about servers and models, through the public client."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from appliance import __version__
from tests.appliance_process import ApplianceProcess
from tests.conformance.http.conftest import DIGITS
from tests.conformance.http.exchange import TIMEOUT_S, call, infer


@pytest.fixture
def client(server: ApplianceProcess) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.http) as client:
        yield client


def _zeros(*shape: int) -> list[triton.InferInput]:
    tensor = triton.InferInput("image", list(shape), "FP32")
    tensor.set_data_from_numpy(np.zeros(shape, dtype=np.float32))
    return [tensor]


def test_health(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits")
    assert client.is_model_ready("digits", "1")
    assert not client.is_model_ready("digits", "9")
    assert not client.is_model_ready("nowhere")
    assert not client.is_model_ready("not_onnx")


def test_why_a_model_is_not_ready_is_in_the_answer(server: ApplianceProcess) -> None:
    assert call(server, "GET", "/v2/models/nowhere/ready").status == 404
    broken = call(server, "GET", "/v2/models/not_onnx/ready")
    assert broken.status in (404, 503)
    assert "'not_onnx'" in broken.error


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v2"), ("GET", "/metrics"), ("GET", "/"), ("GET", "/nowhere"), ("GET\0", "/v2")],
)
def test_no_answer_tells_what_the_server_is_built_on(
    server: ApplianceProcess, method: str, path: str
) -> None:
    host, _, port = server.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as stream:
        stream.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        head = b"".join(iter(lambda: stream.recv(65536), b"")).partition(b"\r\n\r\n")[0]
    told = [line for line in head.split(b"\r\n") if line.lower().startswith(b"server:")]
    assert told == [b"Server: appliance"]


def test_server_metadata(client: triton.InferenceServerClient) -> None:
    metadata = client.get_server_metadata()
    assert (metadata["name"], metadata["version"]) == ("appliance", __version__)
    assert {"binary_tensor_data", "classification", "statistics"} <= set(metadata["extensions"])


def test_model_metadata_leads_with_the_batch_dimension(client: triton.InferenceServerClient) -> None:
    assert client.get_model_metadata("digits") == {
        "name": "digits",
        "versions": ["1", "2"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 8, 8]}],
        "outputs": [{"name": "probabilities", "datatype": "FP32", "shape": [-1, 10]}],
    }
    assert client.get_model_metadata("no_batch")["inputs"][0]["shape"] == [3, 2]


def test_model_config_has_what_load_generators_read(client: triton.InferenceServerClient) -> None:
    config = client.get_model_config("digits", "2")
    assert (config["name"], config["max_batch_size"]) == ("digits", 32)
    (image,) = config["input"]
    assert (image["name"], image["data_type"], image["dims"]) == ("image", "TYPE_FP32", [8, 8])
    assert (image["format"], image["optional"]) == ("FORMAT_NONE", False)
    assert config["output"][0]["label_filename"] == "digits_labels.txt"
    assert config["version_policy"] == {"all": {}}
    assert "preferred_batch_size" in config["dynamic_batching"]
    assert client.get_model_config("identity_bytes")["input"][0]["data_type"] == "TYPE_STRING"


def test_statistics_count_per_version(client: triton.InferenceServerClient) -> None:
    def count(version: str) -> tuple[int, int]:
        figures = client.get_inference_statistics("digits", version)["model_stats"][0]
        assert (figures["name"], figures["version"]) == ("digits", version)
        return figures["inference_count"], figures["inference_stats"]["success"]["count"]

    before = count("1"), count("2")
    client.infer("digits", _zeros(3, 8, 8), model_version="1")
    assert count("1") == (before[0][0] + 3, before[0][1] + 1)
    assert count("2") == before[1]
    everything = client.get_inference_statistics()["model_stats"]
    assert len(everything) > len(client.get_inference_statistics("digits")["model_stats"]) == 2


def test_the_version_that_served_is_named(client: triton.InferenceServerClient) -> None:
    for version, served in (("", "2"), ("1", "1"), ("2", "2")):
        answer = client.infer("digits", _zeros(1, 8, 8), model_version=version, request_id="a 7")
        assert answer.get_response()["model_version"] == served
        assert answer.get_response()["id"] == "a 7"


def test_index_lists_every_version_with_its_reason(
    server: ApplianceProcess, client: triton.InferenceServerClient
) -> None:
    index = {(entry["name"], entry["version"]): entry for entry in client.get_model_repository_index()}
    assert index["digits", "1"]["state"] == index["digits", "2"]["state"] == "READY"
    broken = index["not_onnx", "1"]
    assert broken["state"] == "UNAVAILABLE"
    assert "not an ONNX model" in broken["reason"]
    ready = call(server, "POST", "/v2/repository/index", {"ready": True}).document
    assert {entry["state"] for entry in ready} == {"READY"}
    assert len(ready) == len(index) - 1


def test_classification_names_the_top_classes(client: triton.InferenceServerClient) -> None:
    outputs = [triton.InferRequestedOutput("probabilities", class_count=3)]
    answer = client.infer("digits", _zeros(2, 8, 8), outputs=outputs).as_numpy("probabilities")
    assert answer.shape == (2, 3)
    labels = (DIGITS / "digits_labels.txt").read_text().split()
    scores = []
    for word in answer[0]:
        score, index, label = word.decode().split(":")
        assert label == labels[int(index)]
        scores.append(float(score))
    assert scores == sorted(scores, reverse=True)


def test_priority_timeout_and_unknown_parameters_are_taken(client: triton.InferenceServerClient) -> None:
    answer = client.infer("digits", _zeros(1, 8, 8), priority=1, timeout=5_000_000)
    assert answer.as_numpy("probabilities").shape == (1, 10)


def test_models_are_neither_loaded_nor_unloaded_from_the_network(
    client: triton.InferenceServerClient,
) -> None:
    for act in (client.load_model, client.unload_model):
        with pytest.raises(InferenceServerException, match="over the network is turned off") as refused:
            act("digits")
        assert refused.value.status() == "403"


def test_shared_memory_is_not_offered(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="shared memory is turned off") as refused:
        client.register_system_shared_memory("region", "/key", 64)
    assert refused.value.status() == "501"
    for ask in (client.get_cuda_shared_memory_status, client.unregister_cuda_shared_memory):
        with pytest.raises(InferenceServerException, match="shared memory is turned off") as refused:
            ask()
        assert refused.value.status() == "501"
    with pytest.raises(InferenceServerException, match="CUDA shared memory of clients is not offered"):
        client.register_cuda_shared_memory("region", b"aGFuZGxl", 0, 8)


def test_log_settings_are_read_and_not_changed(client: triton.InferenceServerClient) -> None:
    before = client.get_log_settings()
    assert isinstance(before["log_verbose_level"], int)
    for changes in ({"log_info": False}, {"no_such_setting": True}):
        with pytest.raises(InferenceServerException, match=r"control\.socket") as refused:
            client.update_log_settings(changes)
        assert refused.value.status() == "403"
    assert client.update_log_settings({}) == client.get_log_settings() == before
    assert client.update_log_settings(before) == before


def test_tracing_is_off_and_says_so(client: triton.InferenceServerClient) -> None:
    assert client.get_trace_settings()["trace_level"] == ["OFF"]
    assert client.update_trace_settings(settings={"trace_level": ["OFF"]})["trace_level"] == ["OFF"]
    cleared = dict.fromkeys(("trace_file", "trace_level", "trace_rate", "trace_count", "log_frequency"))
    assert client.update_trace_settings(settings=cleared)["trace_level"] == ["OFF"]
    with pytest.raises(InferenceServerException, match="not offered"):
        client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})
    with pytest.raises(InferenceServerException, match="is not found"):
        client.get_trace_settings("nowhere")


def test_what_is_not_asked_for_as_binary_is_json(server: ApplianceProcess) -> None:
    document = {
        "inputs": [
            {"name": name, "shape": [1, 16], "datatype": "INT32", "data": list(range(16))}
            for name in ("INPUT0", "INPUT1")
        ],
        "outputs": [{"name": "OUTPUT1", "parameters": {"binary_data": True}}, {"name": "OUTPUT0"}],
    }
    reply = infer(server, "add_sub", document)
    outputs = reply.document["outputs"]
    assert [output["name"] for output in outputs] == ["OUTPUT1", "OUTPUT0"]
    assert outputs[0]["parameters"] == {"binary_data_size": 64}
    assert outputs[1]["data"] == [2 * index for index in range(16)]
    assert reply.headers["content-type"] == "application/octet-stream"
    assert reply.body[int(reply.headers["inference-header-content-length"]) :] == bytes(64)
