"""JSON answers are bounded in size, made in pieces, and alike whoever gives them."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Iterator, Mapping
from typing import cast

import pytest

from appliance.domain.errors import InvalidRequest
from appliance.domain.inference import OutputTensor
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype, encode_bytes
from appliance.frontend.http.infer_response import PART_CHARACTERS, InferResponse, encode
from appliance.frontend.http.json_tensor import PIECE_BYTES, json_pieces, longest_text
from appliance.frontend.turns import Turns
from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.frontend.http.raw_client import RawClient
from tests.fronts import EVERY_FRONT_END, FRONT_ENDS, with_front_end

BOUND = 25 * 1000
"""Of JSON: a thousand elements of FP32."""
LARGEST: Mapping[Datatype, float] = {
    Datatype.BOOL: False,
    Datatype.UINT8: 2**8 - 1,
    Datatype.UINT16: 2**16 - 1,
    Datatype.UINT32: 2**32 - 1,
    Datatype.UINT64: 2**64 - 1,
    Datatype.INT8: -(2**7),
    Datatype.INT16: -(2**15),
    Datatype.INT32: -(2**31),
    Datatype.INT64: -(2**63),
    Datatype.FP32: -2.2250738585072014e-38,
    Datatype.FP64: -2.2250738585072014e-308,
}
"""Whose text is longest."""
MODEL = cast(ModelVersion, type("Model", (), {"name": "m", "version": 3})())


def _encode(*outputs: OutputTensor, bound: int = BOUND) -> InferResponse:
    return asyncio.run(encode(outputs, MODEL, "", {}, False, bound, Turns()))


def _tensor(datatype: Datatype, data: bytes, elements: int) -> OutputTensor:
    return OutputTensor("y", datatype, (elements,), data)


@pytest.mark.parametrize("datatype", LARGEST, ids=str)
def test_no_text_is_longer_than_expected(datatype: Datatype) -> None:
    raw = struct.pack(f"<{datatype.code}", LARGEST[datatype])
    assert len("".join(json_pieces(datatype, raw, "y"))) + 1 <= longest_text(datatype, len(raw))


def test_numbers_beyond_the_bound_are_refused_for_their_shape() -> None:
    def floats(count: int) -> OutputTensor:
        return _tensor(Datatype.FP32, bytes(4 * count), count)

    assert json.loads(b"".join(_encode(floats(1000)).parts))["outputs"][0]["data"] == [0.0] * 1000
    for outputs in ([floats(1001)], [floats(500), floats(501)]):
        with pytest.raises(InvalidRequest, match="binary_data_output") as refused:
            _encode(*outputs)
        assert "may take 25025 bytes, and http.max_json_answer_bytes allows 25000 bytes" in str(refused.value)


def test_texts_beyond_the_bound_are_refused_when_they_are() -> None:
    raw = encode_bytes([b"\1" * BOUND for _ in range(2)])
    for bound in (6 * BOUND, len(raw) - 1):
        with pytest.raises(InvalidRequest, match="binary_data_output"):
            _encode(_tensor(Datatype.BYTES, raw, 2), bound=bound)
    assert len(b"".join(_encode(_tensor(Datatype.BYTES, raw, 2), bound=13 * BOUND).parts)) > 12 * BOUND


def test_long_text_stays_in_parts() -> None:
    count = PART_CHARACTERS
    raw = struct.pack(f"<{count}I", *range(count))
    answer = _encode(_tensor(Datatype.UINT32, raw, count), bound=64 << 20)
    assert len(answer.parts) > 5
    assert max(map(len, answer.parts)) < 2 * PART_CHARACTERS
    assert answer.head_bytes == answer.size
    assert json.loads(b"".join(answer.parts))["outputs"][0]["data"] == list(range(count))


def test_long_elements_come_out_in_pieces() -> None:
    texts = ["x" * (PIECE_BYTES // 2) for _ in range(9)]
    pieces = list(json_pieces(Datatype.BYTES, encode_bytes(text.encode() for text in texts), "y"))
    assert len(pieces) == 3
    assert json.loads("[" + ",".join(pieces) + "]") == texts


@pytest.fixture(scope="module", params=EVERY_FRONT_END, ids=str)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApplianceProcess]:
    root = tmp_path_factory.mktemp("models")
    write_model("identity_fp32", root)
    sections = with_front_end(FRONT_ENDS[request.param], {"http": {"max_json_answer_bytes": BOUND}})
    with ApplianceProcess(root, sections) as process:
        yield process.wait_ready()


def _request(elements: int, binary: bool) -> bytes:
    tensor = {"name": "x", "shape": [1, elements], "datatype": "FP32"}
    inputs = [{**tensor, "parameters": {"binary_data_size": 4 * elements}}]
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": binary}}).encode()
    head = (
        b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: %d\r\n"
    )
    length = b"Content-Length: %d\r\n\r\n" % (len(text) + 4 * elements)
    return head % len(text) + length + text + bytes(4 * elements)


def test_clients_are_told_to_ask_for_binary_data(server: ApplianceProcess) -> None:
    with RawClient(server) as client:
        for _ in range(3):  # from the second one on it might be served by what listens in the edge's place
            assert client.ask(_request(1000, False)).status == 200
            refused = client.ask(_request(1001, False))
            assert refused.status == 400
            assert "'binary_data_output' of the request" in refused.document["error"]
            assert client.ask(_request(1001, True)).status == 200
