"""Models, clients, versions on their way and a slow disk around the accountant for memory, by seed, in virtual time;
everything it does is held to its rules."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

from appliance.core.memory import actions, events
from appliance.core.memory.accountant import Accountant
from appliance.core.memory.actions import Action
from appliance.core.memory.budget import Budget, ResidencyPolicy
from appliance.core.memory.events import Event
from appliance.core.memory.footprint import Footprint, Residency
from appliance.core.memory.model import ARRIVING, LEAVING, Model, Move
from appliance.domain.device import CPU

MILLISECOND = 1_000_000
SECOND = 1_000_000_000
MIB = 1 << 20
DEVICE = CPU
FORCING = (
    events.BudgetSet,
    events.Measured,
    events.Settle,
    events.Changed,
    events.ReservationWanted,
    events.FreeMeasured,
)
"""Events after which models may leave although they are held: there is less memory than before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What may happen: chances per event."""

    models: int = 12
    budget_bytes: int = 200 * MIB
    noise: float = 0.0
    busy: float = 0.0
    decline: float = 0.0
    fail: float = 0.0
    withdraw: float = 0.0
    operator: float = 0.0
    budget_ms: tuple[int, int] = (20, 3_000)
    pinned: int = 0
    evictable: tuple[float, ...] = (0.0, 0.8, 0.95)
    """What evicting weights gives back, as shares of a model's memory; drawn for each."""


class ResidencyWorld:
    """Plays ``events`` requests and then lets everything end."""

    def __init__(self, seed: int, weather: Weather) -> None:
        self.random = random.Random(seed)
        self.weather = weather
        self.policy = ResidencyPolicy(loads_at_once=self.random.choice((1, 2, 3)), waiting_requests_max=60)
        self.accountant = Accountant(self.policy, [Budget(DEVICE, weather.budget_bytes)])
        self.now_ns = SECOND
        self.calendar: list[tuple[int, int, Callable[[], None]]] = []
        self.order = 0
        self.in_use: set[int] = set()
        self.costs: dict[int, tuple[int, int]] = {}
        self.waiting: dict[int, tuple[int, int]] = {}
        """Model and deadline of each request that was told to wait."""
        self.ended: dict[str, int] = {}
        self.late = 0
        self.moves: dict[int, Action] = {}
        self.wake_ns = 0
        self.models = 0
        for _ in range(weather.models):
            self.add()
        for model in range(weather.pinned):
            self.tell(events.Retained(model, True, 0))

    def run(self, requests: int) -> None:
        for request in range(requests):
            self.until(self.now_ns + int(self.random.expovariate(30.0) * SECOND))
            self.happen()
            self.ask(request)
        self.in_use = {
            each.model for each in self.accountant.models() if each.residency is Residency.RESIDENT
        }
        self.limit(self.weather.budget_bytes // 2)
        self.in_use.clear()
        self.until(self.now_ns + 600 * SECOND)
        assert not self.waiting, f"still waiting: {self.waiting}"
        assert not self.moves
        sums = self.accountant.statistics(DEVICE)
        stays = all(each.stays or each.residency is Residency.COLD for each in self.accountant.models())
        assert stays or sums.used_bytes <= sums.left_bytes, "nobody looks whether somebody may leave"

    def until(self, end_ns: int) -> None:
        """Let time pass."""
        while self.calendar and self.calendar[0][0] <= end_ns:
            self.now_ns, _, what = heapq.heappop(self.calendar)
            what()
        self.now_ns = end_ns

    def later(self, delay_ns: int, what: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.calendar, (self.now_ns + delay_ns, self.order, what))

    # What happens

    def add(self) -> None:
        model = self.models
        self.models += 1
        size_bytes = int(self.weather.budget_bytes * self.random.uniform(0.02, 0.45))
        evictable = int(size_bytes * self.random.choice(self.weather.evictable))
        load_ns = int(self.random.uniform(10, 400)) * MILLISECOND
        self.costs[model] = load_ns, load_ns // self.random.choice((2, 4))
        self.tell(
            events.Added(model, DEVICE, Residency.COLD, Footprint(size_bytes, evictable), *self.costs[model])
        )

    def happen(self) -> None:
        chance = self.random.random
        for model in list(self.costs):
            if chance() < self.weather.busy:
                (self.in_use.discard if model in self.in_use else self.in_use.add)(model)
        self.in_use = {model for model in self.in_use if self.served(model).residency is Residency.RESIDENT}
        if self.waiting and chance() < self.weather.withdraw:
            request = self.random.choice(list(self.waiting))
            model = self.waiting[request][0]
            self.end(request, "withdrawn")
            self.tell(events.Withdrawn(model, request))
        if chance() < self.weather.operator:
            self.operate()

    def leave(self, model: int) -> None:
        """It is no more looked after, and gone at once."""
        self.forget(model)
        self.tell(events.Gone(model))

    def forget(self, model: int) -> None:
        for request in [each for each, (wanted, _) in self.waiting.items() if wanted == model]:
            self.end(request, "removed")
        self.moves.pop(model, None)
        self.in_use.discard(model)
        del self.costs[model]

    def limit(self, size_bytes: int) -> None:
        self.tell(events.BudgetSet(Budget(DEVICE, size_bytes)))

    def operate(self) -> None:
        model = self.random.choice(list(self.costs))
        match self.random.randrange(5):
            case 0:
                self.add()
            case 1 if len(self.costs) > 3:
                self.leave(model)
            case 2:
                self.tell(events.Retained(model, self.random.random() < 0.2, self.random.choice((0, SECOND))))
            case 3:
                share = self.random.choice((0.6, 1.0, 1.4))
                self.limit(int(self.weather.budget_bytes * share))
            case _:
                size_bytes = int(self.weather.budget_bytes * self.random.uniform(0.02, 0.45))
                self.tell(events.Measured(model, Footprint(size_bytes, size_bytes // 2)))

    def ask(self, request: int) -> None:
        model = min(int(self.random.paretovariate(0.7)) - 1, 10**6) % self.models
        if model not in self.costs:
            return
        self.asked = request, self.now_ns + self.random.randint(*self.weather.budget_ms) * MILLISECOND
        before = sum(self.ended.values()) + len(self.waiting)
        self.tell(events.Asked(model, request, self.asked[1], self.random.randint(1, MIB)))
        assert sum(self.ended.values()) + len(self.waiting) == before + 1, f"request {request} has no answer"

    def give_up(self, request: int) -> None:
        """A client goes away when its deadline has passed for long."""
        if request in self.waiting:
            model = self.waiting[request][0]
            self.late += 1
            self.end(request, "gave up")
            self.tell(events.Withdrawn(model, request))

    def end(self, request: int, how: str) -> None:
        _, deadline_ns = self.waiting.pop(request)
        self.ended[how] = self.ended.get(how, 0) + 1
        if how == "released" and self.now_ns > deadline_ns:
            self.late += 1

    # What is done

    def tell(self, event: Event) -> None:
        decided: list[Action] = []
        for action in self.accountant.step(event, self.now_ns):
            if isinstance(action, actions.CheckUse):
                idle = frozenset(action.models) - self.in_use
                decided += self.accountant.step(events.UseChecked(action.device, idle), self.now_ns)
            else:
                decided.append(action)
        for action in decided:
            self.check(action, event)
        for action in decided:
            self.perform(action)
        self.check_sums()

    def check(self, action: Action, event: Event) -> None:
        """The rules that one action must keep."""
        match action:
            case actions.EvictWeights() | actions.Unload():
                over = isinstance(event, FORCING) or self.above_before
                known = self.served(action.model)
                assert not known.retention.pinned, action
                assert not known.waiting or known.residency is Residency.WEIGHTS_EVICTED, action
                assert action.model not in self.in_use, action
                assert over or known.available_ns <= self.now_ns, f"{action} while it is held"
                assert action.model not in self.moves
            case actions.Load() | actions.PageIn():
                assert action.model not in self.moves
                known = self.served(action.model)
                assert (known.residency is Residency.WEIGHTS_EVICTED) == isinstance(action, actions.PageIn)
                sums = self.accountant.statistics(DEVICE)
                assert sums.used_bytes <= sums.left_bytes, f"{action} above the budget"
                assert sums.arriving <= self.policy.loads_at_once

    def perform(self, action: Action) -> None:
        match action:
            case actions.Load() | actions.PageIn() | actions.EvictWeights() | actions.Unload():
                self.moves[action.model] = action
                self.later(self.takes_ns(action), lambda: self.finish(action))
            case actions.Wait():
                assert self.asked[0] == action.request
                assert self.now_ns + action.ready_ns <= self.asked[1], "may wait, but not so long"
                self.waiting[action.request] = action.model, self.asked[1]
                request = action.request
                self.later(self.asked[1] - self.now_ns + SECOND, lambda: self.give_up(request))
            case actions.Refuse(_, request, reason, retry_ns):
                assert (retry_ns >= 0) == (reason is not actions.Miss.NEVER)
                if request in self.waiting:
                    self.end(request, "given up")
                else:
                    self.ended["refused"] = self.ended.get("refused", 0) + 1
            case actions.Serve():
                self.ended["served"] = self.ended.get("served", 0) + 1
            case actions.Release():
                for request in action.requests:
                    self.end(request, "released")
            case actions.WakeAt():
                if self.wake_ns <= self.now_ns or action.at_ns < self.wake_ns:
                    self.wake_ns = at_ns = action.at_ns
                    self.later(at_ns - self.now_ns, lambda: self.wake(at_ns))

    def wake(self, at_ns: int) -> None:
        if at_ns == self.wake_ns:  # else an earlier one was wished for
            self.wake_ns = 0
            self.tell(events.Settle())

    def takes_ns(self, action: Action) -> int:
        load_ns, page_in_ns = self.costs[getattr(action, "model")]  # noqa: B009
        noise = 1 + self.weather.noise * self.random.uniform(-1, 1)
        match action:
            case actions.Load():
                return int(load_ns * noise)
            case actions.PageIn():
                return int(page_in_ns * noise)
        return MILLISECOND

    def finish(self, action: actions.Load | actions.PageIn | actions.EvictWeights | actions.Unload) -> None:
        model = action.model
        if self.moves.get(model) is not action:
            return
        del self.moves[model]
        arriving = isinstance(action, actions.Load | actions.PageIn)
        if self.random.random() < self.weather.fail:
            self.tell(events.Failed(model))
        elif not arriving and self.random.random() < self.weather.decline:
            self.tell(events.Declined(model))
        else:
            known = self.served(model)
            ns = self.now_ns - known.moving_since_ns
            self.tell(events.Done(model, ns, known.footprint.bytes if arriving else 0))

    # What must hold between steps

    @property
    def above_before(self) -> bool:
        sums = self.accountant.statistics(DEVICE)
        return sums.used_bytes > sums.left_bytes

    def served(self, model: int) -> Model:
        found = self.accountant.model(model)
        assert found is not None
        return found

    def check_sums(self) -> None:
        self.accountant.check_integrity()
        models = list(self.accountant.models())
        sums = self.accountant.statistics(DEVICE)
        assert sums.used_bytes == sum(each.bytes_now for each in models)
        assert sums.leaving_bytes == sum(each.bytes_leaving for each in models)
        assert sums.arriving == sum(each.move in ARRIVING for each in models)
        assert sums.waiting_requests == len(self.waiting) <= self.policy.waiting_requests_max
        assert {each.model for each in models if each.move is not Move.NONE} == set(self.moves)
        for each in models:
            assert not (each.resident and each.waiting), "who could be served waits"
            if each.move in LEAVING:
                assert each.residency is not Residency.COLD
