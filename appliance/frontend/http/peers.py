"""How many connections are open from where, so that one client cannot take all there may be."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv4Address, IPv6Address, ip_address

UPPER = 64
"""Bits of an IPv6 address that count: whoever has one address has all that share these."""


def network_of(host: str) -> IPv4Address | int | None:
    """What counts as one peer: an IPv4 address, or the upper half of an IPv6 one; None for what is no address, as over
    a Unix socket."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        return address.ipv4_mapped or int(address) >> UPPER
    return address


class Peers:
    """Counts connections by peer, at most ``limit`` for each. Owner: the HTTP server."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[IPv4Address | int] = Counter()

    def enter(self, host: str) -> bool:
        """Count a connection from ``host``; False, and not counted, when that is one too many."""
        network = network_of(host)
        if network is None:
            return True
        if self._open[network] >= self._limit:
            return False
        self._open[network] += 1
        return True

    def leave(self, host: str) -> None:
        """A connection that entered has ended."""
        network = network_of(host)
        if network is None:
            return
        self._open[network] -= 1
        if not self._open[network]:
            del self._open[network]
