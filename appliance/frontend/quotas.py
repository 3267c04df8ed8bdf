"""Quotas of clients: what the configuration says, in the numbers of the native front end, which keeps the accounts and
asks them by itself for most requests.

A client has a bucket of ``burst`` tokens that gets one each ``interval_ns``; a request takes one. Kept is only when it
will be full again (the generic cell rate algorithm, ITU-T I.371 annex A): a request is let in while that is at most
``tolerance_ns`` = (burst - 1) * interval_ns ahead, and moves it on by ``interval_ns``; else the next token comes when
it is (``native/src/listen/quota.rs``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from appliance.config.quotas import ClientQuota, QuotasConfig
from appliance.domain.address import address_of
from appliance.domain.errors import QuotaExceeded
from appliance.telemetry.snapshot import QuotaFigures, Refusals

LET_IN: Final = 0
IN_FLIGHT: Final = -1
LET_IN_BEFORE: Final = -2
"""Answers of ``Account.take``; above zero: nanoseconds until the next token. What the carrier of the request has let
in is not to be given back."""
STRANGERS: Final = "*"
"""Clients that found no room of their own. Figures of all that are not named have this label."""
CLIENTS: Final = 4096
"""Clients that are told apart at a time, beside those that are named; more of them share one quota. Each costs some
hundred bytes."""
_NS: Final = 1_000_000_000


class Terms(NamedTuple):
    """What a client may ask, in the rule's numbers (0: no bound), the words for exceeding it, and the ``label`` under
    which that is counted."""

    label: str
    interval_ns: int
    tolerance_ns: int
    in_flight: int
    rate_text: str
    in_flight_text: str


UNBOUNDED: Final = Terms(STRANGERS, 0, 0, 0, "", "")


class Account(Protocol):
    """One client."""

    @property
    def client(self) -> str:
        """Its name."""

    def arrived_ns(self) -> int:
        """When the request came that is being passed on; 0: that is not known."""

    def take(self, now_ns: int) -> tuple[int, bool]:
        """A request came at ``now_ns``: LET_IN, to be given back when it has ended, or why not; and whether that is to
        be told, which is seldom."""

    def give(self) -> None:
        """A request that was let in has ended."""

    def reason(self, wait_ns: int) -> str:
        """Why ``take`` refused."""


class Clients(Protocol):
    """Keeps accounts of the clients that are told apart."""

    def set(self, default: Terms, named: Sequence[tuple[str, Terms]], max_clients: int, now_ns: int) -> None:
        """Other terms hold."""

    def account(self, client: str, now_ns: int) -> Account:
        """That of a client."""

    def figures(self) -> tuple[int, Sequence[tuple[str, int, int]]]:
        """Clients known, and refusals by label."""


class Quotas:
    """What clients may ask, over gRPC and HTTP together. ``clock`` gives nanoseconds that never go back; ``report``
    writes a line of the log. Owner: the event loop's thread."""

    def __init__(
        self,
        clients: Clients,
        config: QuotasConfig,
        clock: Callable[[], int],
        report: Callable[..., None],
    ) -> None:
        self.clients = clients
        self._clock = clock
        self._report = report
        self.config = config
        self.on = False
        """Whether any client is bounded: else there is nothing to ask."""
        self.set(config)

    def set(self, config: QuotasConfig) -> None:
        """These hold from now on, also for clients that are here."""
        self.config = config
        names = sorted(config.clients, key=lambda name: name.startswith("*."))
        named = [(address_of(name) or name, terms_of(name, config.clients[name])) for name in names]
        self.on = any(
            terms.interval_ns or terms.in_flight for _, terms in [("", default_terms(config)), *named]
        )
        self.clients.set(default_terms(config), named, CLIENTS, self._clock())

    def enter(self, account: Account) -> bool:
        """A request of this client's came; whether it is to be given back when it has ended. Raises QuotaExceeded."""
        wait_ns, tell = account.take(self._clock())
        if wait_ns in (LET_IN, LET_IN_BEFORE):
            return wait_ns == LET_IN
        reason = account.reason(wait_ns)
        if tell:
            self.tell(account.client, reason)
        raise QuotaExceeded(reason, max(wait_ns, 0))

    def tell(self, client: str, reason: str) -> None:
        """Have the log say that ``client`` is being refused."""
        self._report("a client is over its quota", client=client, reason=reason)

    def figures(self) -> QuotaFigures:
        """A value to show."""
        clients, refusals = self.clients.figures()
        return QuotaFigures(
            clients=clients if self.on else 0, refusals=tuple(sorted(Refusals(*each) for each in refusals))
        )


def default_terms(config: QuotasConfig) -> Terms:
    """Those of every client that is not named."""
    return terms_of(STRANGERS, config.default)


def terms_of(label: str, quota: ClientQuota) -> Terms:
    """A quota in the rule's numbers and in words; it is counted under ``label``."""
    rate, burst = quota.requests_per_s, quota.burst or max(1, math.ceil(quota.requests_per_s))
    interval_ns = max(1, round(_NS / rate)) if rate else 0
    if not interval_ns and not quota.in_flight:
        return UNBOUNDED._replace(label=label)
    whose = "the quota of each client" if label == STRANGERS else f"the quota of '{label}'"
    return Terms(
        label=label,
        interval_ns=interval_ns,
        tolerance_ns=(burst - 1) * interval_ns,
        in_flight=quota.in_flight,
        rate_text=f"Exceeds {whose}: {rate:g} requests per second, at most {burst} at once",
        in_flight_text=f"Exceeds {whose}: {quota.in_flight} requests in flight",
    )
