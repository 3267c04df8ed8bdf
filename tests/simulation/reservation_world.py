"""The world of residency with versions on their way: they ask for memory, load, take over from others or are given up,
and what they replaced leaves late.

* A leased version finds its memory free: what serves keeps within what reservations leave.
* The one that is to be replaced stays in memory as long as its successor is on its way.
* Nobody waits for ever: a reservation that is held is leased or taken back, and why is a value that is true.
* When all is over nothing is reserved.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from appliance.core.memory import actions, events
from appliance.core.memory.actions import Action
from appliance.core.memory.budget import NeverFits, WaitsBesidePins, WaitsForIdle, WaitsForMachine
from appliance.core.memory.events import Event
from appliance.core.memory.footprint import Footprint, Residency
from appliance.core.memory.reservations import PATIENCE_NS, SPARE_BYTES
from tests.simulation.residency_world import DEVICE, MILLISECOND, SECOND, ResidencyWorld, Weather

ASK_NS = 20 * MILLISECOND


@dataclass(slots=True, kw_only=True)
class Candidate:
    """A version on its way."""

    model: int
    footprint: Footprint
    replaces: int | None
    wanted_ns: int
    held_since_ns: int = 0


class ReservationWorld(ResidencyWorld):
    """``rollouts`` is the chance that with a request a new version comes."""

    def __init__(self, seed: int, weather: Weather, rollouts: float = 0.1) -> None:
        self.rollouts = 0.0
        self.coming: dict[int, Candidate] = {}
        self.loading: dict[int, Candidate] = {}
        self.replies: Counter[str] = Counter()
        super().__init__(seed, weather)
        self.rollouts = rollouts

    def run(self, requests: int) -> None:
        super().run(requests)
        assert not self.coming, "a version waits for ever"
        assert not self.accountant.outside(), "something is reserved for nobody"
        assert self.accountant.statistics(DEVICE).other_bytes == 0

    def happen(self) -> None:
        super().happen()
        if self.random.random() < self.rollouts:
            self.come()

    def come(self) -> None:
        """A new version, in the place of one that serves or beside all."""
        number = self.models
        self.models += 1
        taken = {each.replaces for each in (*self.coming.values(), *self.loading.values())}
        free = [model for model in self.costs if model not in taken]
        replaces = self.random.choice(free) if free and self.random.random() < 0.8 else None
        share = self.random.choice((0.1, 0.3, 0.6, 1.2))
        size_bytes = int(self.weather.budget_bytes * self.random.uniform(0.02, share))
        footprint = Footprint(size_bytes, size_bytes // 2)
        self.coming[number] = Candidate(
            model=number, footprint=footprint, replaces=replaces, wanted_ns=self.now_ns
        )
        self.want(number)

    def want(self, number: int) -> None:
        """Ask for memory, again and again, for a while."""
        candidate = self.coming.get(number)
        if candidate is None:
            return
        if self.now_ns - candidate.wanted_ns > 30 * SECOND:
            del self.coming[number]
            self.end_of(candidate, 0)
            return
        self.tell(events.ReservationWanted(number, DEVICE, candidate.footprint.bytes, candidate.replaces))

    def perform(self, action: Action) -> None:
        match action:
            case actions.MeasureFree():
                free_bytes = self.random.choice((0, SPARE_BYTES + self.weather.budget_bytes * 2))
                self.free_bytes = free_bytes
                self.tell(events.FreeMeasured(action.device, free_bytes))
            case actions.GrantReservation():
                self.leased(action.model)
            case actions.HoldReservation():
                self.held(action.model)
            case actions.RefuseReservation():
                self.refused(action)
            case _:
                super().perform(action)

    def leased(self, number: int) -> None:
        self.replies["leased"] += 1
        candidate = self.loading[number] = self.coming.pop(number)
        if candidate.footprint.bytes <= self.weather.budget_bytes * 0.6:
            sums = self.accountant.statistics(DEVICE)
            above = sums.other_bytes + sums.left_bytes > sums.budget_bytes
            assert above or sums.used_bytes <= sums.left_bytes, "its memory is not there"
        self.later(self.random.randrange(50, 800) * MILLISECOND, lambda: self.loaded(candidate))

    def held(self, number: int) -> None:
        self.replies["held"] += 1
        candidate = self.coming[number]
        candidate.held_since_ns = candidate.held_since_ns or self.now_ns
        assert self.now_ns - candidate.held_since_ns <= PATIENCE_NS, "held for ever"
        self.later(ASK_NS, lambda: self.want(number))

    def refused(self, action: actions.RefuseReservation) -> None:
        self.replies[type(action.reason).__name__] += 1
        candidate, sums = self.coming[action.model], self.accountant.statistics(DEVICE)
        candidate.held_since_ns = 0
        match action.reason:
            case NeverFits(need_bytes=wanted_bytes, limit=limit):
                assert candidate.replaces is None
                assert wanted_bytes == candidate.footprint.bytes > limit.bytes == sums.budget_bytes
            case WaitsBesidePins(need_bytes=wanted_bytes, limit=limit):
                assert wanted_bytes <= sums.budget_bytes < wanted_bytes + limit.kept_bytes
            case WaitsForMachine(
                need_bytes=wanted_bytes, beside_bytes=beside_bytes, left_bytes=free_bytes, limit=limit
            ):
                assert wanted_bytes + beside_bytes + limit.kept_bytes > sums.budget_bytes
                assert free_bytes == self.free_bytes < wanted_bytes + SPARE_BYTES
            case WaitsForIdle():
                assert action.again_ns > self.now_ns
        self.later(max(action.again_ns - self.now_ns, ASK_NS), lambda: self.want(action.model))

    def check(self, action: Action, event: Event) -> None:
        super().check(action, event)
        if isinstance(action, actions.EvictWeights | actions.Unload):
            replaced = {each.replaces for each in self.loading.values()}
            assert action.model not in replaced, "what is to be replaced is put out"

    # What becomes of it

    def loaded(self, candidate: Candidate) -> None:
        """It takes over, or is given up."""
        number = candidate.model
        if self.loading.pop(number, None) is None:
            return
        size_bytes = candidate.footprint.bytes
        if self.random.random() < 0.3:
            self.end_of(candidate, self.random.randint(0, size_bytes))
            return
        news: list[events.Told] = []
        before = candidate.replaces
        if before in self.costs:
            assert before is not None
            left = events.Left(before, self.served(before).bytes_now, number, size_bytes)
            self.forget(before)
            news.append(left)
            self.later(self.random.randrange(2_000) * MILLISECOND, lambda: self.tell(events.Gone(before)))
        self.costs[number] = 100 * MILLISECOND, 50 * MILLISECOND
        news.append(
            events.Added(number, DEVICE, Residency.RESIDENT, candidate.footprint, *self.costs[number])
        )
        self.tell(events.Changed(tuple(news)))

    def end_of(self, candidate: Candidate, size_bytes: int) -> None:
        """It is given up and leaves late."""
        number = candidate.model
        if number in self.accountant.outside():
            self.tell(events.Left(number, size_bytes, candidate.replaces))
            self.later(self.random.randrange(2_000) * MILLISECOND, lambda: self.tell(events.Gone(number)))
