"""Requests that wait for models that are not in memory: which models are wanted, in turn, and how much they hold."""

from __future__ import annotations

from appliance.core.memory.model import ARRIVING, Model
from appliance.core.memory.model_table import ModelTable


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
