"""Raw binary requests: ``Inference-Header-Content-Length`` is 0, and the body is the tensor of the only input."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

from tests.appliance_process import ApplianceProcess
from tests.conformance.http.exchange import Reply, call, infer

RAW = {"Inference-Header-Content-Length": "0", "Content-Type": "application/octet-stream"}


def _raw(server: ApplianceProcess, model: str, body: bytes, **headers: str) -> Reply:
    said = {**RAW, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return call(server, "POST", f"/v2/models/{model}/infer", body, said)


def _tensor(reply: Reply) -> bytes:
    """The only output, which is binary."""
    assert reply.status == 200, reply.body
    (output,) = reply.document["outputs"]
    raw = reply.body[int(reply.headers["inference-header-content-length"]) :]
    assert output["parameters"] == {"binary_data_size": len(raw)}
    return raw


def test_a_batched_model_is_asked_with_one_row(server: ApplianceProcess) -> None:
    tensor = np.arange(64, dtype=np.float32).tobytes()
    reply = _raw(server, "mlp", tensor)
    assert reply.document["outputs"][0]["shape"] == [1, 10]
    entry = {"name": "x", "shape": [1, 64], "datatype": "FP32", "parameters": {"binary_data_size": 256}}
    same = infer(server, "mlp", {"inputs": [entry], "parameters": {"binary_data_output": True}}, tensor)
    assert _tensor(same) == _tensor(reply)
    assert _tensor(_raw(server, "mlp", gzip.compress(tensor), Content_Encoding="gzip")) == _tensor(reply)


@pytest.mark.parametrize("count", [0, 1, 7])
def test_the_free_dimension_follows_from_the_length(server: ApplianceProcess, count: int) -> None:
    tensor = np.arange(count, dtype=np.float32).tobytes()
    reply = _raw(server, "identity_fp32", tensor)
    assert reply.document["outputs"][0]["shape"] == [1, count]
    assert _tensor(reply) == tensor


@pytest.mark.parametrize("element", [b"", b"snow \xe2\x98\x83", b"\x05\0\0\0hello", b"x" * 100_000])
def test_a_body_is_one_element_of_bytes(server: ApplianceProcess, element: bytes) -> None:
    reply = _raw(server, "identity_bytes", element)
    assert reply.document["outputs"][0]["shape"] == [1, 1]
    assert _tensor(reply) == struct.pack("<I", len(element)) + element


@pytest.mark.parametrize(
    ("model", "size", "text"),
    [
        ("mlp", 512, "input byte size mismatch for input 'x' for model 'mlp'. Expected 256, got 512"),
        ("mlp", 0, "input byte size mismatch for input 'x' for model 'mlp'. Expected 256, got 0"),
        (
            "identity_fp32",
            7,
            "input byte size mismatch for input 'x' for model 'identity_fp32'. Expected 4, got 7",
        ),
        (
            "add_sub",
            64,
            "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'add_sub' model",
        ),
        (
            "rank_3",
            64,
            "can not be deduced because there are more than one variable-sized dimension",
        ),
    ],
)
def test_what_no_shape_follows_from_is_400(
    server: ApplianceProcess, model: str, size: int, text: str
) -> None:
    reply = _raw(server, model, bytes(size))
    assert reply.status == 400
    assert text in reply.error


def test_an_unknown_model_is_told_of_a_raw_body_too(server: ApplianceProcess) -> None:
    reply = _raw(server, "nowhere", b"x")
    assert (reply.status, reply.error) == (404, "Request for unknown model: 'nowhere' is not found")
