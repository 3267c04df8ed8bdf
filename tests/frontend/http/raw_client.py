"""A keep-alive HTTP connection that says exactly what it is told to, and inference requests for it."""

from __future__ import annotations

import json
import math
import socket
import ssl
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from tests.appliance_process import ApplianceProcess

TIMEOUT_S = 20.0


class RawAnswer(NamedTuple):
    """What came back; the date is left out, since it goes on by itself."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def document(self) -> Any:
        """The JSON in it, without the binary tensors behind that."""
        length = dict(self.headers).get("inference-header-content-length")
        return json.loads(self.body if length is None else self.body[: int(length)])


class RawClient:
    """One connection. Use as a context."""

    def __init__(self, server: ApplianceProcess, tls: ssl.SSLContext | None = None) -> None:
        host, _, port = server.http.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Go away at once."""
        self._file.close()
        self.socket.close()

    def send(self, request: bytes) -> None:
        """Say something."""
        self.socket.sendall(request)

    def answer(self) -> RawAnswer:
        """The next answer; ConnectionError when there is none."""
        status = self._line().split(b" ")
        headers = []
        while line := self._line():
            name, _, value = line.decode().partition(":")
            headers.append((name.lower(), value.strip()))
        length = int(dict(headers)["content-length"])
        kept = tuple(header for header in headers if header[0] != "date")
        return RawAnswer(int(status[1]), kept, self._file.read(length))

    def ask(self, request: bytes) -> RawAnswer:
        """One request, one answer."""
        self.send(request)
        return self.answer()

    def is_closed(self) -> bool:
        """Wait until the other side ends the connection; whether it did so without another word."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True

    def _line(self) -> bytes:
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError(f"the connection ended after {line!r}")
        return line[:-2]


def binary_request(
    model: str,
    shapes: Mapping[str, Sequence[int]],
    request_id: str | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    datatype: str = "FP32",
    value: float = 0.5,
    **members: Any,
) -> bytes:
    """An inference whose inputs of 32-bit ``datatype`` and all outputs are binary tensors; ``members`` are added to its
    JSON, in front of the id, if that is given."""
    sizes = {name: 4 * math.prod(shape) for name, shape in shapes.items()}
    inputs = [
        {"name": name, "shape": list(shape), "datatype": datatype, "parameters": {"binary_data_size": size}}
        for (name, shape), size in zip(shapes.items(), sizes.values(), strict=True)
    ]
    document = {"inputs": inputs, "parameters": {"binary_data_output": True}, **members}
    if request_id is not None:
        document["id"] = request_id
    text = json.dumps(document).encode()
    element = struct.pack("<f", value) if datatype == "FP32" else struct.pack("<i", int(value))
    body = text + b"".join(element * (size // 4) for size in sizes.values())
    said = {
        "Host": "x",
        "Inference-Header-Content-Length": str(len(text)),
        "Content-Length": str(len(body)),
        **(headers or {}),
    }
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", *(f"{name}: {text}" for name, text in said.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def json_request(
    model: str,
    inputs: Mapping[str, tuple[str, Sequence[int], str]],
    request_id: str | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    tensors: bytes = b"",
    **members: Any,
) -> bytes:
    """An inference whose inputs are (datatype, shape, JSON text of ``data``), or binary where the text is empty: these
    are ``tensors``, all of one size. ``members`` are added to the JSON, behind the id, if that is given."""
    binary = sum(not text for _, _, text in inputs.values())
    entries = []
    for name, (datatype, shape, text) in inputs.items():
        data = f'"data":{text}' if text else f'"parameters":{{"binary_data_size":{len(tensors) // binary}}}'
        entries.append(f'{{"name":"{name}","shape":{list(shape)},"datatype":"{datatype}",{data}}}')
    rest = "".join(f",{json.dumps(key)}:{json.dumps(value)}" for key, value in members.items())
    named = "" if request_id is None else f'"id":{json.dumps(request_id)},'
    body = f'{{{named}"inputs":[{",".join(entries)}]{rest}}}'.encode()
    said = {"Host": "x", "Content-Length": str(len(body) + len(tensors)), **(headers or {})}
    if tensors:
        said["Inference-Header-Content-Length"] = str(len(body))
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", *(f"{name}: {value}" for name, value in said.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body + tensors
