"""Bodies whose length nobody declared count while they arrive, for what is in memory of them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator

import pytest

from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.frontend.http.raw_client import RawClient
from tests.fronts import Sections, with_front_end

PIECE = 64 * 1024
BOUND = 16 * PIECE
LIMITS = {"max_body_bytes": 10 * PIECE, "max_bodies_bytes": BOUND}
HEAD = b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
TENSOR = {"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [0.5] * 64}
REQUEST = json.dumps({"inputs": [TENSOR]}).encode()
CHUNK = b"%x\r\n%b\r\n" % (PIECE, b" " * PIECE)
BEGINNING = HEAD + 7 * CHUNK
END = b"%x\r\n%b\r\n0\r\n\r\n" % (len(REQUEST), REQUEST)


@pytest.fixture(scope="module")
def server(front_end: Sections, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApplianceProcess]:
    root = tmp_path_factory.mktemp("models")
    write_model("mlp", root)
    with ApplianceProcess(root, with_front_end(front_end, {"http": LIMITS})) as process:
        yield process.wait_ready()


def _wait_held(server: ApplianceProcess, holds: Callable[[int], bool]) -> None:
    """Wait until the bytes in bodies are so."""
    end = time.monotonic() + 20
    while True:
        found = re.search(rb"\nappliance_http_body_bytes (\d+)\n", server.get("/metrics"))
        assert found
        if holds(int(found[1])):
            return
        assert time.monotonic() < end, f"bodies hold {int(found[1])} bytes"


def test_bodies_in_chunks_are_bounded_together_while_they_arrive(server: ApplianceProcess) -> None:
    with RawClient(server) as one, RawClient(server) as late:
        with RawClient(server) as other:
            for client in (one, other):
                client.send(BEGINNING)
            _wait_held(server, lambda held: held == 14 * PIECE)
            late.send(BEGINNING)
            refused = late.answer()
            assert refused.status == 429
            assert "request bodies already hold" in refused.document["error"]
            _wait_held(server, lambda held: held == 14 * PIECE)
        _wait_held(server, lambda held: held == 7 * PIECE)  # it went, and what it held is given back
        with RawClient(server) as next_one:
            assert next_one.ask(BEGINNING + END).status == 200
        assert one.ask(END).status == 200
    _wait_held(server, lambda held: held == 0)


def test_one_over_its_own_limit_gives_back_what_it_held(server: ApplianceProcess) -> None:
    with RawClient(server) as client:
        client.send(BEGINNING)
        _wait_held(server, lambda held: held == 7 * PIECE)
        client.send(4 * CHUNK)
        assert client.answer().status == 413
    _wait_held(server, lambda held: held == 0)
