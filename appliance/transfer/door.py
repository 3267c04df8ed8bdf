"""Where connections come in: no address takes more than its share of those that the process can hold.

What comes beyond is closed before anything is done for it, such as TLS, which takes a quarter of a megabyte: one
machine that opens connection after connection keeps nobody else out. Addresses of IPv6 count by their first 64 bits,
which one site has.
"""

from __future__ import annotations

import ipaddress
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

BACKLOG: Final = 1024


class Door(socket.socket):
    """A listening socket that holds each address to ``at_once`` connections."""

    def __init__(self, listening: socket.socket, at_once: int) -> None:
        super().__init__(listening.family, listening.type, listening.proto, fileno=listening.detach())
        self._at_once = at_once
        self._inside: Counter[str] = Counter()

    def accept(self) -> tuple[socket.socket, Any]:
        """See socket. Raises ConnectionAbortedError where somebody was sent away, and OSError."""
        connection, address = super().accept()
        who = _neighbourhood(address[0])
        if self._inside[who] >= self._at_once:
            connection.close()
            raise ConnectionAbortedError(f"{who} has {self._at_once} connections")
        self._inside[who] += 1
        return _Visitor(connection, lambda: self._leave(who)), address

    def _leave(self, who: str) -> None:
        self._inside[who] -= 1
        if not self._inside[who]:
            del self._inside[who]


class _Visitor(socket.socket):
    """A connection that is told of when it ends."""

    def __init__(self, connection: socket.socket, leave: Callable[[], None]) -> None:
        super().__init__(connection.family, connection.type, connection.proto, fileno=connection.detach())
        self._leave: Callable[[], None] | None = leave

    def close(self) -> None:
        """See socket."""
        leave, self._leave = self._leave, None
        super().close()
        if leave is not None:
            leave()


def doors(host: str, port: int, at_once: int) -> list[Door]:
    """One for each address that ``host`` is. Raises OSError."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    opened: list[Door] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            opened.append(Door(socket.create_server(address[:2], family=family, backlog=BACKLOG), at_once))
    except OSError:
        for each in opened:
            each.close()
        raise
    return opened


def _neighbourhood(host: str) -> str:
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
