"""Versions that came back with a session that is there at once and runs slower, and are given the fast one beside it.

Pure, but for what it remembers. Owner: the model cache.
"""

from __future__ import annotations

from appliance.domain.model import ModelVersion
from appliance.engine.versions.served import Served


def comes_quickly(model: ModelVersion, early_bytes: int) -> bool:
    """Whether a version is sooner back with a session that is not optimised nor packed: with at least so many bytes of
    weights in a file of their own."""
    return model.weights is not None and model.weights.size >= early_bytes and model.on_cpu


class EarlySessions:
    """Per version the workers whose weights are still arriving, and those that are making the fast session."""

    def __init__(self) -> None:
        self._arriving: dict[int, set[int]] = {}
        self._renewing: dict[int, set[int]] = {}
        self._asked_ns: dict[int, int] = {}
        self._took_ns: dict[int, int] = {}

    def asked(self, served: Served, now_ns: int) -> None:
        """It is to come back quickly."""
        self._asked_ns[served.id] = now_ns

    def opened(self, served: Served, worker: int) -> None:
        """A worker runs its quick session."""
        self._arriving.setdefault(served.id, set()).add(worker)

    def arrived(self, served: Served, worker: int, now_ns: int) -> bool:
        """Its weights are there; True: that worker is to make the fast session now."""
        if not _leave(self._arriving, served.id, worker):
            return False
        asked_ns = self._asked_ns.get(served.id)
        if asked_ns is not None:
            self._took_ns[served.id] = now_ns - asked_ns
        if served.id not in self._arriving:  # a process that is started again later was not asked for then
            self._asked_ns.pop(served.id, None)
        self._renewing.setdefault(served.id, set()).add(worker)
        return True

    def rejected(self, model: int, worker: int) -> bool:
        """Its weights are not what they should be; True when they were awaited."""
        return _leave(self._arriving, model, worker)

    def renewed(self, model: int, worker: int) -> bool:
        """The fast session was made or refused; True when it was this that was awaited."""
        return _leave(self._renewing, model, worker)

    def busy(self, model: int) -> bool:
        """Whether something of it is on its way."""
        return model in self._arriving or model in self._renewing

    def took_ns(self, served: Served, before_ns: int) -> int:
        """How long coming back quickly takes until everything is there, as it was last; ``before_ns``: while that
        is not known."""
        return self._took_ns.get(served.id, before_ns)

    def lost(self, worker: int) -> None:
        """A process is gone."""
        for table in (self._arriving, self._renewing):
            for model in [model for model, workers in table.items() if worker in workers]:
                _leave(table, model, worker)

    def forget(self, model: int) -> None:
        """A version is looked after no more."""
        for table in (self._arriving, self._renewing, self._asked_ns, self._took_ns):
            table.pop(model, None)


def _leave(table: dict[int, set[int]], model: int, worker: int) -> bool:
    """Take a worker out; whether it was there."""
    workers = table.get(model, set())
    if worker not in workers:
        return False
    workers.discard(worker)
    if not workers:
        del table[model]
    return True
