"""The native front end in front of the HTTP edge: what it was taught it answers as the edge did; everything else passes
through; nobody who misbehaves on either side harms anybody else."""

from __future__ import annotations

import gzip
import os
import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.conftest import Serve
from tests.faults.clients import FAKE_SECTIONS
from tests.faults.fake_models import write_fake
from tests.frontend.http.raw_client import RawAnswer, RawClient, binary_request, json_request
from tests.fronts import NATIVE, PYTHON, needs_native, with_front_end

pytestmark = needs_native

IMAGE = (1, 3, 224, 224)
COUNT = 10
MLP = {"x": (1, 64)}
GET = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApplianceProcess]:
    root = tmp_path_factory.mktemp("models")
    for name in ("mlp", "big_mean", "add_sub", "identity_fp32"):
        write_model(name, root)
    with ApplianceProcess(root, NATIVE) as process:
        yield process.wait_ready()


@pytest.fixture
def client(server: ApplianceProcess) -> Iterator[RawClient]:
    with RawClient(server) as client:
        yield client


def _leased(server: ApplianceProcess, model: str) -> int:
    """Requests of a model that were answered without the engine."""
    return sum(int(found["leased"]) for found in server.status()["models"] if found["name"] == model)


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


@pytest.mark.parametrize("request_id", [None, "", "7", "a b/~"])
@pytest.mark.parametrize(
    ("model", "shapes", "datatype"),
    [
        ("mlp", MLP, "FP32"),
        ("big_mean", {"image": IMAGE}, "FP32"),
        ("add_sub", {"INPUT0": (2, 16), "INPUT1": (2, 16)}, "INT32"),
    ],
    ids=["small", "600-KB", "two-inputs"],
)
def test_what_was_taught_is_answered_as_the_edge_did(
    server: ApplianceProcess,
    client: RawClient,
    model: str,
    shapes: dict[str, tuple[int, ...]],
    datatype: str,
    request_id: str | None,
) -> None:
    request = binary_request(model, shapes, request_id, datatype=datatype)
    first = _taught(server, client, request, model)
    before = _leased(server, model)
    assert [client.ask(request) for _ in range(COUNT)] == [first] * COUNT
    assert _leased(server, model) == before + COUNT
    assert first.document.get("id", "") == (request_id or "")


def test_the_id_is_that_of_the_request_and_the_tensors_are_its_own(
    server: ApplianceProcess, client: RawClient
) -> None:
    sums = {"INPUT0": (1, 16), "INPUT1": (1, 16)}
    _taught(server, client, binary_request("add_sub", sums, "first", datatype="INT32"), "add_sub")
    before = _leased(server, "add_sub")
    for number in range(COUNT):
        answer = client.ask(
            binary_request("add_sub", sums, f"id {number}", datatype="INT32", value=number + 1)
        )
        assert answer.document["id"] == f"id {number}"
        assert answer.body.count(struct.pack("<i", 2 * (number + 1))) == 16
    assert _leased(server, "add_sub") == before + COUNT


@pytest.mark.parametrize("request_id", ['quoted "q"', "back\\slash", "snow ☃", "x" * 65])
def test_ids_that_are_not_plain_are_the_edges(
    server: ApplianceProcess, client: RawClient, request_id: str
) -> None:
    before = _leased(server, "mlp")
    for _ in range(3):
        assert client.ask(binary_request("mlp", MLP, request_id)).document["id"] == request_id
    assert _leased(server, "mlp") == before


def test_what_is_not_as_it_was_taught_is_the_edges(server: ApplianceProcess, client: RawClient) -> None:
    good = binary_request("mlp", MLP)
    first = _taught(server, client, good, "mlp")
    before = _leased(server, "mlp")
    short = re.sub(
        rb"\r\nContent-Length: (\d+)",
        lambda found: b"\r\nContent-Length: %d" % (int(found[1]) - 4),
        good,
        count=1,
    )[:-4]
    refused = client.ask(short)
    assert (refused.status, "unexpected end of binary data" in refused.document["error"]) == (400, True)
    head, _, body = good.partition(b"\r\n\r\n")
    folded = gzip.compress(body)
    squeezed = re.sub(rb"\r\nContent-Length: \d+", b"\r\nContent-Length: %d" % len(folded), head)
    assert client.ask(squeezed + b"\r\nContent-Encoding: gzip\r\n\r\n" + folded) == first
    assert client.ask(good.replace(b"/v2/models/mlp/", b"/v2/models/mlp/versions/1/")) == first
    assert _leased(server, "mlp") == before
    chunked = re.sub(rb"\r\nContent-Length: \d+", b"\r\nTransfer-Encoding: chunked", head)
    assert client.ask(chunked + b"\r\n\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n") == first
    assert client.ask(good) == first, "the connection goes on"
    assert _leased(server, "mlp") == before, "but it is the edge's by now"


@pytest.mark.parametrize(
    ("hosts", "reason"),
    [(b"", "Missing 'Host' header"), (b"Host: x\r\nHost: x\r\n", "Duplicate 'Host' header")],
    ids=["none", "two"],
)
def test_a_taught_request_without_exactly_one_host_is_refused_as_the_edge_does(
    server: ApplianceProcess, client: RawClient, serve: Serve, tmp_path: Path, hosts: bytes, reason: str
) -> None:
    good = binary_request("mlp", MLP)
    _taught(server, client, good, "mlp")
    before = _leased(server, "mlp")
    wrong = good.replace(b"Host: x\r\n", hosts, 1)
    write_model("mlp", tmp_path)
    with RawClient(serve(tmp_path, PYTHON)) as edge:
        refused = edge.ask(wrong)
    assert (refused.status, reason in refused.body.decode()) == (400, True)
    assert client.ask(wrong) == refused
    assert _leased(server, "mlp") == before


@pytest.mark.parametrize("accepted", ["gzip", "gzip, deflate"])
def test_large_answers_are_compressed_for_who_asks_for_just_that(
    server: ApplianceProcess, client: RawClient, accepted: str
) -> None:
    request = binary_request("identity_fp32", {"x": (1, 4096)}, headers={"Accept-Encoding": accepted})
    plain = _taught(server, client, binary_request("identity_fp32", {"x": (1, 4096)}), "identity_fp32")
    answer = client.ask(request)
    if accepted == "gzip":
        assert gzip.decompress(answer.body) == plain.body
    else:
        assert answer == plain


def test_requests_in_a_pipeline_are_answered_in_order_whoever_answers(
    server: ApplianceProcess, client: RawClient
) -> None:
    _taught(server, client, binary_request("mlp", MLP, "x"), "mlp")
    before = _leased(server, "mlp")
    client.send(b"".join(binary_request("mlp", MLP, str(number)) + GET for number in range(COUNT)))
    for number in range(COUNT):
        assert client.answer().document["id"] == str(number)
        assert client.answer().status == 200
    assert _leased(server, "mlp") == before + COUNT


@pytest.mark.parametrize("pause_s", [0.01, 0.2], ids=["brisk", "slow"])
def test_a_client_that_sends_in_pieces_is_answered(
    server: ApplianceProcess, client: RawClient, pause_s: float
) -> None:
    request = binary_request("big_mean", {"image": IMAGE}, "p")
    first = _taught(server, client, request, "big_mean")
    for piece in (request[:7], request[7:150], request[150:400], request[400:300_000], request[300_000:]):
        client.send(piece)
        time.sleep(pause_s)
    assert client.answer() == first


def test_a_client_that_says_no_more_is_answered_by_whoever_would(server: ApplianceProcess) -> None:
    requests = binary_request("mlp", MLP, "h"), binary_request("big_mean", {"image": IMAGE}, "h")
    with RawClient(server) as client:
        first = [
            _taught(server, client, request, model)
            for request, model in zip(requests, ("mlp", "big_mean"), strict=True)
        ]
    before = _leased(server, "mlp")
    for _ in range(COUNT):
        with RawClient(server) as client:
            client.send(requests[0] + GET + requests[1])
            client.socket.shutdown(socket.SHUT_WR)
            assert client.answer() == first[0]
            assert client.answer().status == 200
            assert client.answer() == first[1]
            assert client.is_closed()
    assert _leased(server, "mlp") == before + COUNT


def test_a_600_kb_tensor_in_chunks_passes(server: ApplianceProcess, client: RawClient) -> None:
    request = binary_request("big_mean", {"image": IMAGE})
    first = client.ask(request)
    head, _, body = request.partition(b"\r\n\r\n")
    client.send(re.sub(rb"\r\nContent-Length: \d+", b"\r\nTransfer-Encoding: chunked", head) + b"\r\n\r\n")
    for start in range(0, len(body), 10_000):
        piece = body[start : start + 10_000]
        client.send(b"%x\r\n" % len(piece) + piece + b"\r\n")
    client.send(b"0\r\n\r\n")
    assert client.answer() == first


def test_a_client_that_reads_slowly_gets_everything(server: ApplianceProcess) -> None:
    with RawClient(server) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        shape = (1, 100_000)
        client.send(binary_request("identity_fp32", {"x": shape}, value=3.0) * 2)
        for _ in range(2):
            time.sleep(0.3)
            assert client.answer().body.endswith(struct.pack("<f", 3.0) * 100_000)


def test_clients_that_vanish_at_any_stage_leave_nothing_behind(server: ApplianceProcess) -> None:
    request = binary_request("big_mean", {"image": IMAGE}, "gone")
    with RawClient(server) as client:
        _taught(server, client, request, "big_mean")
    for cut in (0, 1, 20, 130, 200, 1_000, 65_536, 300_000, len(request) - 1, len(request)):
        for linger in (struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)):
            gone = RawClient(server)
            gone.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            gone.send(request[:cut])
            gone.close()
    server.until(
        "every slot back",
        lambda status: (
            not status["running_requests"]
            and not status["queued_requests"]
            and not any(slot["used"] for slot in status["slots"])
        ),
    )
    end = time.monotonic() + 20
    while b"\nappliance_http_connections 1\n" not in server.get("/metrics"):
        assert time.monotonic() < end, "connections stay"
        time.sleep(0.05)
    with RawClient(server) as client:
        assert client.ask(request).status == 200


def test_what_the_front_end_answered_is_counted_as_answered(
    server: ApplianceProcess, client: RawClient
) -> None:
    def answered() -> int:
        text = server.get("/metrics").decode()
        return sum(map(int, re.findall(r'appliance_http_responses_total\{code="200"\} (\d+)', text)))

    _taught(server, client, binary_request("mlp", MLP), "mlp")
    before = answered()
    for _ in range(COUNT):
        client.ask(binary_request("mlp", MLP))
    assert answered() - before == COUNT + 1, "and the one that asked"


def test_a_connection_that_waits_too_long_is_closed(serve: Serve, tmp_path: Path) -> None:
    write_model("mlp", tmp_path)
    server = serve(tmp_path, with_front_end(NATIVE, {"http": {"keepalive_s": 1.0}}))
    with RawClient(server) as idle, RawClient(server) as busy:
        while not wait([idle.socket], 0.05):
            assert busy.ask(GET).status == 200
        assert idle.is_closed()
        assert busy.ask(binary_request("mlp", MLP)).status == 200


def test_who_waits_is_let_go_at_the_end_and_who_is_served_is_answered(serve: Serve, tmp_path: Path) -> None:
    write_fake(models := tmp_path / "models", "gated", gate=tmp_path / "gate")
    server = serve(models, with_front_end(NATIVE, FAKE_SECTIONS))
    request = json_request("gated", {"x": ("UINT8", (1, 4), "[7,7,7,7]")})
    with RawClient(server) as idle, RawClient(server) as busy:
        assert busy.ask(request).status == 200
        assert idle.ask(GET).status == 200
        os.mkfifo(tmp_path / "gate")
        busy.send(request)
        with open(tmp_path / "gate", "wb"):  # once the run has begun
            server.signal(signal.SIGTERM)
        assert busy.answer().status == 200
        assert idle.is_closed()
        assert server.process.wait(20) == 0


def _answered(statuses: list[int], count: int) -> None:
    """Wait until so many were answered."""
    end = time.monotonic() + 20
    while len(statuses) < count:
        assert time.monotonic() < end, statuses[-1:]
        time.sleep(0.01)


def test_a_worker_that_dies_costs_no_client_its_answer(serve: Serve, tmp_path: Path) -> None:
    write_model("mlp", tmp_path)
    server = serve(tmp_path, NATIVE)
    statuses: list[int] = []
    over = threading.Event()

    def ask() -> None:
        with RawClient(server) as client:
            while not over.is_set():
                statuses.append(client.ask(binary_request("mlp", MLP, "k")).status)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    _answered(statuses, 100)
    os.kill(server.status()["workers"][0]["pid"], signal.SIGKILL)
    server.until("another worker", lambda status: status["workers"][0]["restarts"] == 1)
    _answered(statuses, len(statuses) + 100)
    over.set()
    for thread in threads:
        thread.join(20)
    assert set(statuses) == {200}
    assert _leased(server, "mlp") > 0


def test_what_would_be_late_is_refused_in_the_edges_form(serve: Serve, tmp_path: Path) -> None:
    write_model("burn_10ms", tmp_path)
    server = serve(tmp_path, with_front_end(NATIVE, {"engine": {"default_deadline_ms": 60}}))
    request = binary_request("burn_10ms", {"x": (1, 16)}, "late?")
    clients = [RawClient(server) for _ in range(60)]
    try:
        for _ in range(8):
            for client in clients:
                client.send(request)
            answers = [client.answer() for client in clients]
        assert {answer.status for answer in answers} <= {200, 429, 504}
        assert any(answer.status == 429 for answer in answers)
        for answer in answers:
            if answer.status != 200:
                assert answer.document["error"].startswith("[request id: late?] ")
                assert dict(answer.headers)["content-type"] == "application/json"
            if answer.status == 429:
                assert int(dict(answer.headers)["retry-after"]) >= 1
                assert int(dict(answer.headers)["retry-after-ms"]) >= 1
    finally:
        for client in clients:
            client.close()
