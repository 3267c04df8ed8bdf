"""Answers that clients do not take are bounded all together, told, and forgotten with their connections."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from appliance.domain.errors import AnswersFull
from appliance.frontend.http.body import UnreadAnswers
from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.frontend.http.raw_client import RawClient
from tests.fronts import Sections, with_front_end

ELEMENTS = 4 << 20
"""So many bytes of FP32 that sockets on the way cannot hold them."""
SIZE = 4 * ELEMENTS
BOUND = 2 * SIZE + SIZE // 2
LIMITS = {"max_body_bytes": 2 * SIZE, "max_bodies_bytes": BOUND}
GAUGE, COUNTER = b"appliance_http_answer_bytes", b"appliance_http_refused_answers_total"


def _request(elements: int) -> bytes:
    tensor = {"name": "x", "shape": [1, elements], "datatype": "FP32"}
    head = {
        "inputs": [{**tensor, "parameters": {"binary_data_size": 4 * elements}}],
        "parameters": {"binary_data_output": True},
    }
    text = json.dumps(head).encode()
    lines = b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (
        len(text),
        len(text) + 4 * elements,
    )
    return b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: x\r\n" + lines + text + bytes(4 * elements)


LARGE, SMALL = _request(ELEMENTS), _request(16)


@pytest.fixture(scope="module")
def server(front_end: Sections, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApplianceProcess]:
    root = tmp_path_factory.mktemp("models")
    write_model("identity_fp32", root)
    with ApplianceProcess(root, with_front_end(front_end, {"http": LIMITS})) as process:
        yield process.wait_ready()


def _figure(server: ApplianceProcess, name: bytes) -> int:
    found = re.search(rb"\n%b (\d+)\n" % name, server.get("/metrics"))
    assert found
    return int(found[1])


def _wait_held(server: ApplianceProcess, holds: Callable[[int], bool]) -> None:
    end = time.monotonic() + 20
    while not holds(held := _figure(server, GAUGE)):
        assert time.monotonic() < end, f"answers hold {held} bytes"


def test_answers_that_nobody_takes_are_bounded_together(server: ApplianceProcess) -> None:
    refused = _figure(server, COUNTER)
    with RawClient(server) as late:
        with ExitStack() as opened:
            for count in (1, 2):
                opened.enter_context(RawClient(server)).send(LARGE)
                _wait_held(server, lambda held, count=count: count * SIZE <= held < count * SIZE + 1024)  # type: ignore[misc]
            answer = late.ask(LARGE)
            assert answer.status == 503
            assert "answers that clients have not taken yet hold" in answer.document["error"]
            assert dict(answer.headers)["retry-after-ms"] == "1000"
            assert _figure(server, COUNTER) == refused + 1
            assert late.ask(SMALL).status == 200, "there is room for it"
            assert 2 * SIZE <= _figure(server, GAUGE) < 2 * SIZE + 1024
        _wait_held(server, lambda held: held == 0)  # they went, and what was held for them is given back
        assert late.ask(LARGE).status == 200
        _wait_held(server, lambda held: held == 0)  # it is taken, though its client stays


def test_where_there_is_no_room_at_all_no_work_is_done() -> None:
    unread = UnreadAnswers(10)
    alone = unread.resize(0, 12)
    with pytest.raises(AnswersFull):
        unread.check()
    with pytest.raises(AnswersFull):
        unread.resize(0, 1)
    assert (unread.held_bytes, unread.refused) == (12, 2)
    assert unread.resize(alone, 14) == 14, "one alone may be larger than the bound"
    assert unread.resize(14, 9) == 9
    unread.check()
    assert unread.resize(0, 1) == 1
    with pytest.raises(AnswersFull):
        unread.resize(9, 10)
    assert unread.resize(9, 0) == 0
    assert unread.held_bytes == 1
