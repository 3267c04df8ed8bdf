"""Listening addresses: what a configured one means, and whether it can be had.

Asking the system before a library does gives the reason in the system's words, and keeps a second server from taking a
Unix socket away from one that lives. An ``edge`` is named as its section of the configuration: grpc, http or control.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from types import MappingProxyType
from typing import Final, NamedTuple

from appliance.domain.errors import AddressUnavailable, system_reason

_UNIX = "unix:"
_UPPER: Final = ((1 << 64) - 1) << 64

_PORT_ADVICE: Final[Mapping[int | None, str]] = MappingProxyType(
    {
        errno.EADDRINUSE: "stop what listens there",
        errno.EACCES: "give the service the capability CAP_NET_BIND_SERVICE, which ports below 1024 need",
        errno.EADDRNOTAVAIL: "give this machine that address, which none of its interfaces has ('ip address')",
    }
)
_UNIX_ADVICE: Final[Mapping[int | None, str]] = MappingProxyType(
    {
        errno.EADDRINUSE: "stop what listens there",
        errno.EEXIST: "move that file away",
        errno.ENOENT: "make the directory of the socket",
        errno.EACCES: "let this user write to the directory of the socket",
    }
)

UNIX: Final = "unix"
"""The client that stands for all connections over Unix sockets."""


class Address(NamedTuple):
    """An address to bind: ``host`` and ``port``, or a ``path`` (then host is empty)."""

    host: str
    port: int
    path: str = ""

    def with_port(self, port: int) -> str:
        """The address as people write it, with the port that was taken."""
        if self.path:
            return f"{_UNIX}{self.path}"
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"


def parse_address(text: str) -> Address:
    """Read ``host:port``, ``[v6]:port`` or ``unix:/path``; raises AddressUnavailable when it is none of them."""
    if text.startswith(_UNIX) and len(text) > len(_UNIX):
        return Address("", 0, text.removeprefix(_UNIX))
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not host or not port.isdecimal() or int(port) > 65535:
        raise AddressUnavailable(f"'{text}' is not host:port, [v6 address]:port or unix:/path")
    return Address(host, int(port))


def address_problems(texts: Sequence[str]) -> Iterator[str]:
    """What is wrong with configured addresses, one text for each that cannot be read. Asks nothing of the system."""
    for text in texts:
        try:
            parse_address(text)
        except AddressUnavailable as error:
            yield str(error)


def named_twice(texts: Sequence[str]) -> Iterator[str]:
    """Those of configured addresses that were named before. Names of the service manager's sockets are none."""
    seen: set[Address] = set()
    for text in texts:
        try:
            address = parse_address(text)
        except AddressUnavailable:
            continue
        if address in seen:
            yield text
        if address.path or address.port:
            seen.add(address)


def check_free(address: Address, edge: str) -> None:
    """Raise AddressUnavailable, with the system's reason, when ``address`` cannot be listened on."""
    try:
        if address.path:
            _check_path(address.path)
        else:
            _check_port(address)
    except OSError as error:
        raise unavailable(address, edge, error) from error


def unavailable(address: Address, edge: str, reason: OSError | UnicodeError | str) -> AddressUnavailable:
    """The error that tells which address, the system's ``reason``, and what to do about that one."""
    number = reason.errno if isinstance(reason, OSError) else None
    said = reason if isinstance(reason, str) else system_reason(reason)
    advice = _UNIX_ADVICE.get(number) if address.path else _PORT_ADVICE.get(number)
    setting = "control.socket" if edge == "control" else f"{edge}.addresses"
    ways = " or ".join(filter(None, (advice, f"set {setting} to another address")))
    return AddressUnavailable(f"{edge} cannot listen on {address.with_port(address.port)}: {said}; {ways}")


def _check_port(address: Address) -> None:
    family, kind, protocol, _, target = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(target)
        probe.listen(1)


def _check_path(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        os.stat(os.path.dirname(path) or ".")
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(17, "a file of that name exists and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return
    raise OSError(98, os.strerror(98))


def address_of(host: str) -> str | None:
    """The client at a network address: an IPv4 address, or the network of an IPv6 one, since whoever has one of these
    has all; UNIX as it is; None for what is neither."""
    if host == UNIX:
        return host
    try:
        address = ip_address(host)
    except ValueError:
        return None
    if isinstance(address, IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or IPv6Address(int(address) & _UPPER))
