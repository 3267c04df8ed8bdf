"""The open loop of ``offered_load`` through a front end that is leased the lane: what it may it does by itself, and all
else the scheduler decides."""

from __future__ import annotations

from functools import partial

from appliance.core.scheduling import events as on
from appliance.core.scheduling.actions import Action, Dispatch, GrantLease, RevokeLease
from tests.simulation.offered_load import MILLISECOND, SECOND, Offer, Play, Tally
from tests.simulation.simulated_front_end import Flight, Sent, ServerLane, Worker

NEWS_NS = 2 * MILLISECOND
LANE = 1


def play_leased(offer: Offer, seconds: float, seed: int, limit: int = 512) -> Tally:
    """As ``play``, with a front end that may have ``limit`` requests under way by itself."""
    return _GrantedPlay(offer, seed, limit).run(int(seconds * SECOND))


class _GrantedPlay(Play):
    leasable = True

    def __init__(self, offer: Offer, seed: int, limit: int) -> None:
        super().__init__(offer, seed, None)
        self.server = ServerLane(LANE, 1, limit)
        self.worker = Worker(by_turns=True)
        self.news_due = False

    def _step(self, event: on.Event) -> None:
        if isinstance(event, on.Arrived):
            if self._receive(event):
                return
            self._tell()
        super()._step(event)

    def _receive(self, event: on.Arrived) -> bool:
        """Whether the front end needs nobody for this request."""
        front_end, price = self.server, self.scheduler.price(event.batch_key)
        if not front_end.leased or len(front_end.flights) >= front_end.limit:
            return False
        if not front_end.in_time(event.batch_key, event.rows, price, event.deadline_ns, self.now_ns):
            self.tally.refused += bool(front_end.flights)
            return bool(front_end.flights)
        flight = front_end.submit(
            event.request, event.batch_key, event.rows, event.deadline_ns, price, self.now_ns
        )
        self.worker.ring.append(flight)
        self.tally.by_front_end += 1
        self._note()
        self._wake()
        return True

    def _perform(self, action: Action) -> None:
        match action:
            case Dispatch():
                self.batches[action.batch] = action.requests
                self.tally.batches += 1
                sent = Sent(batch=action.batch, batch_key=action.batch_key, rows=len(action.requests))
                self.worker.mail.append(sent)
                self._wake()
            case GrantLease():
                self.server.leased = True
            case RevokeLease():
                self.server.leased = False
                self._tell()
            case _:
                super()._perform(action)

    def _wake(self) -> None:
        if self.worker.busy:
            return
        work, expired = self.worker.take({1: self.offer.max_batch}, self.now_ns)
        for flight in expired:
            self.server.flights.remove(flight)
            self.tally.expired += 1
        if work is not None:
            self.worker.busy = True
            rows = work.rows if isinstance(work, Sent) else len(work)
            ns = self._service_ns(rows)
            self._at(self.now_ns + ns, partial(self._ran, work, ns))

    def _ran(self, work: Sent | list[Flight], ns: int) -> None:
        self.worker.busy = False
        if isinstance(work, Sent):
            self._step(on.BatchFinished(work.batch, True, ns))
        else:
            self.server.completed(work, ns, self.now_ns)
            self.tally.batches += 1
            for flight in work:
                self._answered(flight.request)
            self._note()
        self._wake()

    def _note(self) -> None:
        if not self.news_due:
            self.news_due = True
            self._at(self.now_ns + NEWS_NS, self._news)

    def _news(self) -> None:
        self.news_due = False
        self._tell()

    def _tell(self) -> None:
        for (batch_key, rows), (count, sum_ns) in self.server.ran.items():
            super()._step(on.LeasedRan(LANE, batch_key, rows, sum_ns // count, count))
        self.server.ran.clear()
        super()._step(on.LeasedWork(LANE, len(self.server.flights), self.server.work_ns))
