"""A scheduler with one group, one lane and one batch key, and short words to drive it. Times are in
milliseconds."""

from __future__ import annotations

from typing import Any

from appliance.core.scheduling import events as on
from appliance.core.scheduling.actions import Action, Dispatch, WakeAt
from appliance.core.scheduling.planning import Planning
from appliance.core.scheduling.scheduler import Scheduler
from appliance.domain.inference import NO_DEADLINE
from appliance.domain.model import Batching
from tests.core.scheduler_detail import lanes

MILLISECOND = 1_000_000
START_NS = 1_000 * MILLISECOND


class Rig:
    """Group 1 with lane 1, model 1 and batch key 1, whose batch of n rows takes ``fixed`` + n * ``per_row``
    ms."""

    def __init__(
        self,
        *,
        max_batch: int = 8,
        fixed: float = 8,
        per_row: float = 1,
        seeded: bool = True,
        lanes: int = 1,
        batching: Batching | None = None,
        **config: Any,
    ) -> None:
        config.setdefault("margin_ns", 0)
        config.setdefault("prefetch_ns", 0)
        self.scheduler = Scheduler(Planning(**config))
        self.step(on.GroupOpened(1), 0)
        for lane in range(1, lanes + 1):
            self.step(on.LaneOpened(lane, 1), 0)
        self.open_model(1, max_batch=max_batch, batching=batching)
        self.open_batch_key(1, 1, seeds=self.seeds(fixed, per_row, max_batch) if seeded else ())

    @staticmethod
    def seeds(fixed: float, per_row: float, max_batch: int) -> tuple[tuple[int, int], ...]:
        """Exact measurements of one row and of a full batch."""
        sizes = sorted({1, max_batch})
        return tuple((rows, int((fixed + rows * per_row) * MILLISECOND)) for rows in sizes)

    def step(self, event: on.Event, at: float) -> list[Action]:
        """One event at ``at`` ms; integrity is checked after each."""
        actions = self.scheduler.step(event, START_NS + int(at * MILLISECOND))
        self.scheduler.check_integrity()
        return actions

    def open_model(self, model: int, *, max_batch: int = 8, batching: Batching | None = None) -> None:
        """One more model in group 1."""
        self.step(on.ModelOpened(model, 1, max_batch, batching or Batching()), 0)

    def open_batch_key(
        self, batch_key: int, model: int, seeds: tuple[tuple[int, int], ...] = (), at: float = 0
    ) -> None:
        """One more batch key of ``model``."""
        self.step(on.BatchKeyOpened(batch_key, model, seeds), at)

    def arrive(
        self,
        request: int,
        at: float = 0,
        *,
        due: float | None = None,
        rows: int = 1,
        batch_key: int = 1,
        priority: int = 0,
        timeout: float = 0,
        nbytes: int = 100,
    ) -> list[Action]:
        """A request; ``due`` is its deadline in ms (None: it has none)."""
        deadline_ns = NO_DEADLINE if due is None else START_NS + int(due * MILLISECOND)
        timeout_us = int(timeout * 1000)
        return self.step(on.Arrived(request, batch_key, rows, nbytes, priority, deadline_ns, timeout_us), at)

    def settle(self, at: float = 0) -> list[Action]:
        """End of a turn, without the wish to be woken."""
        return [action for action in self.step(on.Settle(), at) if not isinstance(action, WakeAt)]

    def batches(self, at: float = 0) -> list[tuple[int, ...]]:
        """The requests of each batch that a Settle dispatches; nothing else may happen in it."""
        actions = self.settle(at)
        dispatched = self.batches_in(actions)
        assert len(dispatched) == len(actions), f"not only batches: {actions}"
        return dispatched

    @staticmethod
    def batches_in(actions: list[Action]) -> list[tuple[int, ...]]:
        """The requests of each batch among ``actions``."""
        return [action.requests for action in actions if isinstance(action, Dispatch)]

    def finish(self, batch: int, at: float, *, learn: bool = False) -> None:
        """The worker gives ``batch`` back; batches are numbered from 1."""
        assert self.step(on.BatchFinished(batch, learn), at) == []

    def woken_at(self, at: float = 0) -> float | None:
        """When a Settle at ``at`` wishes to be woken, in ms."""
        wishes = [action.at_ns for action in self.step(on.Settle(), at) if isinstance(action, WakeAt)]
        return (wishes[0] - START_NS) / MILLISECOND if wishes else None

    def occupy(self, request: int = 1000, at: float = 0) -> None:
        """Keep the lanes busy with one long batch each: they are batches 1, 2, ..."""
        for lane in range(len(lanes(self.scheduler))):
            assert self.arrive(request + lane, at) == []
            assert self.batches(at) == [(request + lane,)]
