"""Who counts as one peer, and how many connections each may have."""

from __future__ import annotations

import pytest

from appliance.config.grpc import DoorConfig
from appliance.config.http import HttpConfig
from appliance.frontend.http.peers import Peers, network_of


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("2001:db8::1", "2001:db8:0:0:ffff::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_one_peer_is_an_address_or_an_ipv6_network(one: str, other: str, same: bool) -> None:
    assert (network_of(one) == network_of(other)) is same


def test_each_peer_has_its_own_count() -> None:
    peers = Peers(2)
    assert [peers.enter("10.0.0.1") for _ in range(3)] == [True, True, False]
    assert peers.enter("10.0.0.2")
    peers.leave("10.0.0.1")
    assert [peers.enter("10.0.0.1") for _ in range(2)] == [True, False]


@pytest.mark.parametrize("config", [HttpConfig(), DoorConfig()], ids=["http", "grpc"])
def test_no_peer_may_have_more_than_an_eighth_of_all_connections(config: HttpConfig | DoorConfig) -> None:
    assert config.max_connections_per_peer <= config.max_connections // 8


def test_what_has_no_address_is_not_counted() -> None:
    peers = Peers(1)
    assert all(peers.enter("") for _ in range(3))
    peers.leave("")
