"""Scheduler shapes per model version: requests with equal shapes may share a batch and share learned times.

A model with free dimensions can see many shapes; only ``limit`` per version are kept, the one unused for longest goes
first. Owner: the engine.
"""

from __future__ import annotations

from collections import OrderedDict

from appliance.core.scheduling.events import ShapeClosed, ShapeOpened
from appliance.domain.inference import RequestPlan
from appliance.engine.inbox import Inbox
from appliance.engine.versions.layout import merges
from appliance.engine.versions.served import Served

ShapeKey = tuple[int, tuple[tuple[int, ...] | None, ...]]


class Shapes:
    """Gives shape ids out and takes them back."""

    def __init__(self, inbox: Inbox, limit: int) -> None:
        self._inbox = inbox
        self._limit = limit
        self._next = 0
        self._of: dict[int, OrderedDict[ShapeKey, int]] = {}
        self._live: dict[int, int] = {}

    def take(self, served: Served, plan: RequestPlan) -> int:
        """The shape id for one more request of ``plan``; opened when it is new."""
        merging = merges(served.model)
        key = (0 if merging else plan.rows, plan.merge_shape)
        shapes = self._of.get(served.id)
        if shapes is None:
            shapes = self._of[served.id] = OrderedDict()
        shape = shapes.get(key)
        if shape is None:
            shape = self._open(served, shapes, key, merging, plan.rows)
        elif len(shapes) > 1:
            shapes.move_to_end(key)
        self._live[shape] += 1
        return shape

    def give(self, shape: int) -> None:
        """One request of ``shape`` has ended; its version may be gone already."""
        if shape in self._live:
            self._live[shape] -= 1

    def forget(self, model: int) -> None:
        """The version is gone from the scheduler; its shapes go with it, those that have requests when these end."""
        for shape in self._of.pop(model, {}).values():
            if self._live.pop(shape, None) == 0:
                self._inbox.put(ShapeClosed(shape))

    def _open(
        self, served: Served, shapes: OrderedDict[ShapeKey, int], key: ShapeKey, merging: bool, rows: int
    ) -> int:
        if len(shapes) >= self._limit:
            self._close_oldest(shapes)
        self._next += 1
        self._live[self._next] = 0
        shapes[key] = self._next
        seeds = served.seeds if merging else tuple((1, ns) for seeded, ns in served.seeds if seeded == rows)
        self._inbox.put(ShapeOpened(self._next, served.id, seeds if _fixed(served) else ()))
        return self._next

    def _close_oldest(self, shapes: OrderedDict[ShapeKey, int]) -> None:
        for key, shape in shapes.items():
            if self._live[shape] == 0:
                del shapes[key]
                del self._live[shape]
                self._inbox.put(ShapeClosed(shape))
                return


def _fixed(served: Served) -> bool:
    """Whether every request has the shape that the seeds were measured with."""
    return all(dimension >= 0 for spec in served.model.inputs for dimension in spec.shape)
