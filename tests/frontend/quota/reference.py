"""The rule of quotas as a reference for the native front end's: token buckets, and bounds on requests in flight, of
clients that are told apart. Pure: time is an argument."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from appliance.domain.address import UNIX, address_of
from appliance.frontend.quotas import CLIENTS, IN_FLIGHT, LET_IN, STRANGERS, UNBOUNDED, Terms
from appliance.telemetry.snapshot import Refusals

TELL_NS: Final = 10_000_000_000
"""So seldom a client's refusals are told at most."""
SWEEP_NS: Final = 100_000_000
"""So seldom idle clients are looked for at most, where there is no room for another."""
_LABEL: Final = re.compile(r"[A-Za-z0-9_-]+")


class Account:
    """One client, by its ``terms``. Owner: its Registry's."""

    __slots__ = ("_counts", "_due_ns", "_in_flight", "_told_ns", "client", "terms")

    def __init__(self, client: str, terms: Terms, counts: list[int]) -> None:
        self.client = client
        self.terms = terms
        self._counts = counts
        self._due_ns = 0
        self._in_flight = 0
        self._told_ns = 0

    def arrived_ns(self) -> int:
        """When the request came that is being passed on; 0: it is not, or that is not known."""
        return 0

    def take(self, now_ns: int) -> tuple[int, bool]:
        """A request came at ``now_ns``: LET_IN, to be given back when it has ended, or why not; and whether that is to
        be told, which is seldom."""
        _, interval_ns, tolerance_ns, in_flight, _, _ = self.terms
        if in_flight and self._in_flight >= in_flight:
            return self._refused(IN_FLIGHT, now_ns)
        if interval_ns:
            due_ns = max(self._due_ns, now_ns)
            wait_ns = due_ns - now_ns - tolerance_ns
            if wait_ns > 0:
                return self._refused(wait_ns, now_ns)
            self._due_ns = due_ns + interval_ns
        self._in_flight += 1
        return LET_IN, False

    def give(self) -> None:
        """A request that was let in has ended."""
        assert self._in_flight > 0, "given back more than was taken"
        self._in_flight -= 1

    def reason(self, wait_ns: int) -> str:
        """Why ``take`` refused."""
        return self.terms.in_flight_text if wait_ns < 0 else self.terms.rate_text

    def is_idle(self, now_ns: int) -> bool:
        """Whether it is as if the client had never come."""
        return not self._in_flight and self._due_ns <= now_ns

    def change(self, terms: Terms, counts: list[int], now_ns: int) -> None:
        """Other terms hold from now on. What is owed is bounded by them: a client waits for no more than one token."""
        self.terms, self._counts = terms, counts
        self._due_ns = min(self._due_ns, now_ns + terms.tolerance_ns + terms.interval_ns)

    def _refused(self, wait_ns: int, now_ns: int) -> tuple[int, bool]:
        self._counts[wait_ns < 0] += 1
        tell = now_ns >= self._told_ns
        if tell:
            self._told_ns = now_ns + TELL_NS
        return wait_ns, tell


class Registry:
    """The clients that are told apart: the named ones, and ``max_clients`` others at most."""

    def __init__(self) -> None:
        self._default = UNBOUNDED
        self._named: Mapping[str, Terms] = {}
        self._max_clients = CLIENTS
        self._accounts: dict[str, Account] = {}
        self._counts: dict[str, list[int]] = {}
        self._sweep_at_ns = 0
        self._strangers = Account(STRANGERS, UNBOUNDED, [0, 0])

    def set(self, default: Terms, named: Sequence[tuple[str, Terms]], max_clients: int, now_ns: int) -> None:
        """These terms hold from ``now_ns`` on, for who is here as well."""
        self._default, self._named, self._max_clients = default, dict(named), max_clients
        for terms in (default, *self._named.values()):
            self._counted(terms)
        for account in (*self._accounts.values(), self._strangers):
            terms, _ = self._terms_of(account.client)
            account.change(terms, self._counted(terms), now_ns)

    def account(self, client: str, now_ns: int) -> Account:
        """That of ``client`` (see address_of; or a name in a certificate), or what those share who find no room."""
        known = self._accounts.get(client)
        if known is not None:
            return known
        terms, alone = self._terms_of(client)
        if not alone and not self._has_room(now_ns):
            return self._strangers
        account = self._accounts[client] = Account(client, terms, self._counted(terms))
        return account

    def figures(self) -> tuple[int, list[Refusals]]:
        """How many clients are known, and how often which were refused."""
        return len(self._accounts), [Refusals(label, *counts) for label, counts in self._counts.items()]

    def _terms_of(self, client: str) -> tuple[Terms, bool]:
        """The terms of ``client``, and whether a name stands for it alone."""
        name = client if client in self._named else self._certified(client)
        if name is not None:
            return self._named[name], not name.startswith("*.")
        return UNBOUNDED if client == UNIX else self._default, False

    def _certified(self, client: str) -> str | None:
        """The name that fits one in a certificate."""
        if client == STRANGERS or address_of(client) is not None:
            return None
        return next((name for name in self._named if _is_named(name, client)), None)

    def _counted(self, terms: Terms) -> list[int]:
        return self._counts.setdefault(terms.label, [0, 0])

    def _has_room(self, now_ns: int) -> bool:
        if len(self._accounts) >= self._max_clients and now_ns >= self._sweep_at_ns:
            self._sweep_at_ns = now_ns + SWEEP_NS
            idle = [client for client, account in self._accounts.items() if account.is_idle(now_ns)]
            for client in idle:
                del self._accounts[client]
        return len(self._accounts) < self._max_clients


def _is_named(name: str, client: str) -> bool:
    """Whether the ``name`` of a configuration is that of a certificate; ``*.`` stands for one label of a host."""
    is_uri = "://" in client
    if name.startswith("*."):
        label, dot, domain = client.partition(".")
        same = _lower(domain) == _lower(name.removeprefix("*."))
        return not is_uri and bool(dot) and same and _LABEL.fullmatch(label) is not None
    if "://" in name and not is_uri:
        return False
    return name == client if is_uri or ":" in client else _lower(name) == _lower(client)


def _lower(text: str) -> str:
    """Of ASCII letters alone, as hosts' names are compared."""
    return "".join(character.lower() if character.isascii() else character for character in text)
