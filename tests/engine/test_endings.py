"""Outputs that did not fit are fetched or forgotten, whatever becomes of their request and of their worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from appliance.config.engine import EngineConfig
from appliance.config.workers import PlacementConfig, WorkersConfig
from appliance.core.processes.restart import RestartPolicy
from appliance.core.rollout.catalog import Catalog, CatalogVersion
from appliance.core.scheduling.planning import Planning
from appliance.core.scheduling.scheduler import Scheduler
from appliance.domain.errors import Cancelled, CapacityError, WorkerDied
from appliance.domain.exit_cause import ExitCause
from appliance.domain.inference import NO_DEADLINE, Answer, RequestHead, RequestPlan, TensorHead
from appliance.domain.load_wish import PLAIN_LOAD, LoadWish
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.domain.validation import plan_request
from appliance.engine.engine import Engine, EngineTerms
from appliance.engine.environment import Shell
from appliance.engine.port import Submission
from appliance.engine.ticker import Ticker
from appliance.frontend.statuses import Code, retry_after_ms, statuses_of
from appliance.workers import port
from appliance.workers.arena import Arena
from appliance.workers.child.execution import HELD_ITEMS_MAX
from appliance.workers.daemon.pool import WorkerPool
from appliance.workers.settings import WorkerTerms
from tests.domain.sample import make_version
from tests.engine.rig import Rig, outcomes_of
from tests.simulation.engine_world import SilentLog
from tests.workers.bench import SMALL_ARENA

BYTES = 40_960
"""Of the request and its answer; a slot for it has room for less than half as much behind it."""


def free_model(version: int = 1) -> ModelVersion:
    """Input and output of any length, so that nothing is known of how large answers are."""
    spec = TensorSpec(name="x", datatype=Datatype.UINT8, shape=(-1,))
    out = TensorSpec(name="y", datatype=Datatype.UINT8, shape=(-1,))
    return make_version("m", version, inputs=(spec,), outputs=(out,))


def plan_for(engine: Engine) -> RequestPlan:
    head = RequestHead(model_name="m", model_version="", inputs=(TensorHead("x", "UINT8", (1, BYTES)),))
    return plan_request(engine.resolve("m", ""), head)


def ask(engine: Engine, done: Any) -> int:
    return engine.submit(
        Submission(
            plan_for(engine), request_id="", arrived_ns=engine.now_ns(), deadline_ns=NO_DEADLINE, on_done=done
        ),
        [bytes(BYTES)],
    )


# --- with real workers


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    """An engine with real workers that serves one model of the fake runtime."""

    def broken(error: BaseException) -> None:
        raise AssertionError("the engine broke") from error

    def tell(event: port.PoolEvent) -> None:
        made.pool_event(event)

    loop = asyncio.get_running_loop()
    arena, ticker = Arena(SMALL_ARENA), Ticker(loop, broken)
    pool = WorkerPool(arena, WorkersConfig(), loop, tell, ("fake",))
    made = Engine(
        terms=EngineTerms(
            engine=EngineConfig(),
            placement=PlacementConfig(),
            restart=RestartPolicy(),
            workers=WorkerTerms(roots=("/",)),
        ),
        scheduler=Scheduler(Planning()),
        arena=arena,
        pool=pool,
        shell=Shell(
            clock=time.monotonic_ns, wall_ms=lambda: 0, pace=ticker, memory_of=lambda pid: 0, log=SilentLog()
        ),
    )
    await pool.open()
    ticker.attach(made)
    ready = asyncio.Event()
    end = made.watch(lambda: ready.set() if made.ready else None)
    made.apply(Catalog(versions=(CatalogVersion(model=free_model(), fingerprint=""),)))
    try:
        await asyncio.wait_for(ready.wait(), 30)
        end()
        yield made
        made.stop_workers()
    finally:
        await pool.close()
        ticker.close()
    assert arena.statistics().allocated_bytes == 0, "tensor memory leaked"
    arena.close()


async def test_cancelled_requests_leave_nothing_in_the_worker(engine: Engine) -> None:
    """More of them have run than a worker holds outputs for."""
    loop = asyncio.get_running_loop()
    ran = 0
    while ran <= HELD_ITEMS_MAX:
        cancelled: asyncio.Future[Any] = loop.create_future()
        engine.cancel(ask(engine, cancelled.set_result))
        assert isinstance(await asyncio.wait_for(cancelled, 30), Cancelled)
        ran = engine.statistics("m", "")[0].executions
    done: asyncio.Future[Any] = loop.create_future()
    ask(engine, done.set_result)
    answer = await asyncio.wait_for(done, 30)
    assert isinstance(answer, Answer), answer
    answer.release()


# --- with workers that answer when told


class Losing(Rig):
    """Notes who was asked for what. ``too_large`` answers what was dispatched with outputs that do not fit."""

    def __init__(self, model: ModelVersion) -> None:
        self.lanes: list[tuple[int, port.Run]] = []
        self.fetches: list[port.Fetch] = []
        self.models: dict[int, ModelVersion] = {}
        super().__init__(model)

    def load(self, worker: int, model: int, version: ModelVersion, wish: LoadWish = PLAIN_LOAD) -> None:
        self.models[model] = version
        super().load(worker, model, version, wish)

    def dispatch(self, worker: int, run: port.Run) -> None:
        self.lanes.append((worker, run))

    def fetch(self, worker: int, fetch: port.Fetch) -> None:
        self.fetches.append(fetch)

    @property
    def versions(self) -> list[int]:
        """Whose runs were asked for and have not been answered."""
        return [self.models[run.model].version for _, run in self.lanes]

    def too_large(self) -> int:
        """The worker that said so of the oldest run."""
        worker, run = self.lanes.pop(0)
        results = tuple(
            port.RunResult(item.ticket, port.ItemStatus.TOO_LARGE, ((1, BYTES),), (BYTES,), BYTES, "")
            for item in run.items
        )
        self.engine.pool_event(port.RunFinished(worker, run.batch, results, 1, 1, 1))
        return worker

    def exit(self, worker: int, *batches: int, cause: ExitCause = ExitCause.DIED) -> None:
        """It died, with what it ran."""
        self.engine.pool_event(port.WorkerExited(worker, cause, batches, -1, "scripted"))

    def exit_at_work(self, cause: ExitCause = ExitCause.KILLED) -> None:
        """The worker of the oldest run died, perhaps of it."""
        worker, run = self.lanes.pop(0)
        self.exit(worker, run.batch, cause=cause)
        self.turns()

    def answer(self) -> None:
        """The oldest run goes well, its outputs with it."""
        worker, run = self.lanes.pop(0)
        (item,) = run.items
        assert item.out_offset - item.offset == BYTES, "the place is another one"
        result = port.RunResult(item.ticket, port.ItemStatus.OK, ((1, 8),), (8,), 0, "")
        self.engine.pool_event(port.RunFinished(worker, run.batch, (result,), 1, 1, 1))
        self.turns()


@pytest.mark.parametrize("at_once", [True, False], ids=["before it is asked", "after it was asked"])
def test_a_worker_that_dies_before_the_outputs_are_fetched_costs_one_more_run(at_once: bool) -> None:
    rig = Losing(free_model())
    outcomes, done = outcomes_of(rig)
    ask(rig.engine, done)
    rig.turns()
    for _ in range(2):
        worker = rig.too_large()
        if not at_once:
            rig.turns()
        rig.exit(worker)
        rig.turns()
    assert not rig.lanes
    assert isinstance(outcomes[0], WorkerDied)
    assert "died with the request; do not send it again" in str(outcomes[0])
    assert rig.arena.statistics().allocated_bytes == 0
    assert rig.engine.live_requests == 0


def test_what_ran_again_is_answered_from_where_it_was_to_be_at_first() -> None:
    rig = Losing(free_model())
    outcomes, done = outcomes_of(rig)
    ask(rig.engine, done)
    rig.turns()
    worker = rig.too_large()
    rig.turns()
    rig.exit(worker)
    rig.turns()
    rig.answer()
    (answer,) = outcomes
    assert isinstance(answer, Answer)
    answer.release()
    assert rig.arena.statistics().allocated_bytes == 0


def test_what_is_cancelled_while_it_is_fetched_does_not_run_again() -> None:
    rig = Losing(free_model())
    outcomes, done = outcomes_of(rig)
    handle = ask(rig.engine, done)
    rig.turns()
    worker = rig.too_large()
    rig.turns()
    rig.engine.cancel(handle)
    rig.exit(worker)
    rig.turns()
    assert not rig.lanes
    assert isinstance(outcomes[0], Cancelled)


def test_outputs_that_no_worker_may_hold_are_a_limit() -> None:
    rig = Losing(free_model())
    rig.engine.apply(Catalog(versions=(CatalogVersion(model=free_model(2), fingerprint=""),)))
    rig.turns()
    outcomes, done = outcomes_of(rig)
    ask(rig.engine, done)
    rig.turns()
    for _ in ("of the new version", "of the one before"):
        assert not outcomes
        worker, run = rig.lanes.pop(0)
        (item,) = run.items
        beyond = port.RunResult(item.ticket, port.ItemStatus.BEYOND, (), (), 0, "the outputs take 9 bytes")
        rig.engine.pool_event(port.RunFinished(worker, run.batch, (beyond,), 1, 1, 1))
        rig.turns()
    (error,) = outcomes
    assert isinstance(error, CapacityError)
    assert (statuses_of(error), retry_after_ms(error)) == ((Code.RESOURCE_EXHAUSTED, 429), -1)
    assert str(error) == "model 'm' failed: the outputs take 9 bytes"
    assert (rig.lanes, rig.arena.statistics().allocated_bytes) == ([], 0)


@pytest.mark.parametrize("runs", [1, 2])
def test_what_is_cancelled_while_it_runs_does_not_run_again_when_its_worker_dies(runs: int) -> None:
    rig = Losing(free_model())
    outcomes, done = outcomes_of(rig)
    handle = ask(rig.engine, done)
    rig.turns()
    for _ in range(runs - 1):
        rig.exit_at_work()
    rig.engine.cancel(handle)
    rig.turns()
    assert not outcomes, "a worker has its memory"
    rig.exit_at_work()
    assert not rig.lanes
    assert isinstance(outcomes[0], Cancelled)
    assert rig.arena.statistics().allocated_bytes == 0


def test_what_is_cancelled_goes_to_no_other_version_when_its_worker_dies() -> None:
    rig = Losing(free_model())
    rig.engine.apply(Catalog(versions=(CatalogVersion(model=free_model(2), fingerprint=""),)))
    rig.turns()
    outcomes, done = outcomes_of(rig)
    handle = ask(rig.engine, done)
    rig.turns()
    assert rig.versions == [2]
    rig.engine.cancel(handle)
    rig.exit_at_work()
    assert not rig.lanes
    assert isinstance(outcomes[0], Cancelled)


def test_a_watched_version_that_dies_with_outputs_to_fetch_costs_nobody_an_answer() -> None:
    rig = Losing(free_model())
    rig.engine.apply(Catalog(versions=(CatalogVersion(model=free_model(2), fingerprint=""),)))
    rig.turns()
    outcomes, done = outcomes_of(rig)
    ask(rig.engine, done)
    rig.turns()
    assert rig.versions == [2]
    worker = rig.too_large()
    rig.turns()
    rig.exit(worker)
    rig.turns()
    assert rig.versions == [1]
    rig.answer()
    (answer,) = outcomes
    assert isinstance(answer, Answer)
    assert answer.model.version == 1
    answer.release()
    assert rig.arena.statistics().allocated_bytes == 0
