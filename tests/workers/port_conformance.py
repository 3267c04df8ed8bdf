"""What every WorkerPort must do beside running batches, whatever is behind it. Subclass with a ``workers`` fixture."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from appliance.domain.exit_cause import ExitCause
from appliance.domain.load_wish import PLAIN_LOAD, LoadWish
from appliance.domain.model import ModelVersion
from appliance.workers import port
from appliance.workers.settings import WorkerSettings
from tests.workers.bench import fake

ROOMY = fake(evictable_bytes=1 << 20)


class Workers(NamedTuple):
    """A port, and a way to hear the next event of one of its workers; None: nothing more comes."""

    port: port.WorkerPort
    call: Callable[..., None]
    event: Callable[[], port.PoolEvent]
    version: ModelVersion = ROOMY


class PortConformance:
    """The suite. Workers of a scripted port must have no trouble in their script."""

    def started(self, workers: Workers, worker: int) -> int:
        workers.call(workers.port.start, worker, 0, WorkerSettings(1, (), 0))
        event = workers.event()
        assert isinstance(event, port.WorkerStarted)
        assert event.worker == worker
        return worker

    def loaded(
        self, workers: Workers, worker: int, model: int, wish: LoadWish = PLAIN_LOAD
    ) -> port.ModelLoaded:
        workers.call(workers.port.load, worker, model, workers.version, wish)
        event = workers.event()
        assert isinstance(event, port.ModelLoaded), event
        assert (event.worker, event.model) == (worker, model)
        return event

    def stopped(self, workers: Workers, worker: int) -> None:
        workers.call(workers.port.stop, worker)
        event = workers.event()
        assert isinstance(event, port.WorkerExited)
        assert (event.worker, event.cause, event.loading) == (worker, ExitCause.STOPPED, -1)

    def test_a_load_without_wishes_has_seeds_and_no_assessment(self, workers: Workers) -> None:
        worker = self.started(workers, 1)
        event = self.loaded(workers, worker, 10)
        assert event.seeds
        assert event.assessment is None
        assert event.evictable_bytes == 1 << 20
        assert not event.packed
        self.stopped(workers, worker)

    def test_a_load_in_the_background_with_an_assessment(self, workers: Workers) -> None:
        worker = self.started(workers, 1)
        event = self.loaded(workers, worker, 10, LoadWish(background=True, assess=True))
        assert event.assessment is not None
        assert event.assessment.runs > 0
        assert 0 < event.assessment.p50_ns <= event.assessment.p99_ns
        assert not event.assessment.is_broken
        self.stopped(workers, worker)

    def test_a_quick_load_measures_nothing_and_says_when_everything_is_there(self, workers: Workers) -> None:
        worker = self.started(workers, 1)
        assert self.loaded(workers, worker, 10, LoadWish(quick=True)).seeds == ()
        filled = workers.event()
        assert isinstance(filled, port.WeightsPagedIn)
        assert (filled.worker, filled.model, filled.failure) == (worker, 10, None)
        self.stopped(workers, worker)

    def test_what_came_early_is_loaded_once_more_in_the_background(self, workers: Workers) -> None:
        worker = self.started(workers, 1)
        self.loaded(workers, worker, 10, LoadWish(quick=True))
        assert isinstance(workers.event(), port.WeightsPagedIn)
        assert self.loaded(workers, worker, 10, LoadWish(background=True)).seeds
        self.stopped(workers, worker)

    def test_a_quick_load_in_the_background_or_with_an_assessment_is_not_early(
        self, workers: Workers
    ) -> None:
        worker = self.started(workers, 1)
        self.loaded(workers, worker, 10, LoadWish(quick=True, background=True))
        self.loaded(workers, worker, 11, LoadWish(quick=True, assess=True))
        self.stopped(workers, worker)

    def test_a_load_tells_on_the_way_how_far_it_is_if_asked(self, workers: Workers) -> None:
        worker = self.started(workers, 1)
        wish = LoadWish(background=True, assess=True, tell=True)
        workers.call(workers.port.load, worker, 10, workers.version, wish)
        stages = []
        while isinstance(event := workers.event(), port.ModelProgress):
            assert (event.worker, event.model) == (worker, 10)
            assert 0 <= event.done_bytes <= event.total_bytes
            stages.append(event.stage)
        assert isinstance(event, port.ModelLoaded)
        order = list(port.LoadStage)
        assert stages == sorted(stages, key=order.index)
        self.stopped(workers, worker)

    def test_evict_and_page_in(self, workers: Workers) -> None:
        worker = self.started(workers, 1)
        self.loaded(workers, worker, 10)
        for _ in range(2):
            workers.call(workers.port.evict_weights, worker, 10)
            evicted = workers.event()
            assert isinstance(evicted, port.WeightsEvicted)
            assert (evicted.worker, evicted.model) == (worker, 10)
            workers.call(workers.port.page_in, worker, 10)
            filled = workers.event()
            assert isinstance(filled, port.WeightsPagedIn)
            assert (filled.worker, filled.model, filled.nbytes, filled.failure) == (worker, 10, 1 << 20, None)
            assert min(evicted.ns, filled.ns) >= 0
        self.stopped(workers, worker)

    def test_what_is_asked_aside_is_answered_in_order(self, workers: Workers) -> None:
        worker = self.started(workers, 1)
        self.loaded(workers, worker, 10)
        workers.call(workers.port.evict_weights, worker, 10)
        workers.call(workers.port.load, worker, 11, workers.version, LoadWish(background=True))
        workers.call(workers.port.page_in, worker, 10)
        kinds = [type(workers.event()) for _ in range(3)]
        assert kinds == [port.WeightsEvicted, port.ModelLoaded, port.WeightsPagedIn]
        self.stopped(workers, worker)

    def test_a_foreground_load_does_not_wait_for_one_in_the_background(self, workers: Workers) -> None:
        worker = self.started(workers, 1)
        slow = LoadWish(background=True)
        workers.call(workers.port.load, worker, 11, workers.version, slow)
        workers.call(workers.port.load, worker, 12, workers.version)
        events = [workers.event(), workers.event()]
        models = {event.model for event in events if isinstance(event, port.ModelLoaded)}
        assert models == {11, 12}
        self.stopped(workers, worker)

    def test_what_was_asked_aside_before_stop_is_answered(self, workers: Workers) -> None:
        worker = self.started(workers, 1)
        workers.call(workers.port.load, worker, 10, workers.version, LoadWish(background=True))
        workers.call(workers.port.stop, worker)
        assert isinstance(workers.event(), port.ModelLoaded)
        assert isinstance(workers.event(), port.WorkerExited)

    def test_a_form_is_built_or_there_is_a_reason(self, workers: Workers) -> None:
        worker = self.started(workers, 1)
        workers.call(workers.port.build_form, worker, 10, workers.version)
        event = workers.event()
        assert isinstance(event, port.FormBuilt)
        assert (event.worker, event.model) == (worker, 10)
        assert bool(event.name) == (event.failure is None)
        self.stopped(workers, worker)

    def test_a_worker_that_is_killed_says_what_it_was_at(self, workers: Workers) -> None:
        worker = self.started(workers, 1)
        workers.call(workers.port.kill, worker, ExitCause.HUNG)
        event = workers.event()
        assert isinstance(event, port.WorkerExited)
        assert (event.worker, event.cause) == (worker, ExitCause.HUNG)
