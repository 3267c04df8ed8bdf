"""Requests that the front end serves by itself, as ports: what the engine asks of it, and what it offers.

The engine decides and the front end executes: it is given templates of checked requests and leases of lanes, told their
prices, and tells in sums what came of it. What no lease covers comes to the engine like any request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from appliance.domain.inference import RequestPlan
from appliance.workers.port import Shape

Stage = tuple[list[int], int]
"""Durations of one stage: how many fell into each bucket of BOUNDS_NS (those behind the last one: none), and their sum
in nanoseconds."""


class Tally(NamedTuple):
    """What came of the requests of one ``kind`` on one ``lane`` since it was last told. ``batches`` are (rows, count,
    gather, run, scatter) with nanoseconds of all of them together; ``stages`` are queue, gather, run, scatter and
    total; ``budget_ns`` is the shortest time that one of them brought until its deadline (0: none had one); ``slow``
    are (request id, those five in nanoseconds, client) of some that took long."""

    model: int
    kind: int
    lane: int
    requests: int
    rows: int
    batches: list[tuple[int, int, int, int, int]]
    stages: list[Stage]
    refused: int
    cancelled: int
    expired: int
    budget_ns: int
    slow: list[tuple[bytes, list[int], str]]


class LeasingFrontEnd(Protocol):
    """A front end that serves by itself what it has templates and leases of. Ids are the engine's; calls return at
    once."""

    def attach(
        self,
        *,
        method: int,
        arena_bytes: int,
        slots: Sequence[tuple[int, Sequence[int]]],
        bounds_ns: Sequence[int],
        slow_ns: int,
    ) -> None:
        """How large the memory objects are that it shares with workers, and slots in them as (bytes, offsets), which
        are its own from now on."""

    def open_lane(self, lane: int, group: int, memory: int, doorbell: int, tensors: tuple[int, int]) -> None:
        """A worker's lane, without a lease; ``memory`` is the descriptor of its rings, ``doorbell`` the one that the
        worker writes to when the front end sleeps, ``tensors`` number and descriptor of the memory object that the
        worker has."""

    def close_lane(self, lane: int, last: bool) -> tuple[int, int, Sequence[str]]:
        """The worker's process has ended. What it had comes to the engine, a request that ran alone as tried twice if
        that is ``last``; gives the model of what it had had for longest (-1: it had nothing), how many requests it
        had, and the clients of those that may have run."""

    def hold(self, client: str, model: int, until_ns: int) -> None:
        """What this client asks of a model until then is the engine's."""

    def lease(self, lane: int, limit: int) -> bool:
        """Up to ``limit`` requests may be in flight on the lane without asking."""

    def end_lease(self, lane: int) -> bool:
        """Nothing more is given to the lane once this has returned."""

    def load(self, lane: int) -> tuple[int, int, int]:
        """Requests that the worker has, the work that they are at the named prices in ns, and since when it has
        something to do and has completed nothing (0: it has nothing)."""

    def drop_templates(self, model: int | None = None) -> None:
        """Drop the templates of a model, or all."""

    def price(
        self, kind: int, charge_per_row_ns: int, batch_ns: int, margin_ns: int, batch_rows: int
    ) -> None:
        """What requests of a kind cost from now on, for refusing those that would be late."""

    def forget_price(self, kind: int) -> None:
        """No template of this kind is made again."""

    def in_flight(self, model: int) -> int:
        """Requests of a model that a worker may still touch, or that are not answered yet."""

    def backlog(self, model: int) -> int:
        """Requests of a model that wait at the front end, for a lease or for the engine."""

    def sample(self, one_in: int) -> None:
        """Trace one request in so many."""

    def traces(self) -> list[tuple[int, int, int, bytes, bytes, tuple[int, ...]]]:
        """The traced requests that were answered since this was asked: model, lane, rows, request id, ``traceparent``
        of the client, and the stamps of a Trace."""

    def free_slots(self) -> list[int]:
        """How many of its slots are free, by size."""

    def news(self) -> tuple[list[tuple[object, ...]], list[int]]:
        """Fields of one Tally each, and lanes whose workers said what cannot be."""


class RequestTemplate(NamedTuple):
    """How requests of one plan lie in a slot. ``inputs`` are (bytes, offset) in the request's order, ``outputs`` the
    offsets in the answer's order. ``late_text`` is what a client is told that cannot be served in time."""

    plan: int
    kind: int
    model: int
    group: int
    rows: int
    inputs: tuple[tuple[int, int], ...]
    out_offset: int
    span: int
    outputs: tuple[int, ...]
    late_text: str
    default_timeout_ns: int


class DirectEngine(Protocol):
    """What the engine offers to a front end that can serve requests by itself."""

    def attach(self, front_end: LeasingFrontEnd, method: int) -> bool:
        """Make ``front_end`` serve requests for the method with this index; before it opens. False: workers have no
        means for it."""

    def template_of(self, plan: RequestPlan, shapes: Sequence[Shape]) -> RequestTemplate | None:
        """What the front end must know to serve requests of ``plan``, whose answers have these ``shapes`` in their
        order, by one more head; None when such requests are the engine's."""

    def release(self, plan: int) -> None:
        """One head less has the template of this ``plan``; may be told of one whose model is gone."""

    def told(self) -> None:
        """The front end has something to tell."""
