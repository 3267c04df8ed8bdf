"""The batches that workers have: whose requests are in them, and what is noted on these when one goes and comes back.
Owner: the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from appliance.core.scheduling.actions import Dispatch
from appliance.core.scheduling.events import BatchFinished, CancelRequested
from appliance.engine.requests.request import Batch, Request
from appliance.engine.versions.served import Served
from appliance.workers.port import Run, RunFinished, RunResult


class Batches:
    """By batch id. ``given`` counts the requests that each worker got so far."""

    def __init__(self) -> None:
        self._batches: dict[int, tuple[Batch, tuple[Request, ...]]] = {}
        self.given: dict[int, int] = {}

    def go(self, action: Dispatch, requests: tuple[Request, ...], now_ns: int) -> Run:
        """Give ``requests`` to a worker; what that is told."""
        served = requests[0].served
        batch = Batch(action.lane, served, now_ns)
        for request in requests:
            if request.attempts:
                served.meter.retried()
            request.attempts += 1
            request.held = True
            request.batch = batch
            batch.rows += request.plan.rows
        self._batches[action.batch] = (batch, requests)
        self.given[action.lane] = self.given.get(action.lane, 0) + len(requests)
        return Run(action.batch, served.id, tuple([request.item() for request in requests]))

    def back(self, event: RunFinished, finished: list[tuple[Request, RunResult]]) -> BatchFinished:
        """Take a batch back: its requests are added to ``finished``; what the scheduler is told."""
        batch, requests = self._batches.pop(event.batch)
        batch.stages_ns = stages = (event.gather_ns, event.run_ns, event.scatter_ns)
        batch.served.meter.batch_finished(batch.rows, *stages)
        ok = True
        for request, result in zip(requests, event.results, strict=True):
            ok = ok and not result.status.failed
            finished.append((request, result))
        return BatchFinished(event.batch, ok, sum(stages))

    def lost(self, worker: int, batches: Iterable[int]) -> list[CancelRequested]:
        """Drop batches that ended with their worker, which touches their requests' memory no more; what the scheduler
        is told when it has queued these once more: some of them were cancelled meanwhile."""
        self.given.pop(worker, None)
        cancelled: list[CancelRequested] = []
        for number in batches:
            _, requests = self._batches.pop(number)
            for request in requests:
                request.held = False
                if request.cancelled:
                    cancelled.append(CancelRequested(request.handle))
        return cancelled

    def oldest(self) -> Iterator[tuple[int, int, Served]]:
        """Of each worker that has any, the batch that was given first, and the version that it is for."""
        told: set[int] = set()
        for number, (batch, _) in self._batches.items():
            if batch.worker not in told:
                told.add(batch.worker)
                yield batch.worker, number, batch.served

    def model_of(self, batches: Sequence[int]) -> int:
        """The model version that the first of these is for; -1 when there is none."""
        return self._batches[batches[0]][0].served.id if batches else -1

    def running_by_model(self) -> Counter[int]:
        """How many requests of each model version run."""
        running: Counter[int] = Counter()
        for batch, requests in self._batches.values():
            running[batch.served.id] += len(requests)
        return running
