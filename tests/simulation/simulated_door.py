"""A door under grants and the worker behind it, in virtual time: rings, limits, prices, late news.

``DoorLane`` does in the simulation what the native door does for one lane, with the arithmetic that
``appliance.scheduling.grants`` describes; ``Worker`` takes what the scheduler sends before what the door sends, or
by turns, and batches what lies side by side in the ring. Neither knows of time but what it is told.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from appliance.scheduling.grants import Price


@dataclass(slots=True, kw_only=True)
class Flight:
    """A request that the door has under way by itself."""

    request: int
    shape: int
    rows: int
    deadline_ns: int
    submitted_ns: int
    price: Price
    behind_another: bool
    """The one in front of it is of another shape."""

    @property
    def charge_ns(self) -> int:
        """What it adds to the work under way."""
        more_ns = lone_ns(self.price) if self.behind_another else 0
        return self.price.charge_per_row_ns * (2 * self.rows - 1) + more_ns


def lone_ns(price: Price) -> int:
    """What a batch that is not full costs more than its requests are charged, at most."""
    return price.batch_ns - price.charge_per_row_ns


@dataclass(slots=True)
class DoorLane:
    """What the door knows of one lane."""

    lane: int
    group: int
    limit: int
    granted: bool = False
    flights: list[Flight] = field(default_factory=list)
    """In the order of submission."""
    ran: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """By shape and rows of a batch: how many ran since the last news, and how long together."""

    @property
    def work_ns(self) -> int:
        """How long the worker needs for all that is under way."""
        if not self.flights:
            return 0
        lone = lone_ns(self.flights[0].price) if len(self.flights) > 1 else 0
        return self._ahead_ns + lone

    @property
    def _ahead_ns(self) -> int:
        return self.flights[0].price.batch_ns + sum(flight.charge_ns for flight in self.flights[1:])

    def in_time(self, shape: int, rows: int, price: Price, deadline_ns: int, now_ns: int) -> bool:
        """Whether one more request can be promised its deadline."""
        ahead_ns = self.work_ns
        if self.flights and all(flight.shape == shape for flight in self.flights):
            ahead_ns = self._ahead_ns
        end_ns = now_ns + ahead_ns + price.charge_per_row_ns * (rows - 1) + price.batch_ns
        return end_ns + price.margin_ns <= deadline_ns

    def submit(
        self, request: int, shape: int, rows: int, deadline_ns: int, price: Price, now_ns: int
    ) -> Flight:
        """Send it to the worker; the lane must be granted and have room."""
        assert self.granted, f"request {request} was sent to lane {self.lane}, which is not granted"
        assert len(self.flights) < self.limit, "limit passed"
        flight = Flight(
            request=request,
            shape=shape,
            rows=rows,
            deadline_ns=deadline_ns,
            submitted_ns=now_ns,
            price=price,
            behind_another=bool(self.flights) and self.flights[-1].shape != shape,
        )
        self.flights.append(flight)
        return flight

    def completed(self, batch: list[Flight], ns: int) -> None:
        """``batch`` ran for ``ns``."""
        for flight in batch:
            self.flights.remove(flight)
        key = (batch[0].shape, sum(flight.rows for flight in batch))
        count, sum_ns = self.ran.get(key, (0, 0))
        self.ran[key] = (count + 1, sum_ns + ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A batch of the scheduler's."""

    batch: int
    shape: int
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
        rows = 0
        while self.ring:
            flight = self.ring[0]
            if flight.deadline_ns <= now_ns:
                expired.append(self.ring.popleft())
            elif batch and (flight.shape != batch[0].shape or rows + flight.rows > rows_max[flight.shape]):
                break
            else:
                batch.append(self.ring.popleft())
                rows += flight.rows
        if not batch and self.mail:
            self._mail_last = True
            return self.mail.popleft(), expired
        return batch or None, expired
