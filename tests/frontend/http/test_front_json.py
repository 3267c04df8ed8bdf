"""Tensors as JSON through the native front end: it answers as the edge does, byte for byte, and leaves to the edge
what is not for it."""

from __future__ import annotations

import gzip
import json
import random
import re
import struct
import time
from collections.abc import Iterator

import pytest

from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.frontend.http.raw_client import RawAnswer, RawClient, binary_request, json_request
from tests.fronts import NATIVE, PYTHON, needs_native

pytestmark = needs_native

COUNT = 10
NAMES = (
    "mlp",
    "add_sub",
    "big_mean",
    "string_concat",
    *(f"identity_{kind}" for kind in ("fp32", "fp64", "bool", "int64")),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApplianceProcess]:
    root = tmp_path_factory.mktemp("models")
    for name in NAMES:
        write_model(name, root)
    with ApplianceProcess(root, NATIVE) as process:
        yield process.wait_ready()


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApplianceProcess]:
    """The same models behind the edge in Python."""
    root = tmp_path_factory.mktemp("models")
    for name in NAMES:
        write_model(name, root)
    with ApplianceProcess(root, PYTHON) as process:
        yield process.wait_ready()


@pytest.fixture
def client(server: ApplianceProcess) -> Iterator[RawClient]:
    with RawClient(server) as client:
        yield client


def _leased(server: ApplianceProcess, model: str) -> int:
    return sum(int(found["leased"]) for found in server.status()["models"] if found["name"] == model)


def _counted(server: ApplianceProcess, name: str) -> int:
    text = server.get("/metrics").decode()
    return sum(map(int, re.findall(rf"^{name} (\d+)$", text, re.MULTILINE)))


def _taught(server: ApplianceProcess, client: RawClient, request: bytes, model: str) -> RawAnswer:
    """The edge's answer to ``request``, once it is the front end that would give it."""
    first = client.ask(request)
    assert first.status == 200, first
    end = time.monotonic() + 20
    before = _leased(server, model)
    while _leased(server, model) == before:
        assert time.monotonic() < end, "never served by the front end"
        assert client.ask(request) == first
    return first


def _row(values: str, count: int) -> str:
    return f"[{','.join([values] * count)}]"


@pytest.mark.parametrize("request_id", [None, "", "7"])
@pytest.mark.parametrize("binary_out", [False, True], ids=["json-out", "binary-out"])
@pytest.mark.parametrize(
    ("model", "inputs", "tensors"),
    [
        ("mlp", {"x": ("FP32", (1, 64), _row("0.5", 64))}, b""),
        ("mlp", {"x": ("FP32", (2, 64), f"[{_row('0.5', 64)}, {_row('-1e-2', 64)}]")}, b""),
        ("mlp", {"x": ("FP32", (1, 64), "")}, bytes(256)),
        (
            "add_sub",
            {"INPUT0": ("INT32", (1, 16), _row("7", 16)), "INPUT1": ("INT32", (1, 16), "")},
            struct.pack("<16i", *range(16)),
        ),
        ("identity_bool", {"x": ("BOOL", (1, 4), "[true,false,1,0]")}, b""),
    ],
    ids=["flat", "nested", "binary-in", "mixed", "bool"],
)
def test_what_was_taught_is_answered_as_the_edge_did(
    server: ApplianceProcess,
    client: RawClient,
    model: str,
    inputs: dict[str, tuple[str, tuple[int, ...], str]],
    tensors: bytes,
    binary_out: bool,
    request_id: str | None,
) -> None:
    asked = {"binary_data_output": binary_out}
    request = json_request(model, inputs, request_id, tensors=tensors, parameters=asked)
    first = _taught(server, client, request, model)
    before = _leased(server, model), _counted(server, "appliance_front_end_http_json_total")
    assert [client.ask(request) for _ in range(COUNT)] == [first] * COUNT
    as_json = COUNT if any(text for _, _, text in inputs.values()) or not binary_out else 0
    after = _leased(server, model), _counted(server, "appliance_front_end_http_json_total")
    assert after == (before[0] + COUNT, before[1] + as_json)
    assert first.document.get("id", "") == (request_id or "")


def test_outputs_may_be_json_and_binary_in_one_answer(server: ApplianceProcess, client: RawClient) -> None:
    inputs = {name: ("INT32", (1, 16), _row("7", 16)) for name in ("INPUT0", "INPUT1")}
    for wanted in ((False, True), (True, False), (False, False)):
        outputs = [
            {"name": name, "parameters": {"binary_data": binary}}
            for name, binary in zip(("OUTPUT0", "OUTPUT1"), wanted, strict=True)
        ]
        _taught(server, client, json_request("add_sub", inputs, "7", outputs=outputs), "add_sub")


def test_tensors_are_read_and_written_as_the_edge_does(
    server: ApplianceProcess, edge: ApplianceProcess, client: RawClient
) -> None:
    chance = random.Random(7)
    kinds = {"fp32": "f", "fp64": "d", "int64": "q"}

    def values(code: str) -> str:
        raw = chance.randbytes(64 * struct.calcsize(code))
        return json.dumps(list(struct.unpack(f"<64{code}", raw)))

    with RawClient(edge) as other:
        for kind, code in kinds.items():
            model, asked = f"identity_{kind}", {"x": (kind.upper(), (1, 64), _row("1", 64))}
            _taught(server, client, json_request(model, asked), model)
            before = _leased(server, model)
            for number in range(COUNT):
                request = json_request(model, {"x": (kind.upper(), (1, 64), values(code))}, str(number))
                answer = client.ask(request)
                assert answer.status == 200
                assert answer == other.ask(request)
            assert _leased(server, model) >= before + COUNT - 1, "the first with an id may be the edge's"


@pytest.mark.parametrize(
    "data",
    [
        *("[1,2,3]", "[1,2,3,4,5]", "[[1,2],[3]]", '[1,2,3,"x"]', "[1,2,3,true]", "[1,2,3,1e39]"),
        *("[1,2,3,null]", "[1,2,3,]"),
    ],
)
def test_what_is_wrong_is_refused_in_the_edges_words(
    server: ApplianceProcess, edge: ApplianceProcess, client: RawClient, data: str
) -> None:
    good = json_request("identity_fp32", {"x": ("FP32", (1, 4), "[1,2,3,4]")})
    first = _taught(server, client, good, "identity_fp32")
    wrong = json_request("identity_fp32", {"x": ("FP32", (1, 4), data)})
    before = _leased(server, "identity_fp32")
    with RawClient(edge) as other:
        refused = other.ask(wrong)
    assert refused.status == 400
    assert client.ask(wrong) == refused
    assert _leased(server, "identity_fp32") == before
    assert client.ask(good) == first
    assert _leased(server, "identity_fp32") == before + 1, "the connection goes on"


def test_strings_and_large_bodies_are_the_edges(server: ApplianceProcess, client: RawClient) -> None:
    model = client.ask(b"GET /v2/models/string_concat HTTP/1.1\r\nHost: x\r\n\r\n").document
    names = [found["name"] for found in model["inputs"]]
    request = json_request("string_concat", dict.fromkeys(names, ("BYTES", (1, 1), '["a"]')))
    for _ in range(3):
        assert client.ask(request).status == 200
    assert _leased(server, "string_concat") == 0
    small = json_request("identity_fp32", {"x": ("FP32", (1, 4), "[1,2,3,4]")})
    _taught(server, client, small, "identity_fp32")
    large = json_request("identity_fp32", {"x": ("FP32", (1, 4), f"[1,2,3,{' ' * (5 << 20)}4]")})
    assert client.ask(large).status == 413


@pytest.mark.parametrize("accepted", ["gzip", "gzip, deflate", "br"])
def test_large_answers_are_compressed_for_who_accepts_that(
    server: ApplianceProcess, client: RawClient, accepted: str
) -> None:
    inputs = {"x": ("FP32", (1, 1000), _row("0.25", 1000))}
    plain = _taught(server, client, json_request("identity_fp32", inputs), "identity_fp32")
    answer = client.ask(json_request("identity_fp32", inputs, headers={"Accept-Encoding": accepted}))
    assert (gzip.decompress(answer.body) if "gzip" in accepted else answer.body) == plain.body


def test_a_large_tensor_goes_into_its_slot_as_it_comes(server: ApplianceProcess, client: RawClient) -> None:
    name = "appliance_front_end_http_uploads_total"
    request = binary_request("big_mean", {"image": (1, 3, 224, 224)}, "7")
    first = _taught(server, client, request, "big_mean")
    for cut in (300, 400_000, len(request) - 1):
        for _ in range(
            20
        ):  # on a busy machine the rest may come too late for the front end, or with the first part
            before, leased = _counted(server, name), _leased(server, "big_mean")
            client.send(request[:cut])
            time.sleep(0.02)
            client.send(request[cut:])
            assert client.answer() == first
            if _counted(server, name) == before + 1:
                break
        assert (_counted(server, name), _leased(server, "big_mean")) == (before + 1, leased + 1), cut


def test_a_large_tensor_that_comes_slowly_is_the_edges(server: ApplianceProcess, client: RawClient) -> None:
    request = binary_request("big_mean", {"image": (1, 3, 224, 224)}, "7")
    first = _taught(server, client, request, "big_mean")
    name = "appliance_front_end_http_passed_total"
    leased, passed = _leased(server, "big_mean"), _counted(server, name)
    client.send(request[:300_000])
    end = time.monotonic() + 20
    while _counted(server, name) == passed:
        assert time.monotonic() < end, "the front end waits for the rest"
    client.send(request[300_000:])
    assert client.answer() == first
    assert _leased(server, "big_mean") == leased
