"""What is known of one device: its budget, its models, what waits, comes and goes. Decisions are made elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.core.memory.budget import Budget, ResidencyPolicy
from appliance.core.memory.footprint import Residency
from appliance.core.memory.model import ARRIVING, Model, ModelTable, Move
from appliance.core.memory.popularity import Popularity
from appliance.core.memory.reservations import Reservations
from appliance.core.memory.timing import Timing


class Waiting:
    """Requests that wait, and the ``queue``: models that they wait for and that are not arriving, in the order of their
    first request."""

    __slots__ = ("queue", "requests", "size_bytes")

    def __init__(self) -> None:
        self.queue: dict[int, None] = {}
        self.requests = 0
        self.size_bytes = 0

    def enter(self, model: Model, request: int, size_bytes: int) -> None:
        """``request`` waits for ``model``."""
        model.waiting[request] = size_bytes
        self.requests += 1
        self.size_bytes += size_bytes
        if model.move not in ARRIVING:
            self.queue.setdefault(model.model)

    def leave(self, model: Model, request: int) -> None:
        """``request`` waits no more, if it did."""
        size_bytes = model.waiting.pop(request, None)
        if size_bytes is None:
            return
        self.requests -= 1
        self.size_bytes -= size_bytes
        if not model.waiting:
            self.queue.pop(model.model, None)

    def clear(self, model: Model) -> tuple[int, ...]:
        """Clear and return the requests that wait for ``model``."""
        requests = tuple(model.waiting)
        self.requests -= len(requests)
        self.size_bytes -= sum(model.waiting.values())
        model.waiting.clear()
        self.queue.pop(model.model, None)
        return requests

    def again(self, model: Model) -> None:
        """Queue ``model`` if requests still wait for it; else it is not queued."""
        if model.waiting:
            self.queue.setdefault(model.model)
        else:
            self.queue.pop(model.model, None)

    def check_integrity(self, table: ModelTable) -> None:
        """Raise AssertionError where sums are not those of the models."""
        assert self.requests == sum(len(each.waiting) for each in table), "waiting requests do not add up"
        held = sum(sum(each.waiting.values()) for each in table)
        assert self.size_bytes == held, "bytes of waiting requests do not add up"
        wanted = {each.model for each in table if each.waiting and each.move not in ARRIVING}
        assert set(self.queue) == wanted, "the queue holds others than requests wait for"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStatistics:
    """Sums of one device as of now. ``left_bytes`` is what reservations and leaving versions leave of the budget for
    models that serve, which take ``used_bytes``; ``other_bytes`` is what those others take, above the budget or not."""

    budget_bytes: int
    left_bytes: int
    used_bytes: int
    leaving_bytes: int
    other_bytes: int
    arriving: int
    waiting_requests: int
    waiting_bytes: int


class Books:
    """Owned by one DeviceMemory; ``left_bytes`` is what models that serve may take."""

    __slots__ = ("left_bytes", "table", "policy", "popularity", "reservations", "timing", "waiting")

    def __init__(self, policy: ResidencyPolicy, budget: Budget) -> None:
        self.policy = policy
        self.reservations = Reservations(budget)
        self.left_bytes = budget.bytes
        self.table = ModelTable()
        self.waiting = Waiting()
        self.popularity = Popularity(budget.bytes)
        self.timing = Timing(policy)

    @property
    def budget(self) -> Budget:
        """What models may take when nothing is reserved."""
        return self.reservations.budget

    def review(self) -> None:
        """See what reservations leave of the budget."""
        left_bytes = self.reservations.left_bytes
        if left_bytes != self.left_bytes:
            self.left_bytes = left_bytes
            self.popularity.set_budget(left_bytes)

    def describe(self, model: Model) -> None:
        """Tell the shadows what they play with: the step that is taken first."""
        evictable_bytes = model.footprint.evictable_bytes
        cost_ns = self.timing.mean_ns(model, by_page_in=bool(evictable_bytes))
        self.popularity.describe(model.model, cost_ns, evictable_bytes or model.footprint.bytes)

    def evictable(self, model: Model, now_ns: int) -> bool:
        """Whether nothing but its hold, and what is in flight, may speak against putting it out."""
        return model.may_leave and (bool(self.waiting.queue) or model.wished_until_ns <= now_ns)

    def start(self, model: Model, now_ns: int) -> bool:
        """Begin to bring ``model``; True when that is by a page-in."""
        self.waiting.queue.pop(model.model, None)
        model.moving_since_ns = now_ns
        by_page_in = model.residency is Residency.WEIGHTS_EVICTED
        self.table.become(model, model.residency, Move.PAGING_IN if by_page_in else Move.LOADING)
        return by_page_in

    @property
    def promised_bytes(self) -> int:
        """What all versions would take that are at home here, were they in memory at once."""
        return sum(model.footprint.bytes for model in self.table) + self.reservations.other_bytes

    def free_beside(self, number: int) -> int:
        """What of the budget no version but this one has, in memory or promised; below zero where that is more than
        there is."""
        own = self.table.models.get(number)
        used_bytes = self.table.used_bytes - (own.bytes_now if own is not None else 0)
        return self.budget.bytes - used_bytes - self.reservations.bytes_beside(number)

    def numbers(self) -> list[int]:
        """All versions that are known here."""
        return [*self.table.models, *self.reservations.outside()]

    def statistics(self) -> MemoryStatistics:
        """Sums as of now."""
        return MemoryStatistics(
            budget_bytes=self.budget.bytes,
            left_bytes=self.left_bytes,
            used_bytes=self.table.used_bytes,
            leaving_bytes=self.table.leaving_bytes,
            other_bytes=self.reservations.other_bytes,
            arriving=len(self.table.arriving),
            waiting_requests=self.waiting.requests,
            waiting_bytes=self.waiting.size_bytes,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError where the books contradict themselves."""
        self.table.check_integrity()
        self.waiting.check_integrity(self.table)
        self.reservations.check_integrity()
        assert self.left_bytes == self.reservations.left_bytes, "what is left was not seen anew"
        assert not self.table.models.keys() & self.reservations.outside(), "a model is counted twice"
