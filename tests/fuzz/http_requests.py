"""HTTP over real sockets: whatever a client says is answered or ended, and others are served as before."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from hypothesis import strategies as st

from tests.fuzz.boundary import Boundary, Judge
from tests.fuzz.mutations import TEXTS, as_json, changed, changed_bytes
from tests.fuzz.served import INPUT, MODEL, served

DOCUMENT = json.loads(INPUT)
BINARY = {
    "id": "a",
    "parameters": {"priority": 1, "timeout": 5000, "binary_data_output": True},
    "inputs": [
        {"name": name, "datatype": "INT32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
        for name in ("INPUT0", "INPUT1")
    ],
    "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 2, "binary_data": False}}],
}
PATHS = (
    f"/v2/models/{MODEL}/infer", f"/v2/models/{MODEL}/versions/1/infer", f"/v2/models/{MODEL}",
    f"/v2/models/{MODEL}/ready", f"/v2/models/{MODEL}/config", f"/v2/models/{MODEL}/stats", "/v2",
    "/v2/health/live", "/v2/health/ready", "/v2/models/stats", "/v2/repository/index",
    f"/v2/repository/models/{MODEL}/load", "/v2/logging", "/v2/trace/setting", "/v2/systemsharedmemory/status",
    "/v2/cudasharedmemory/region/a/register", "/metrics", "/status", "/status.json", "/",
    "/v2/models/%2e%2e/infer", "/v2/models/..%2f..%2fetc/config", "//v2", "*", "http://elsewhere/v2",
    "/v2/models//infer", "/v2/models/a\tb", "/v2/models/%00", "/v2/models/%ff%fe/ready", "/v2?" + "a" * 9000,
    "/%1b%5b2J", "/v2/models/" + "x" * 300,
)  # fmt: skip
METHODS = ("GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "CONNECT", "TRACE", "get", "PRI", "G\0T")
HEADERS = (
    "Host: localhost", "Host: elsewhere", "Host: a\r\nHost: b", "Content-Length: 0", "Content-Length: -1",
    "Content-Length: 18446744073709551616", "Content-Length: 5\r\nContent-Length: 6", "Content-Length: 0x10",
    "Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: identity",
    "Content-Encoding: gzip", "Content-Encoding: deflate", "Content-Encoding: br", "Accept-Encoding: gzip;q=0",
    "Expect: 100-continue", "Connection: close", "Connection: upgrade\r\nUpgrade: h2c", "Upgrade: websocket",
    "Range: bytes=0-1", "Inference-Header-Content-Length: 5", "Inference-Header-Content-Length: -1",
    "Inference-Header-Content-Length: 99999999999999999999", "Content-Type: application/json",
    "Content-Type: application/octet-stream", "triton-request-id: \x1b[2J", "x-canary: " + "y" * 5000,
    " folded: a", "a b: c", ": c", "timeout-ms: nan", "traceparent: 00-" + "0" * 32 + "-" + "0" * 16 + "-01",
    "Origin: http://evil",
)  # fmt: skip


def request(
    path: str, body: bytes, method: str = "POST", headers: tuple[str, ...] = (), length: int | None = None
) -> bytes:
    """A request with so many bytes announced as there are, unless told otherwise."""
    size = len(body) if length is None else length
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {size}", *headers]
    return "\r\n".join(head).encode("utf-8", "surrogatepass") + b"\r\n\r\n" + body


def binary(document: bytes, tensors: bytes, announced: int | None = None) -> bytes:
    """An inference whose tensors follow its JSON."""
    size = len(document) if announced is None else announced
    return request(PATHS[0], document + tensors, headers=(f"Inference-Header-Content-Length: {size}",))


SEEDS = [
    request(PATHS[0], INPUT),
    binary(json.dumps(BINARY).encode(), bytes(128)),
    request(PATHS[0], gzip.compress(INPUT), headers=("Content-Encoding: gzip",)),
    request(PATHS[0], b"", headers=("Transfer-Encoding: chunked",)).replace(b"Content-Length: 0\r\n", b"")
    + b'5\r\n{"a":\r\n0\r\n\r\n',
    *(request(path, b"", "GET") for path in PATHS[2:20]),
    request("/v2/repository/index", b'{"ready":true}'),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03",
]
BYTES_TENSORS = struct.pack("<I", 1 << 31) + b"a", struct.pack("<I", 3) + b"abc"


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """Odd methods, paths and headers around a body that is right, or none."""
    path = draw(st.sampled_from(PATHS) | st.sampled_from(TEXTS).map(lambda text: f"/v2/models/{text}/infer"))
    headers = tuple(draw(st.lists(st.sampled_from(HEADERS), max_size=4)))
    length = draw(st.sampled_from((None, None, None, 0, 1, 1 << 40)))
    body = draw(st.sampled_from((b"", INPUT, b"{}", bytes(3000))))
    return request(path, body, draw(st.sampled_from(METHODS)), headers, length)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Odd JSON, with and without tensors behind it."""
    if draw(st.booleans()):
        return request(draw(st.sampled_from(PATHS[:20])), as_json(draw(changed([DOCUMENT, BINARY]))))
    tensors = draw(st.sampled_from((bytes(128), b"", bytes(127), bytes(5000), *BYTES_TENSORS)))
    return binary(
        as_json(draw(changed([BINARY]))),
        tensors,
        draw(st.sampled_from((None, None, None, 0, 5, -1, 1 << 63))),
    )


CASES = st.one_of(
    heads(),
    bodies(),
    changed_bytes(SEEDS),
    st.lists(st.sampled_from(SEEDS), min_size=2, max_size=9).map(b"".join),
)


@contextmanager
def opened(front_end: str) -> Iterator[Judge]:
    """A judge of what is said to a daemon's HTTP port."""
    with served(front_end) as daemon:
        yield partial(daemon.say, "http")


def boundary(front_end: str) -> Boundary:
    return Boundary(kept="http_requests", cases=CASES, opened=partial(opened, front_end), examples=250)
