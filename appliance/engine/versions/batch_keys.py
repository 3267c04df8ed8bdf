"""Batch keys per model version: requests with equal shapes may share a batch, and share learned times.

A model with free dimensions can see many of them; only ``limit`` per version are kept beside those in use, the one
unused for longest goes first. Owner: the engine.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from appliance.core.scheduling.events import BatchKeyClosed, BatchKeyOpened
from appliance.domain.inference import RequestPlan
from appliance.domain.model import ModelVersion
from appliance.engine.inbox import Inbox
from appliance.engine.versions.served import Served
from appliance.engine.versions.shape_history import ShapeHistory
from appliance.runtimes.runtime import is_for_requests

LOOKS: Final = 8
"""Batch keys that are looked at for one that opens: enough to get back to the limit once most are out of use."""

Shapes = tuple[tuple[int, ...] | None, ...]
Alike = tuple[int, Shapes]


class BatchKeys:
    """Gives batch key ids out and takes them back; ``history`` is told of shapes that were answered."""

    def __init__(self, inbox: Inbox, limit: int, history: ShapeHistory) -> None:
        self._inbox = inbox
        self._limit = limit
        self.history = history
        self._next = 0
        self._of: dict[int, OrderedDict[Alike, int]] = {}
        self._live: dict[int, int] = {}
        self._untold: dict[int, tuple[ModelVersion, Shapes]] = {}
        """What the history is to be told once a request of a batch key was answered: one that the model does not take
        says nothing of what it can."""

    def take(self, served: Served, plan: RequestPlan) -> int:
        """The batch key id for one more request of ``plan``; opened when it is new."""
        merging = served.merges
        key = (0 if merging else plan.rows, plan.merge_shape)
        batch_keys = self._of.get(served.id)
        if batch_keys is None:
            batch_keys = self._of[served.id] = OrderedDict()
        batch_key = batch_keys.get(key)
        if batch_key is None:
            batch_key = self._open(served, batch_keys, key, merging, plan.rows)
        elif len(batch_keys) > 1:
            batch_keys.move_to_end(key)
        self._live[batch_key] += 1
        return batch_key

    def answered(self, batch_key: int) -> None:
        """A request of ``batch_key`` had an answer."""
        if (untold := self._untold.pop(batch_key, None)) is not None:
            self.history.note(*untold)

    def give(self, batch_key: int) -> None:
        """One request of ``batch_key`` has ended; its version may be gone already."""
        if batch_key in self._live:
            self._live[batch_key] -= 1

    def forget(self, model: int) -> None:
        """The version is gone from the scheduler; its batch keys go, too, those that have requests when these end."""
        for batch_key in self._of.pop(model, {}).values():
            self._untold.pop(batch_key, None)
            if self._live.pop(batch_key, None) == 0:
                self._inbox.put(BatchKeyClosed(batch_key))

    def _open(
        self, served: Served, batch_keys: OrderedDict[Alike, int], key: Alike, merging: bool, rows: int
    ) -> int:
        self._close_unused(batch_keys)
        self._next += 1
        self._live[self._next] = 0
        if is_for_requests(served.model):
            self._untold[self._next] = served.model, key[1]
        batch_keys[key] = self._next
        seeds = served.seeds if merging else tuple((1, ns) for seeded, ns in served.seeds if seeded == rows)
        self._inbox.put(BatchKeyOpened(self._next, served.id, seeds if _fixed(served) else ()))
        return self._next

    def _close_unused(self, batch_keys: OrderedDict[Alike, int]) -> None:
        """Make room for one. What is in use stays, and is not looked at again soon: front ends use many for long."""
        for _ in range(LOOKS):
            if len(batch_keys) < self._limit:
                return
            key, batch_key = batch_keys.popitem(last=False)
            if self._live[batch_key]:
                batch_keys[key] = batch_key
            else:
                del self._live[batch_key]
                self._untold.pop(batch_key, None)
                self._inbox.put(BatchKeyClosed(batch_key))


def _fixed(served: Served) -> bool:
    """Whether every request has the batch key that the seeds were measured with."""
    return all(dimension >= 0 for spec in served.model.inputs for dimension in spec.shape)
