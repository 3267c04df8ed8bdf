"""One HTTP exchange, said plainly: for tests that care about statuses, headers and bytes."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.appliance_process import ApplianceProcess

TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """The body as JSON; the JSON head alone where binary tensors follow."""
        length = self.headers.get("inference-header-content-length")
        return json.loads(self.body if length is None else self.body[: int(length)])

    @property
    def error(self) -> str:
        """The protocol's error text."""
        return str(self.document["error"])


def call(
    server: ApplianceProcess,
    method: str,
    path: str,
    body: bytes | Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Send one request on a connection of its own; a mapping is sent as JSON."""
    host, _, port = server.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_S)
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, dict(headers or {}))
        reply = connection.getresponse()
        found = {name.lower(): value for name, value in reply.getheaders()}
        return Reply(status=reply.status, headers=found, body=reply.read())
    finally:
        connection.close()


def infer(
    server: ApplianceProcess,
    model: str,
    document: Mapping[str, Any],
    tensors: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """An inference with ``document`` as the JSON head and ``tensors`` behind it."""
    head = json.dumps(document).encode()
    said = {"Inference-Header-Content-Length": str(len(head))} if tensors else {}
    return call(server, "POST", f"/v2/models/{model}/infer", head + tensors, {**said, **(headers or {})})
