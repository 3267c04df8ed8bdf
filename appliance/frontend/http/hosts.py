"""Which requests a page of some web site may have sent here, and are refused therefore: those for a host that is none
of the server's, and those of which the browser says so.

Any page can have its visitor's browser send requests to an address that only the visitor reaches. It reads the answers
only where its own name leads here as well (DNS rebinding), and then that name is the Host. So the Host must be one that
no stranger can have: an IP address, a name without a dot or one that public DNS does not give away, the machine's own,
or one that is configured. Over TLS the certificate sees to that, and no browser comes over a Unix socket. gRPC is not
asked: browsers speak its HTTP/2 over TLS alone. What a page sends without reading the answer is told by the headers
that no page can change, and, where a browser has none of these, by the types of bodies that it sends unasked. Nothing
is said of CORS, so no other site is given an answer.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final

from aiohttp import web

from appliance.config.http import ANY_HOST, HttpConfig
from appliance.config.listening import inherits
from appliance.domain.address import parse_address
from appliance.frontend.http.status import HttpRefusal

LOCAL: Final = (
    ".local", ".internal", ".localhost", ".home.arpa", ".lan", ".home", ".corp", ".localdomain", ".intranet", ".test",
)  # fmt: skip
"""What names end in that public DNS does not give away."""

_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::[0-9]*)?")
_UNDOTTED: Final = re.compile(r"[a-z0-9_-]+")


def host_names(config: HttpConfig) -> tuple[str, ...] | None:
    """The names by which clients may ask, one that begins with a dot for all that end in it; None: by any."""
    if config.tls_certificate or ANY_HOST in config.hosts:
        return None
    listening = [parse_address(each).host for each in config.addresses if not inherits(each)]
    configured = [host.removeprefix("*") for host in config.hosts]
    return tuple(name.lower() for name in (*LOCAL, socket.gethostname(), *listening, *configured) if name)


def is_own(host: str, names: Sequence[str]) -> bool:
    """Whether ``host``, with a port or without, is an address, a name without a dot, or one of ``names``."""
    found = _HOST.fullmatch(host.lower())
    if found is None:
        return False
    name = found[1].removesuffix(".")
    if _UNDOTTED.fullmatch(name) or _is_address(name):
        return True
    return any(name == own or (own[0] == "." and name.endswith(own)) for own in names)


def _is_address(name: str) -> bool:
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def check_host(request: web.BaseRequest, names: Sequence[str] | None) -> None:
    """Raise HttpRefusal for a request for a host that is not the server's."""
    host = request.headers.get("Host")
    if names is not None and host is not None and not is_own(host, names):
        raise HttpRefusal(
            HTTPStatus.FORBIDDEN,
            "the Host of this request is none of this server's names and might be that of a web page: ask by IP "
            "address, by a name without a dot, or by one that http.hosts lists",
        )


def check_sender(request: web.BaseRequest) -> None:
    """Raise HttpRefusal for a POST that a page of another site had sent, or might have, with an older browser."""
    headers = request.headers
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    if site is not None:
        foreign = site not in ("same-origin", "none")
    else:
        foreign = origin is not None and origin.partition("://")[2] != headers.get("Host")
    if foreign:
        raise HttpRefusal(HTTPStatus.FORBIDDEN, "pages of other sites may not send requests here")
    kind = headers.get("Content-Type", "").lower()
    if kind.startswith(("text/", "multipart/")):
        raise HttpRefusal(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "a body of this Content-Type is what a page of any web site may send; send application/json, or "
            "application/octet-stream where binary tensors follow",
        )
