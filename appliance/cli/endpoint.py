"""Where a running appliance answers: one address for all commands, of either of its ports.

``--url`` says it, else ``APPLIANCE_URL``, else the configuration, which also says how its own port is spoken to over
TLS; else it is the default.
"""

from __future__ import annotations

import argparse
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from appliance.cli import tls
from appliance.cli.arguments import configuration_at
from appliance.cli.failure import CommandFailed
from appliance.cli.tls import GRPC, Tls
from appliance.config.listening import ListeningConfig, inherits
from appliance.domain.address import parse_address

ENVIRONMENT: Final = "APPLIANCE_URL"
HERE: Final = "127.0.0.1"
HTTP_PORT: Final = 8000
GRPC_PORT: Final = 8001
UNIX: Final = "unix:"
EVERYWHERE: Final[Mapping[str, str]] = MappingProxyType({"0.0.0.0": "127.0.0.1", "::": "::1"})
"""Where to find on this machine what listens on all of its addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A port as it was ``said``: the Unix ``socket``, or ``host`` and ``port``, over ``tls`` where that is given, with
    the ``prefix`` of its paths over HTTP."""

    said: str
    socket: str = ""
    host: str = ""
    port: int = 0
    prefix: str = ""
    tls: Tls | None = None

    def __str__(self) -> str:
        return self.said

    @property
    def authority(self) -> str:
        """``host:port``, as in URLs."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_here(self) -> bool:
        """Whether only this machine can be meant."""
        return bool(self.socket) or self.host in ("localhost", "::1") or self.host.startswith("127.")


def add_arguments(parser: argparse.ArgumentParser, *, config: bool = True) -> None:
    """Declare where an appliance answers, and over TLS; ``config``: a configuration is not declared elsewhere."""
    where = "else where --config has it listen, else 127.0.0.1"
    parser.add_argument(
        "--url",
        help="address of the appliance's HTTP or gRPC port: HOST:PORT, http(s)://HOST:PORT or unix:PATH (default: "
        f"${ENVIRONMENT}, {where})",
    )
    if config:
        parser.add_argument(
            "--config", metavar="FILE", type=Path, help="TOML file that says where the appliance listens"
        )
    tls.add_arguments(parser)


def endpoint_of(arguments: argparse.Namespace, protocol: str) -> Endpoint:
    """Where ``arguments`` have an appliance answer in ``protocol``. Raises CommandFailed."""
    said, origin = arguments.url, ""
    if said is None and (said := os.environ.get(ENVIRONMENT) or None):
        origin = f" ({ENVIRONMENT})"
    if said is None and arguments.config is not None:
        config = configuration_at(arguments.config)
        return _configured(config.grpc if protocol == GRPC else config.http, arguments, protocol)
    return parsed(HERE if said is None else said, protocol, tls.tls_of(arguments), origin)


def parsed(said: str, protocol: str, given: Tls | None, origin: str = "") -> Endpoint:
    """The endpoint that a person writes as ``said``; TLS as ``given``, or as its scheme has it. Raises
    CommandFailed."""
    path = said.removeprefix(UNIX).removeprefix("//") if said.startswith(UNIX) else ""
    if path:
        return Endpoint(said=f"{said}{origin}", socket=path)
    port = GRPC_PORT if protocol == GRPC else HTTP_PORT
    ports = {"": port, "http": 80, "https": 443}
    try:
        parts = urlsplit(said if "://" in said else f"//{said}")
        if not parts.hostname or parts.scheme not in ports or said.startswith(UNIX):
            raise ValueError("neither a host nor a socket")
        if " " in said or not said.isprintable():
            raise ValueError("an address has no such characters")
        number = parts.port or ports[parts.scheme]
    except ValueError as error:
        ways = "give HOST:PORT, http(s)://HOST:PORT or unix:PATH"
        raise CommandFailed(f"'{said}'{origin} is not an address ({error}); {ways}") from None
    if parts.scheme == "https" and given is None:
        given = Tls(None, None, None, "", ssl.create_default_context())
    return Endpoint(
        said=f"{said if parts.port or parts.scheme else f'{said}:{port}'}{origin}",
        host=parts.hostname,
        port=number,
        prefix=parts.path.rstrip("/"),
        tls=given,
    )


def _configured(section: ListeningConfig, arguments: argparse.Namespace, protocol: str) -> Endpoint:
    """Where ``section`` has the appliance listen. Its own certificate is trusted, under its own name."""
    url = listening(section.addresses) or HERE
    origin = f" ({arguments.config})"
    if not section.tls_certificate or url.startswith(UNIX):
        return parsed(url, protocol, tls.tls_of(arguments), origin)
    from appliance.frontend.listening.certificates import bearer_of

    bearer = bearer_of(section)
    name = bearer.names[0].replace("*", "any", 1) if bearer is not None and bearer.names else ""
    given = tls.tls_of(arguments, Path(section.tls_certificate), name)
    return parsed(url, protocol, given, origin)


def listening(addresses: Sequence[str]) -> str:
    """Where what listens at ``addresses`` answers on this machine, TCP first; "" where none of them says it."""
    for text in sorted(addresses, key=lambda each: each.startswith(UNIX)):
        if inherits(text):
            continue
        if text.startswith(UNIX):
            return text
        address = parse_address(text)
        if address.port:
            host = EVERYWHERE.get(address.host, address.host)
            return address._replace(host=host).with_port(address.port)
    return ""
