"""What listens, and where: the section ``[frontend]``, and what ``[grpc]`` and ``[http]`` say in the same terms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from appliance.domain.address import address_problems
from appliance.domain.protocol import SERVER_NAME

SYSTEMD: Final = "systemd"
"""An address that stands for the sockets that the service manager opened; ``systemd:NAME`` for those of one name."""
SERVER_NAME_MAX: Final = 128
OWN_USER: Final = "0600"
"""The mode of Unix sockets that were not opened up: the user that the appliance runs as, and root."""


def inherits(address: str) -> bool:
    """Whether ``address`` stands for sockets that the service manager opened."""
    return address == SYSTEMD or (
        address.startswith(f"{SYSTEMD}:") and not address[len(SYSTEMD) + 1 :].isdecimal()
    )


def listening_problems(addresses: Sequence[str]) -> Iterator[str]:
    """What is wrong with listening addresses, one text for each that cannot be read."""
    return address_problems([address for address in addresses if not inherits(address)])


def client_name_problems(names: Sequence[str]) -> Iterator[str]:
    """What is wrong with names of clients, one text for each that no certificate could bear."""
    for name in names:
        domain = name.removeprefix("*.")
        if not 0 < len(name) < 256 or not name.isprintable():
            yield f"{name!r} is no name: it must have 1 to 255 printable characters"
        elif "*" in domain or (domain != name and ":" in domain) or not domain:
            yield f"'{name}': a wildcard is only '*.' at the front of a DNS name, as in '*.site.example'"


def shared_sockets(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two ports would both take a socket of the service manager's."""
    names = [{each.partition(":")[2] for each in addresses if inherits(each)} for addresses in (one, other)]
    return bool(names[0] & names[1]) or any("" in mine and theirs for mine, theirs in (names, names[::-1]))


def mode_problems(mode: str) -> Iterator[str]:
    """Why ``mode`` is none for a Unix socket."""
    if not 3 <= len(mode) <= 4 or not set(mode) <= set("01234567") or int(mode, 8) > 0o777:
        yield f"'{mode}' is no mode; give octal digits for owner, group and others, such as '0660'"
    elif not int(mode, 8) & 0o222:
        yield f"with mode '{mode}' nobody could connect, which takes the right to write; give one such as '0660'"


class FrontEndKind(Enum):
    """Implementations. AUTO is NATIVE where that was built, and PYTHON elsewhere."""

    AUTO = "auto"
    NATIVE = "native"
    PYTHON = "python"


def server_name_problems(name: str) -> Iterator[str]:
    """What keeps ``name`` from being told to clients."""
    if not (0 < len(name) <= SERVER_NAME_MAX and name.isprintable()):
        yield f"must be a printable text of 1 to {SERVER_NAME_MAX} characters"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEndConfig:
    """The ``[frontend]`` section."""

    kind: FrontEndKind = field(
        default=FrontEndKind.AUTO,
        metadata={
            "help": "who listens for gRPC and HTTP: native ('make native' builds it), python (grpcio and aiohttp), or "
            "auto: native where it was built"
        },
    )
    server_name: str = field(
        default=SERVER_NAME,
        metadata={
            "help": "name that clients are told in the server's metadata, such as the box's or the site's",
            "check": server_name_problems,
        },
    )


ADDRESSES: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "help": "where to listen: host:port, [v6]:port or unix:/path; systemd[:NAME] for sockets that the service "
        "manager opened (native front end)",
        "check": listening_problems,
    }
)
"""Metadata of the addresses of a protocol, which has a default of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningConfig:
    """What both protocols say of where they listen. An address is ``host:port``, ``[v6 address]:port`` (port 0 takes a
    free one), ``unix:/path``, ``systemd`` or ``systemd:NAME``; no address turns the protocol off. No certificate: no
    TLS. Raises ValueError where settings contradict one another."""

    addresses: tuple[str, ...] = field(default=(), metadata=ADDRESSES)
    reuse_port: bool = field(
        default=False,
        metadata={
            "help": "let other servers listen on the same port; the kernel deals connections out among them"
        },
    )
    unix_mode: str = field(
        default=OWN_USER,
        metadata={
            "help": "permissions of Unix sockets that are made here, in octal: who may write may connect",
            "check": mode_problems,
        },
    )
    unix_group: str = field(
        default="",
        metadata={
            "help": "group of these sockets, one of the appliance's user; empty: the one that it runs with"
        },
    )
    tls_certificate: str = field(
        default="",
        metadata={"help": "PEM file of the server's certificate chain, for TCP; empty: no TLS"},
    )
    tls_key: str = field(default="", metadata={"help": "PEM file of the certificate's private key"})
    tls_client_ca: str = field(
        default="",
        metadata={
            "help": "PEM file of authorities; clients must then show a certificate that one of them signed"
        },
    )
    tls_client_names: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "who may come with such a certificate: the first URI among its alternative names, else the first "
            "DNS name, else, without any alternative names, the common name; with :// in it only such a URI; *. at the "
            "front stands for one label of a DNS name; empty: everybody (native front end)",
            "check": client_name_problems,
        },
    )

    def __post_init__(self) -> None:
        if problems := list(self.contradictions()):
            raise ValueError("; ".join(problems))

    def contradictions(self) -> Iterator[str]:
        """What is wrong with settings that one another rule out."""
        if bool(self.tls_certificate) != bool(self.tls_key):
            yield "tls_certificate and tls_key go together; give both or neither"
        if self.tls_client_ca and not self.tls_certificate:
            yield "tls_client_ca asks clients for certificates, which takes tls_certificate and tls_key"
        if self.tls_client_names and not self.tls_client_ca:
            yield "tls_client_names names clients by their certificates, for which tls_client_ca asks"
        if self.tls_certificate and self.addresses and all(map(_is_path, self.addresses)):
            yield (
                "tls_certificate is for TCP, but all addresses are Unix sockets, which speak no TLS and ask nobody for "
                "a certificate; unix_mode and unix_group say who may connect there"
            )


def _is_path(address: str) -> bool:
    return address.startswith("unix:")
