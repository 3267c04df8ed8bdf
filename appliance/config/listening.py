"""What an operator sets about a port, in the same terms for every section of the configuration that has
one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

from appliance.domain.address import address_problems

SYSTEMD: Final = "systemd"
"""An address that stands for the sockets that the service manager opened; ``systemd:NAME`` for those of one name."""


OWN_USER: Final = "0600"
"""The mode of Unix sockets that were not opened up: the user that the appliance runs as, and root."""


class TlsSettings(Protocol):
    """PEM files, and the names that may come of those that ``tls_client_ca`` signed. No certificate: no TLS."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it is spoken, but for Unix sockets."""

    @property
    def tls_certificate(self) -> str:
        """The server's certificate chain."""

    @property
    def tls_key(self) -> str:
        """Its private key."""

    @property
    def tls_client_ca(self) -> str:
        """Authorities of clients; "": clients show no certificate."""

    @property
    def tls_client_names(self) -> tuple[str, ...]:
        """The names that may come; none: every one with a certificate."""


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


def tls_contradictions(settings: TlsSettings) -> Iterator[str]:
    """Settings of TLS that one another rule out."""
    if bool(settings.tls_certificate) != bool(settings.tls_key):
        yield "tls_certificate and tls_key go together; give both or neither"
    if settings.tls_client_ca and not settings.tls_certificate:
        yield "tls_client_ca asks clients for certificates, which takes tls_certificate and tls_key"
    if settings.tls_client_names and not settings.tls_client_ca:
        yield "tls_client_names names clients by their certificates, for which tls_client_ca asks"
    if settings.tls_certificate and settings.addresses and all(map(_is_path, settings.addresses)):
        yield (
            "tls_certificate is for TCP, but all addresses are Unix sockets, which speak no TLS and ask nobody for a "
            "certificate; unix_mode and unix_group say who may connect there"
        )


def _is_path(address: str) -> bool:
    return address.startswith("unix:")


def mode_problems(mode: str) -> Iterator[str]:
    """Why ``mode`` is none for a Unix socket."""
    if not 3 <= len(mode) <= 4 or not set(mode) <= set("01234567") or int(mode, 8) > 0o777:
        yield f"'{mode}' is no mode; give octal digits for owner, group and others, such as '0660'"
    elif not int(mode, 8) & 0o222:
        yield f"with mode '{mode}' nobody could connect, which takes the right to write; give one such as '0660'"


REUSE_PORT: Final[Mapping[str, Any]] = MappingProxyType(
    {"help": "let other servers listen on the same port; the kernel deals connections out among them"}
)


UNIX_MODE: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "help": "permissions of Unix sockets that are made here, in octal: who may write may connect",
        "check": mode_problems,
    }
)


UNIX_GROUP: Final[Mapping[str, Any]] = MappingProxyType(
    {"help": "group of these sockets, one of the appliance's user; empty: the one that it runs with"}
)
"""Metadata of the settings ``reuse_port``, ``unix_mode`` and ``unix_group`` of a port's section."""
