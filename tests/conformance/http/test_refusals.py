"""Every row of the protocol's error table: the status and the words that clients match on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.appliance_process import ApplianceProcess
from tests.conformance.http.exchange import call, infer

ROW: Mapping[str, Any] = {"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [0.5] * 64}


def _with(**changes: Any) -> dict[str, Any]:
    return {"inputs": [{**ROW, **changes}]}


def _binary(size: int, shape: list[int] | None = None) -> dict[str, Any]:
    tensor = {
        "name": "x",
        "shape": shape or [1, 64],
        "datatype": "FP32",
        "parameters": {"binary_data_size": size},
    }
    return {"inputs": [tensor]}


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (_with(datatype="INT32"), "inference input 'x' data-type is 'INT32', but model 'mlp' expects 'FP32'"),
        (_with(datatype="FP99"), "data-type is 'FP99', but model 'mlp' expects 'FP32'"),
        (
            _with(shape=[1, 65]),
            "unexpected shape for input 'x' for model 'mlp'. Expected [-1,64], got [1,65]",
        ),
        (_with(shape=[64]), "unexpected shape for input 'x' for model 'mlp'"),
        (_with(shape=[1] * 9), "at most 8 dimensions"),
        (_with(shape=[1, -64]), "negative dimension"),
        (_with(shape=[2**62, 64]), "more elements than can be addressed"),
        (_with(shape=[2**64, 64]), "does not fit in 64 bits"),
        (_with(shape=[1.0, 64]), "'shape' of input 'x' must be an array of integers"),
        (_with(shape=[True, 64]), "'shape' of input 'x' must be an array of integers"),
        (_with(shape="1,64"), "'shape' of input 'x' must be an array of integers"),
        (_with(shape=[1000, 64], data=[]), "inference request batch-size must be <="),
        (_with(data=[0.5] * 63), "shape does not match true shape of 'data' field"),
        (_with(data=[[0.5] * 63, 1]), "ragged"),
        (_with(data=["half"] * 64), "must hold FP32 values; found a string"),
        (_with(name="nope"), "unexpected inference input 'nope' for model 'mlp'"),
        (_with(name=7), "'name' of an input must be a string"),
        ({"inputs": []}, "expected 1 inputs but got 0 inputs for model 'mlp'"),
        ({"inputs": [ROW, ROW]}, "input 'x' already exists in request"),
        ({"inputs": {}}, "'inputs' of the request must be an array of objects"),
        ({}, "request has no 'inputs'"),
        (
            {"inputs": [{"name": "x", "shape": [1, 64], "datatype": "FP32"}]},
            "unable to find data for input tensor 'x'",
        ),
        ({**_with(), "outputs": [{"name": "nope"}]}, "unexpected inference output 'nope' for model 'mlp'"),
        ({**_with(), "outputs": [{"name": "y"}] * 2}, "requested twice"),
        ({**_with(), "id": 7}, "'id' of request must be a string"),
        ({**_with(), "parameters": {"triton_x": 1}}, "parameter 'triton_x' is not known"),
        ({**_with(), "parameters": {"sequence_id": 3}}, "sequence_id"),
        ({**_with(), "parameters": {"priority": "high"}}, "parameter 'priority' must be an integer"),
        ({**_with(), "parameters": {"timeout": -1}}, "parameter 'timeout' must not be negative"),
        ({**_with(), "parameters": {"x": {"y": 1}}}, "must be a boolean, a number or a string"),
        ({**_with(), "parameters": {"binary_data_output": "yes"}}, "must be true or false"),
        (_with(parameters={"binary_data_size": 256}), "has both 'data' and 'binary_data_size'"),
        (_binary(-4), "must be a number of bytes"),
        (
            {**_with(), "outputs": [{"name": "y", "parameters": {"classification": 0}}]},
            "must be at least 1",
        ),
    ],
)
def test_a_malformed_request_is_400_in_the_words_clients_know(
    server: ApplianceProcess, document: Mapping[str, Any], text: str
) -> None:
    reply = infer(server, "mlp", document)
    assert (reply.status, reply.headers["content-type"]) == (400, "application/json")
    assert text in reply.error
    assert reply.error.startswith("[request id: <id_unknown>] ")


@pytest.mark.parametrize(
    ("size", "sent", "text"),
    [
        (255, 255, "input byte size mismatch for input 'x' for model 'mlp'. Expected 256, got 255"),
        (257, 257, "input byte size mismatch for input 'x' for model 'mlp'. Expected 256, got 257"),
        (256, 255, "unexpected end of binary data"),
        (256, 257, "unexpected additional input data"),
        (2**70, 256, "unexpected end of binary data"),
    ],
)
def test_binary_tensors_of_the_wrong_length(
    server: ApplianceProcess, size: int, sent: int, text: str
) -> None:
    reply = infer(server, "mlp", _binary(size), bytes(sent))
    assert reply.status == 400
    assert text in reply.error


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (
            b"\x01\x00\x00\x00a",
            "expected 2 string elements for inference input 'x' for model 'identity_bytes', got 1",
        ),
        (b"", "expected 2 string elements for inference input 'x' for model 'identity_bytes', got 0"),
        (
            bytes(12),
            "unexpected number of string elements 3 for inference input 'x' for model 'identity_bytes', expecting 2",
        ),
        (b"\x01\x00\x00\x00a\x05\x00\x00\x00bc", "incomplete string data"),
        (b"\x01\x00\x00\x00a\x05\x00", "incomplete string length indicator"),
        (b"\xff\xff\xff\xff", "incomplete string data"),
    ],
)
def test_malformed_bytes_tensors(server: ApplianceProcess, raw: bytes, text: str) -> None:
    tensor = {
        "name": "x", "shape": [1, 2], "datatype": "BYTES", "parameters": {"binary_data_size": len(raw)},
    }  # fmt: skip
    reply = infer(server, "identity_bytes", {"inputs": [tensor]}, raw)
    assert reply.status == 400
    assert text in reply.error


def test_missing_inputs_are_named(server: ApplianceProcess) -> None:
    tensor = {"name": "INPUT1", "shape": [1, 16], "datatype": "INT32", "data": [0] * 16}
    reply = infer(server, "add_sub", {"inputs": [tensor]})
    assert reply.status == 400
    assert "expected 2 inputs but got 1 inputs for model 'add_sub'" in reply.error
    assert "Got input(s) ['INPUT1'], but missing required input(s) ['INPUT0']" in reply.error


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("nowhere", 404, "Request for unknown model: 'nowhere' is not found"),
        ("%22odd%22%20%2F", 404, "Request for unknown model: '\"odd\" /' is not found"),
        ("mlp/versions/7", 404, "Request for unknown model: 'mlp' version 7 is not found"),
        ("mlp/versions/one", 400, "failed to get model version from specified version string"),
        ("mlp/versions/-1", 400, "failed to get model version from specified version string"),
        (
            "not_onnx",
            503,
            "Request for unknown model: 'not_onnx' has no available versions; the repository index says why",
        ),
    ],
)
def test_models_and_versions_that_do_not_serve(
    server: ApplianceProcess, path: str, status: int, text: str
) -> None:
    reply = call(server, "POST", f"/v2/models/{path}/infer", {**_with(), "id": "7"})
    assert reply.status == status
    assert reply.error.startswith(
        text if text.startswith("Request for unknown model") else "[request id: 7] "
    )
    assert text in reply.error


def test_the_request_id_is_in_front_of_the_words(server: ApplianceProcess) -> None:
    reply = infer(server, "mlp", {"id": "seven", **_with(datatype="INT32")})
    assert reply.error.startswith("[request id: seven] ")
    later = infer(server, "mlp", {**_with(datatype="INT32"), "id": 'qu"ote\u20ac'})
    assert later.error.startswith('[request id: qu"ote\u20ac] ')


def test_client_shared_memory_is_501(server: ApplianceProcess) -> None:
    tensor = {**ROW, "parameters": {"shared_memory_region": "r"}}
    reply = infer(server, "mlp", {"inputs": [tensor]})
    assert reply.status == 501
    assert "shared memory" in reply.error


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"inputs":[],"inputs":[]}', "'inputs' appears twice"),
        (b'{"inputs":' + b"[" * 100_000, "nested deeper"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "nested deeper"),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,64],"data":'
            + b"[" * 101
            + b"]" * 101
            + b"}]}",
            "nested deeper",
        ),
        (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[' + b"9" * 5000 + b'],"data":[]}]}',
            "holds a whole number of more than 4300 digits",
        ),
        (b'{"inputs":[{"name":"\xff"}]}', "not UTF-8"),
        (b'{"inputs":[{"name":"\\ud800"}]}', "not valid Unicode"),
    ],
)
def test_json_that_is_broken_deep_or_huge(server: ApplianceProcess, body: bytes, text: str) -> None:
    reply = call(server, "POST", "/v2/models/mlp/infer", body)
    assert reply.status == 400
    assert text in reply.error


@pytest.mark.parametrize("length", ["x", "-1", "1.5", "9" * 30, "\u00b2"])
def test_a_head_length_that_is_none(server: ApplianceProcess, length: str) -> None:
    headers = {"Inference-Header-Content-Length": length.encode().decode("latin-1")}
    reply = call(server, "POST", "/v2/models/mlp/infer", b"{}", headers)
    assert reply.status == 400
    assert "must be a number of bytes" in reply.error


@pytest.mark.parametrize("header", ["Inference-Header-Content-Length", "Content-Encoding"])
def test_a_header_is_quoted_as_text_and_not_whole(server: ApplianceProcess, header: str) -> None:
    """A lone surrogate, which stands for a byte that is no text, makes the answer and the log's line no JSON to many
    readers."""
    reply = call(server, "POST", "/v2/models/mlp/infer", b"{}", {header: "\xb2" + "9" * 4000})
    assert reply.status in (400, 415)
    assert "\\udcb2999" in reply.error
    assert len(reply.error) < 300


def test_a_head_longer_than_the_body(server: ApplianceProcess) -> None:
    reply = call(server, "POST", "/v2/models/mlp/infer", b"{}", {"Inference-Header-Content-Length": "3"})
    assert reply.status == 400
    assert "says 3 bytes, but the request body has 2 bytes" in reply.error


def test_ten_thousand_inputs_are_refused_by_name(server: ApplianceProcess) -> None:
    inputs = [{"name": f"i{index}", "shape": [1], "datatype": "FP32", "data": [1]} for index in range(10_000)]
    reply = infer(server, "mlp", {"inputs": inputs})
    assert reply.status == 400
    assert "unexpected inference input 'i0'" in reply.error


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/mlp/infer", 405),
        ("POST", "/v2", 405),
        ("DELETE", "/v2/models/mlp", 405),
        ("GET", "/v1/models", 404),
        ("POST", "/v2/models/mlp/versions/1/nothing", 404),
        ("GET", "/../../etc/passwd", 404),
        ("PATCH", "/v2", 405),
    ],
)
def test_paths_and_methods_that_do_not_exist(
    server: ApplianceProcess, method: str, path: str, status: int
) -> None:
    reply = call(server, method, path)
    assert reply.status == status
    assert reply.error


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/logging", "/v2/trace/setting"])
@pytest.mark.parametrize("body", [b"[1]", b"{", b'{"a":{"b":1}}', b'{"ready":"yes"}'])
def test_control_bodies_that_make_no_sense(server: ApplianceProcess, path: str, body: bytes) -> None:
    reply = call(server, "POST", path, body)
    if path == "/v2/repository/index" and body == b'{"a":{"b":1}}':
        assert reply.status == 200  # keys without a meaning are passed over
    else:
        assert 400 <= reply.status <= 501
        assert reply.error


def test_an_unknown_content_encoding_is_415(server: ApplianceProcess) -> None:
    reply = call(server, "POST", "/v2/models/mlp/infer", b"x", {"Content-Encoding": "br"})
    assert (reply.status, reply.headers["accept-encoding"]) == (415, "gzip, deflate")


def test_the_server_still_answers_after_all_of_it(server: ApplianceProcess) -> None:
    reply = infer(server, "mlp", _with())
    assert reply.status == 200
    assert len(json.loads(reply.body)["outputs"][0]["data"]) == 10
