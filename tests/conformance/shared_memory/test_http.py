"""System shared memory of clients on this machine over HTTP and Unix sockets, by both front ends."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm

from tests.conformance.shared_memory.rig import (
    MODEL,
    NEIGHBOUR,
    STRANGER,
    VALUES,
    Make,
    as_user,
    path_of,
)
from tests.fronts import EVERY_FRONT_END


@pytest.fixture(params=EVERY_FRONT_END)
def path(request: pytest.FixtureRequest) -> str:
    """Where HTTP is spoken over a Unix socket, by each front end."""
    if request.param == "python":
        return f"{request.getfixturevalue('python')}/http"
    request.getfixturevalue("native")
    return f"{request.getfixturevalue('folder')}/http"


def call(path: str, method: str, target: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
    """One exchange over the Unix socket at ``path``."""
    connection = http.client.HTTPConnection("localhost", timeout=30)
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.connect(path)
        connection.request(method, target, None if body is None else json.dumps(body))
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def parameters(nbytes: int, offset: int = 0) -> dict[str, Any]:
    return {
        "shared_memory_region": "r",
        "shared_memory_byte_size": nbytes,
        "shared_memory_offset": offset,
    }


def asked(source: Mapping[str, Any], target: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 6], "parameters": source}],
        "outputs": [{"name": "y", "parameters": target}],
    }


def test_http_of_both_front_ends(path: str, make: Make) -> None:
    handle = make(256)
    shm.set_shared_memory_region(handle, [VALUES])
    region = "/v2/systemsharedmemory/region/r"
    assert call(path, "POST", f"{region}/register", {"key": handle._shm_key, "byte_size": 256}) == (200, {})
    known = [{"name": "r", "key": handle._shm_key, "offset": 0, "byte_size": 256}]
    assert call(path, "GET", f"{region}/status") == (200, known)
    assert call(path, "GET", "/v2/systemsharedmemory/status") == (200, known)
    assert call(path, "POST", f"{region}/register", {"key": "/x", "byte_size": 8})[0] == 409
    infer = f"/v2/models/{MODEL}/infer"
    for _ in range(3):
        status, answer = call(path, "POST", infer, asked(parameters(48), parameters(128, 128)))
        assert status == 200, answer
        assert answer["outputs"] == [
            {"name": "y", "datatype": "FP32", "shape": [2, 6], "parameters": parameters(48, 128)}
        ]
        assert (shm.get_contents_as_numpy(handle, np.float32, [2, 6], 128) == VALUES).all()
        handle._mpsm_handle.buf[128:176] = bytes(48)
    for source, target in (
        (parameters(48, 250), parameters(48)),
        (parameters(40), parameters(48)),
        (parameters(48), parameters(40)),
        ({**parameters(48), "binary_data_size": 48}, parameters(48)),
        (parameters(48), {**parameters(48), "classification": 1}),
    ):
        assert call(path, "POST", infer, asked(source, target))[0] == 400
    os.truncate(path_of(handle), 16)
    status, answer = call(path, "POST", infer, asked(parameters(48), parameters(48)))
    assert (status, "smaller than when it was registered" in answer["error"]) == (400, True)
    for wrong in (
        {},
        {"key": 1, "byte_size": 1},
        {"key": "/x"},
        {"key": "/x", "byte_size": 1, "offset": "1"},
    ):
        assert call(path, "POST", "/v2/systemsharedmemory/region/s/register", wrong)[0] == 400
    assert call(path, "POST", "/v2/systemsharedmemory/register", {"key": "/x", "byte_size": 1})[0] == 400
    assert call(path, "POST", f"{region}/unregister") == (200, {})
    assert call(path, "GET", f"{region}/status")[0] == 404
    assert call(path, "POST", infer, asked(parameters(48), parameters(48)))[0] == 404
    assert call(path, "POST", "/v2/systemsharedmemory/unregister") == (200, {})
    assert call(path, "GET", "/v2/cudasharedmemory/status") == (200, [])
    assert call(path, "POST", "/v2/cudasharedmemory/unregister") == (200, {})
    assert call(path, "POST", "/v2/cudasharedmemory/region/r/unregister") == (200, {})
    status, answer = call(path, "GET", "/v2/cudasharedmemory/region/r/status")
    assert (status, answer["error"]) == (
        404,
        "Unable to find cuda shared memory region: 'r'; there are none here",
    )
    for region in ("", "/region/r"):
        status, answer = call(path, "POST", f"/v2/cudasharedmemory{region}/register", {})
        assert (status, "CUDA shared memory of clients is not offered" in answer["error"]) == (501, True)


def test_regions_are_their_user_s_alone(path: str, make: Make) -> None:
    handle = make(128)
    region = "/v2/systemsharedmemory/region/r"
    register = {"key": handle._shm_key, "byte_size": 128}
    assert call(path, "POST", f"{region}/register", register)[0] == 200
    with as_user(NEIGHBOUR):
        assert call(path, "GET", "/v2/systemsharedmemory/status") == (200, [])
        assert call(path, "GET", f"{region}/status")[0] == 404
        infer = f"/v2/models/{MODEL}/infer"
        assert call(path, "POST", infer, asked(parameters(48), parameters(48)))[0] == 404
        assert call(path, "POST", f"{region}/unregister")[0] == 200
        assert call(path, "POST", "/v2/systemsharedmemory/unregister")[0] == 200
        status, answer = call(path, "POST", f"{region}/register", register)
        assert (status, f"does not belong to user {NEIGHBOUR}" in answer["error"]) == (400, True)
    with as_user(STRANGER):
        status, answer = call(path, "POST", f"{region}/register", register)
        assert (status, f"is not for user {STRANGER}" in answer["error"]) == (403, True)
    assert call(path, "GET", f"{region}/status")[0] == 200
    assert call(path, "POST", f"{region}/unregister")[0] == 200
