"""Connections to a port of an appliance, over HTTP and gRPC, and the way to its other port for who came to the wrong
one: what a server speaks is found out by asking."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from appliance.cli.endpoint import EVERYWHERE, UNIX, Endpoint, parsed
from appliance.cli.failure import CommandFailed, Exit
from appliance.cli.tls import GRPC, HTTP
from appliance.domain.protocol import ADDRESSES

if TYPE_CHECKING:
    import grpc

CONNECT_S: Final = 3.0
FETCH_S: Final = 5.0
PROBE_S: Final = 1.0
GREETING: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The beginning of HTTP/2, which a server of HTTP/1.1 refuses in its own words."""
SETTINGS: Final = b"\x04"
"""The type of the frame that a server of HTTP/2 begins with, behind three bytes of length."""
SILENT: Final = "nothing"
NAMES: Final = {GRPC: "gRPC", HTTP: "HTTP"}


class _HttpConnection(HTTPConnection):
    """Over a Unix socket, or over TLS to a server that may bear another name than its host's."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint.host or "localhost", endpoint.port or None, timeout=FETCH_S)
        self._endpoint = endpoint

    def connect(self) -> None:
        """Connect and shake hands."""
        self.sock = connect(self._endpoint, FETCH_S, HTTP)


def http_connection(endpoint: Endpoint) -> HTTPConnection:
    """A connection that is not made yet. Proxies are not asked."""
    return _HttpConnection(endpoint)


def grpc_channel(endpoint: Endpoint) -> grpc.Channel:
    """A channel for messages of any size."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # as in oip_client
    import grpc

    options: list[tuple[str, int | str]] = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
    ]
    target = f"{UNIX}{os.path.abspath(endpoint.socket)}" if endpoint.socket else endpoint.authority
    tls = endpoint.tls
    if tls is None or endpoint.socket:
        return grpc.insecure_channel(target, options=options)
    if tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return grpc.secure_channel(
        target, grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate), options
    )


def connect(endpoint: Endpoint, timeout_s: float, *protocols: str) -> socket.socket:
    """A connection for any of the ``protocols``, over TLS where that is spoken. Raises OSError."""
    if endpoint.socket:
        plain = socket.socket(socket.AF_UNIX)
        plain.settimeout(timeout_s)
    else:
        plain = socket.create_connection((endpoint.host, endpoint.port), timeout_s)
    try:
        if endpoint.socket:
            plain.connect(endpoint.socket)
        elif endpoint.tls is not None:
            return endpoint.tls.over(plain, endpoint.host, protocols)
    except BaseException:
        plain.close()
        raise
    return plain


def spoken_at(endpoint: Endpoint) -> str:
    """What the server there speaks, by its answer to the beginning of HTTP/2: GRPC or HTTP, SILENT where it takes
    connections and says nothing; "" where none can be had, or for anything else."""
    try:
        with closing(connect(endpoint, CONNECT_S, GRPC, HTTP)) as connection:
            connection.settimeout(PROBE_S)
            connection.sendall(GREETING)
            try:
                answer = connection.recv(64)
            except TimeoutError:
                return SILENT
    except (OSError, ValueError):
        return ""
    if answer.startswith(b"HTTP/"):
        return HTTP
    return GRPC if answer[3:4] == SETTINGS else ""


def other_port(endpoint: Endpoint, protocol: str) -> Endpoint:
    """The port for ``protocol`` of the appliance that speaks the other one at ``endpoint``. Raises CommandFailed when
    it tells none that can be reached from here."""
    told = _told_over_http(endpoint) if protocol == GRPC else _told_over_grpc(endpoint)
    urls = told.get(protocol) if isinstance(told, Mapping) else None
    if not isinstance(urls, list) or not all(isinstance(url, str) for url in urls):
        raise CommandFailed(
            f"something answers at {endpoint}, but not in {NAMES[protocol]}; give --url the address that 'appliance "
            "serve' shows; where that speaks TLS, give --ca FILE as well",
            Exit.UNREACHABLE,
        )
    for url in sorted(urls, key=lambda each: each.startswith(UNIX)):
        if (found := _from_here(url, endpoint, protocol)) is not None:
            return found
    where = f"only at {', '.join(urls)}, which is not this machine" if urls else "nowhere"
    text = f"the appliance at {endpoint} speaks {NAMES[protocol]} {where}"
    raise CommandFailed(f"{text}; set {protocol}.addresses of its configuration", Exit.UNREACHABLE)


def _from_here(url: str, asked: Endpoint, protocol: str) -> Endpoint | None:
    """Where the ``url`` that a server tells is reached from here; None where it means its own machine."""
    found = parsed(url, protocol, asked.tls if url.startswith("https:") else None)
    if found.socket:
        return found if asked.is_here and Path(found.socket).is_socket() else None
    if found.host in EVERYWHERE:
        found = replace(found, host=asked.host or EVERYWHERE[found.host])
        return replace(found, said=found.authority)
    return found if asked.is_here or not found.is_here else None


def _told_over_http(endpoint: Endpoint) -> Any:
    try:
        with closing(http_connection(endpoint)) as connection:
            connection.request("GET", f"{endpoint.prefix}/status.json")
            return json.loads(connection.getresponse().read())["server"]["addresses"]
    except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError):
        return {}


def _told_over_grpc(endpoint: Endpoint) -> Any:
    with grpc_channel(endpoint) as channel:
        import grpc

        try:
            return json.loads(channel.unary_unary(ADDRESSES, None, None)(b"", timeout=CONNECT_S))
        except (grpc.RpcError, ValueError, RecursionError):
            return {}
