"""The rule of quotas, with a clock in hand: the native front end's, and step by step the same that of a reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config.quotas import ClientQuota, QuotasConfig
from appliance.domain.address import address_of
from appliance.frontend.quotas import IN_FLIGHT, LET_IN, Clients, Terms, default_terms, terms_of
from tests.frontend.quota.reference import Registry
from tests.fronts import needs_native

MS = 1_000_000
SECOND = 1_000_000_000
A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"


def native() -> Clients:
    from edge_appliance_native import Quotas

    return Quotas()


EVERY_KEEPER = [Registry, pytest.param(native, marks=needs_native)]
every_keeper = pytest.mark.parametrize("keeper", EVERY_KEEPER)
Keeper = Callable[[], Clients]


def quota(**numbers: Any) -> Terms:
    return terms_of("*", ClientQuota(**numbers))


def kept(keeper: Keeper, default: Terms, *, most: int = 16, **named: Terms) -> Clients:
    clients = keeper()
    clients.set(default, list(named.items()), most, 0)
    return clients


def waits(clients: Clients, client: str, *times_ms: float) -> list[float]:
    """What is answered to a request at each of these times, waits in ms. It ends at once."""
    told = []
    for now_ns in (int(at * MS) for at in times_ms):
        account = clients.account(client, now_ns)
        wait_ns, _ = account.take(now_ns)
        if wait_ns == LET_IN:
            account.give()
        told.append(max(wait_ns, 0) / MS)
    return told


@every_keeper
def test_a_burst_goes_through_and_then_a_token_at_a_time(keeper: Keeper) -> None:
    clients = kept(keeper, quota(requests_per_s=100, burst=3))
    assert waits(clients, A, 1000, 1000, 1000, 1000) == [0, 0, 0, 10]
    assert waits(clients, A, 1004, 1010, 1010) == [6, 0, 10], "who is refused owes nothing"
    assert waits(clients, A, 9000, 9000, 9000, 9000) == [0, 0, 0, 10], "no more than a burst is saved"
    assert waits(clients, B, 9000) == [0], "each has tokens of its own"
    assert {label: rate for label, rate, _ in clients.figures()[1]}["*"] == 4


@every_keeper
def test_without_a_burst_one_second_comes_at_once(keeper: Keeper) -> None:
    clients = kept(keeper, quota(requests_per_s=2.5))
    assert waits(clients, A, 0, 0, 0, 0) == [0, 0, 0, 400]
    assert waits(kept(keeper, quota(requests_per_s=0.5)), A, 0, 0) == [0, 2000]


@every_keeper
def test_what_is_in_flight_is_bounded_and_who_is_refused_takes_no_token(keeper: Keeper) -> None:
    clients = kept(keeper, quota(requests_per_s=1, burst=3, in_flight=2))
    account = clients.account(A, 0)
    assert [account.take(0)[0] for _ in range(4)] == [LET_IN, LET_IN, IN_FLIGHT, IN_FLIGHT]
    account.give()
    assert [account.take(0)[0], account.take(0)[0]] == [LET_IN, IN_FLIGHT]
    account.give()
    assert account.take(0)[0] == SECOND
    assert account.reason(IN_FLIGHT) == "Exceeds the quota of each client: 2 requests in flight"
    assert (
        account.reason(SECOND) == "Exceeds the quota of each client: 1 requests per second, at most 3 at once"
    )
    assert clients.figures() == (1, [("*", 1, 3)])


@every_keeper
def test_a_refusal_is_told_once_in_ten_seconds(keeper: Keeper) -> None:
    account = kept(keeper, quota(requests_per_s=0.001)).account(A, 0)
    told = [account.take(at * SECOND)[1] for at in (0, 1, 2, 10, 11, 12)]
    assert told == [False, True, False, False, True, False]


@every_keeper
def test_who_finds_no_room_shares_until_somebody_is_idle(keeper: Keeper) -> None:
    clients = kept(keeper, quota(requests_per_s=1, burst=1), most=2)
    assert [waits(clients, each, 0) for each in (A, B, C)] == [[0], [0], [0]]
    assert waits(clients, "10.0.0.4", 1) == [999], "as one with the third"
    assert clients.figures()[0] == 2
    assert waits(clients, C, 1000) == [0]
    assert waits(clients, "10.0.0.4", 1000) == [0], "a place of its own"


@every_keeper
def test_named_clients_have_their_own_numbers_and_always_room(keeper: Keeper) -> None:
    named = {A: terms_of(A, ClientQuota(requests_per_s=1000, burst=1))}
    clients = kept(keeper, quota(requests_per_s=1, burst=1), most=1, **named)
    assert waits(clients, B, 0, 0) == [0, 1000]
    assert waits(clients, A, 0, 0, 1) == [0, 1, 0]
    assert clients.account(A, 0).reason(1).startswith("Exceeds the quota of '10.0.0.1': 1000 requests")
    assert sorted(clients.figures()[1]) == [("*", 1, 0), (A, 1, 0)]


@every_keeper
def test_unix_sockets_have_no_default(keeper: Keeper) -> None:
    clients = kept(keeper, quota(requests_per_s=1, burst=1))
    assert waits(clients, "unix", 0, 0, 0) == [0, 0, 0]
    clients = kept(keeper, quota(), unix=terms_of("unix", ClientQuota(requests_per_s=1, burst=1)))
    assert waits(clients, "unix", 0, 0) == [0, 1000]


@every_keeper
def test_new_numbers_hold_for_who_is_here_and_old_debts_are_forgiven(keeper: Keeper) -> None:
    clients = kept(keeper, quota(requests_per_s=1, burst=60))
    account = clients.account(A, 0)
    assert all(account.take(0)[0] == LET_IN for _ in range(60))
    clients.set(quota(requests_per_s=100, burst=1), [], 16, 0)
    assert account.take(0)[0] == 10 * MS
    clients.set(quota(), [], 16, 0)
    assert account.take(0)[0] == LET_IN


def test_addresses_are_clients_by_their_networks() -> None:
    assert address_of("10.0.0.7") == "10.0.0.7"
    assert address_of("::ffff:10.0.0.7") == "10.0.0.7"
    assert address_of("2001:db8::7") == address_of("2001:db8:0:0:ffff::8") == "2001:db8::"
    assert address_of("unix") == "unix"
    assert address_of("camera.site.example") is None


CLIENTS = [
    "10.0.0.1",
    "10.0.0.2",
    "2001:db8::",
    "unix",
    "a.site.example",
    "B.site.example",
    "spiffe://site/camera",
]
NAMES = [
    *CLIENTS[:5],
    "b.site.example",
    "spiffe://site/camera",
    "spiffe://site/Camera",
    "*.site.example",
    "*.example",
]
QUOTAS = st.builds(
    ClientQuota,
    requests_per_s=st.sampled_from([0.3, 1.0, 7.0, 30.0, 1e3, 1e6]),
    burst=st.integers(0, 5),
    in_flight=st.integers(0, 3),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(CLIENTS),
        st.integers(0, 3),
        st.one_of(st.integers(0, 3), st.integers(0, 3 * 10**9), st.sampled_from([10**8, 10**10])),
    ),
    max_size=120,
)


def end(accounts: Iterable[Any]) -> None:
    """Requests of these end. Nothing holds the accounts after this, so that the native front end may forget them."""
    for account in accounts:
        account.give()


@needs_native
@given(
    quotas=st.lists(QUOTAS, min_size=2, max_size=2),
    named=st.dictionaries(st.sampled_from(NAMES), QUOTAS, max_size=4),
    most=st.integers(1, 6),
    steps=STEPS,
    change_at=st.integers(0, 120),
)
def test_the_reference_says_the_same_of_the_same_arrivals(
    quotas: list[ClientQuota], named: dict[str, ClientQuota], most: int, steps: Any, change_at: int
) -> None:
    """Steps are (client, how many requests of its to end first, ns that pass); terms change amid them."""
    both: tuple[Clients, Clients] = (Registry(), native())
    names = sorted(named, key=lambda name: name.startswith("*."))
    rows = [(name, terms_of(name, named[name])) for name in names]
    for clients in both:
        clients.set(terms_of("*", quotas[0]), rows, most, 0)
    held: dict[str, list[tuple[Any, Any]]] = {client: [] for client in CLIENTS}
    now_ns = 0
    for number, (client, ends, passed_ns) in enumerate(steps):
        now_ns += passed_ns
        if number == change_at:
            for clients in both:
                clients.set(terms_of("*", quotas[1]), rows[:1], most, now_ns)
        for _ in range(min(ends, len(held[client]))):
            end(held[client].pop())
        accounts = tuple(clients.account(client, now_ns) for clients in both)
        one, other = (account.take(now_ns) for account in accounts)
        assert one == other
        assert accounts[0].client == accounts[1].client
        assert accounts[0].reason(one[0] or 1) == accounts[1].reason(one[0] or 1)
        if one[0] == LET_IN:
            held[client].append((accounts[0], accounts[1]))
        del accounts
    known, refused = zip(*(clients.figures() for clients in both), strict=True)
    assert sorted(refused[0]) == sorted(map(tuple, refused[1]))
    assert known[0] == known[1]


def test_the_default_of_a_configuration_is_in_the_words_of_all() -> None:
    config = QuotasConfig(requests_per_s=30, burst=60)
    assert default_terms(config).interval_ns == round(SECOND / 30)
    assert default_terms(config).tolerance_ns == 59 * round(SECOND / 30)
    assert not any(default_terms(QuotasConfig())[1:4])
