"""A front end under leases and the worker behind it, in virtual time: rings, limits, prices, late news.

``ServerLane`` does in the simulation what the native front end does for one lane, with the arithmetic that
``appliance.core.scheduling.leases`` describes; ``Worker`` takes what the scheduler sends before what the front end
sends, or by turns, and batches what lies side by side in the ring. Neither knows of time but what it is told."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from appliance.core.scheduling.leases import Price


@dataclass(slots=True, kw_only=True)
class Flight:
    """A request that the front end has under way by itself."""

    request: int
    batch_key: int
    rows: int
    deadline_ns: int
    submitted_ns: int
    since_ns: int
    """Since when what ran then had been under way, as far as the front end knew."""
    price: Price
    closes_ns: int
    """What a batch may cost that it closes before it is full, because it does not run in one with the request before
    it."""

    @property
    def start_by_ns(self) -> int:
        """Later it is of no use to begin."""
        return self.deadline_ns - self.price.charge_per_row_ns * (self.rows - 1) - self.price.batch_ns

    @property
    def charge_ns(self) -> int:
        """What it adds to the work under way."""
        return self.price.charge_per_row_ns * (2 * self.rows - 1) + self.closes_ns


@dataclass(slots=True)
class ServerLane:
    """What the front end knows of one lane."""

    lane: int
    group: int
    limit: int
    leased: bool = False
    flights: list[Flight] = field(default_factory=list)
    """In the order of submission."""
    longest_ns: int = 0
    """The longest batch of what was submitted since nothing was under way."""
    since_ns: int = 0
    """When the worker last completed something, or was given something after it had nothing."""
    ran: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """By batch key and rows of a batch: how many ran since the last news, and how long together."""

    @property
    def work_ns(self) -> int:
        """How long the worker needs for all that is under way: the batch that runs, and all charges."""
        return self.longest_ns + sum(flight.charge_ns for flight in self.flights) if self.flights else 0

    def in_time(self, batch_key: int, rows: int, price: Price, deadline_ns: int, now_ns: int) -> bool:
        """Whether one more request can be promised its deadline."""
        ahead_ns = self.work_ns - min(now_ns - self.since_ns, self.longest_ns) if self.flights else 0
        ahead_ns += self._closes_ns(batch_key, price)
        end_ns = now_ns + ahead_ns + price.charge_per_row_ns * (rows - 1) + price.batch_ns
        return end_ns + price.margin_ns <= deadline_ns

    def _closes_ns(self, batch_key: int, price: Price) -> int:
        if not self.flights:
            return 0
        last = self.flights[-1]
        joins = last.batch_key == batch_key and last.price.batch_rows == price.batch_rows
        return 0 if joins else last.price.batch_ns

    def submit(
        self, request: int, batch_key: int, rows: int, deadline_ns: int, price: Price, now_ns: int
    ) -> Flight:
        """Send it to the worker; the lane must be leased and have room."""
        assert self.leased, f"request {request} was sent to lane {self.lane}, which is not leased"
        assert len(self.flights) < self.limit, "limit passed"
        self.since_ns = self.since_ns if self.flights else now_ns
        flight = Flight(
            request=request,
            batch_key=batch_key,
            rows=rows,
            deadline_ns=deadline_ns,
            submitted_ns=now_ns,
            since_ns=self.since_ns,
            price=price,
            closes_ns=self._closes_ns(batch_key, price),
        )
        self.longest_ns = max(self.longest_ns if self.flights else 0, price.batch_ns)
        self.flights.append(flight)
        return flight

    def completed(self, batch: list[Flight], ns: int, now_ns: int) -> None:
        """``batch`` ran for ``ns``."""
        self.since_ns = now_ns
        for flight in batch:
            self.flights.remove(flight)
        key = (batch[0].batch_key, sum(flight.rows for flight in batch))
        count, sum_ns = self.ran.get(key, (0, 0))
        self.ran[key] = (count + 1, sum_ns + ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A batch of the scheduler's."""

    batch: int
    batch_key: int
    rows: int


@dataclass(slots=True)
class Worker:
    """What a worker has before it. ``by_turns``: after a batch of the scheduler's it looks into the ring first."""

    by_turns: bool
    mail: deque[Sent] = field(default_factory=deque)
    ring: deque[Flight] = field(default_factory=deque)
    busy: bool = False
    _mail_last: bool = False

    def take(self, rows_max: dict[int, int], now_ns: int) -> tuple[Sent | list[Flight] | None, list[Flight]]:
        """What it runs next, if there is anything; and what of the ring had expired before."""
        expired: list[Flight] = []
        if self.mail and not (self.by_turns and self._mail_last and self.ring):
            self._mail_last = True
            return self.mail.popleft(), expired
        self._mail_last = False
        batch: list[Flight] = []
        rows, most = 0, 1 << 30
        while self.ring:
            flight = self.ring[0]
            bound = min(most, rows_max[flight.batch_key], flight.price.batch_rows or most)
            if flight.start_by_ns <= now_ns:
                expired.append(self.ring.popleft())
            elif batch and (flight.batch_key != batch[0].batch_key or rows + flight.rows > bound):
                break
            else:
                batch.append(self.ring.popleft())
                rows, most = rows + flight.rows, bound
        if not batch and self.mail:
            self._mail_last = True
            return self.mail.popleft(), expired
        return batch or None, expired
