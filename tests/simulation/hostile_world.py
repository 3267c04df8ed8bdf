"""Hostile clients among lawful ones: what one sends takes a model from the others for no longer than a restart.

A hostile client's requests end their worker: at once, or by never coming back, after which it may have gone. They come
alone or many at a time, and begin before anybody else has asked anything. Lawful clients ask one thing after another.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Final

from appliance.config.workers import PlacementConfig
from appliance.core.processes.restart import RestartPolicy
from appliance.core.rollout.catalog import Catalog, CatalogVersion
from appliance.core.scheduling.planning import Planning
from appliance.core.scheduling.scheduler import Scheduler
from appliance.domain.errors import ApplianceError
from appliance.domain.exit_cause import ExitCause
from appliance.domain.inference import NO_DEADLINE, Answer, Outcome, RequestHead, TensorHead
from appliance.domain.model import Batching, ModelVersion, VersionState
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.domain.validation import plan_request
from appliance.engine.engine import Engine, EngineTerms
from appliance.engine.environment import Shell
from appliance.engine.port import Submission
from appliance.workers.arena import Arena
from tests.domain.sample import make_version
from tests.simulation.engine_turns import EngineTurns
from tests.simulation.engine_world import ARENA, SilentLog
from tests.simulation.scripted_workers import MS, ScriptedWorkers, World

POISON: Final = 66
HANG_NS: Final = 500 * MS
RESTART_NS: Final = 100 * MS
"""More than a new worker and its load take here, and what is queued for it then."""
OUTAGES_MAX: Final = 24
"""Workers of a version that one hostile client may cost in a quarter of an hour: a dozen for which it is held ever
longer, and before each of these one that ran others as well."""


class PoisonedWorkers(ScriptedWorkers):
    """Sound, but for requests whose input is POISON: then they die, or hang until they are killed."""

    def __init__(self, world: World, arena: Arena, emit: object) -> None:
        super().__init__(world, arena, emit, 0.0)  # type: ignore[arg-type]
        self.hangs = False
        self.deaths: list[int] = []

    def _begin(self, worker: int) -> None:
        run = self._queues[worker][0]
        memory = self._arena.of_worker(worker)
        assert memory is not None
        if not any(memory.view(item.offset, 1)[0] == POISON for item in run.items):
            self._later(worker, MS, lambda: self._end(worker, run))
        elif self.hangs:
            self._later(worker, HANG_NS, lambda: self._die(worker, ExitCause.HUNG))
        else:
            self._later(worker, MS, lambda: self._die(worker, ExitCause.DIED))

    def _die(self, worker: int, cause: ExitCause) -> None:
        self.deaths.append(self._world.now)
        self._exit(worker, cause, -1)


class HostileWorld(EngineTurns):
    """One run, by its seed, with one or two versions of a model, of which requests name none."""

    def __init__(self, seed: int) -> None:
        self.world = world = World(seed)
        self.arena = Arena(ARENA)
        self.workers = PoisonedWorkers(
            world,
            self.arena,
            lambda event: self.engine.pool_event(event),  # noqa: PLW0108  the engine is made later
        )
        self.workers.hangs = world.random.random() < 0.5
        self.newest = world.random.choice((1, 2))
        self.scheduler = Scheduler(Planning())
        self.engine = Engine(
            terms=EngineTerms(placement=PlacementConfig(), restart=RestartPolicy()),
            scheduler=self.scheduler,
            arena=self.arena,
            pool=self.workers,
            shell=Shell(
                clock=lambda: world.now,
                wall_ms=lambda: 0,
                pace=self,
                memory_of=lambda pid: 0,
                log=SilentLog(),
            ),
        )
        self._tags = itertools.count()
        self.waits: list[int] = []
        """How long each lawful request took, in ns."""
        self.other: list[int] = []
        """Versions that lawful requests were answered by and should not have been."""

    def arrived(self) -> None:
        """Turns follow."""
        self.soon()

    news = arrived

    def check(self) -> None:
        """Invariants after every turn."""
        self.scheduler.check_integrity()

    def play(self) -> None:
        """A quarter of an hour."""
        world, rand = self.world, self.world.random
        versions = [
            CatalogVersion(model=_model(number), fingerprint="") for number in range(1, self.newest + 1)
        ]
        self.engine.apply(Catalog(versions=tuple(versions)))
        self.soon()
        world.run_while(lambda: not self.engine.ready, world.now + 60_000 * MS)
        end = world.now + 900_000 * MS
        while world.now < end:
            for _ in range(rand.choice((1, 1, 1, 8))):
                self._hostile()
            for client in "ab":
                if rand.random() < 0.7:
                    world.after(rand.randrange(2_000) * MS, partial(self._lawful, client))
            world.run(world.now + rand.choice((100, 1_000, 5_000, 20_000)) * MS)
        world.run(world.now + 60_000 * MS)
        assert self.engine.live_requests == 0

    def _hostile(self) -> None:
        def done(outcome: Outcome) -> None:
            assert not isinstance(outcome, Answer), "nobody survives that"

        handle = self._ask("hostile", POISON, done)
        if handle is not None and self.world.random.random() < 0.5:
            self.world.after(self.world.random.randrange(1, 200) * MS, lambda: self.engine.cancel(handle))

    def _lawful(self, client: str) -> None:
        began = self.world.now

        def done(outcome: Outcome) -> None:
            assert isinstance(outcome, Answer), f"a lawful request ended with {outcome!r}"
            self.waits.append(self.world.now - began)
            if outcome.model.version != self.newest:
                self.other.append(outcome.model.version)
            outcome.release()

        assert self._ask(client, 1, done) is not None, "a lawful request was refused"

    def _ask(self, client: str, first: int, done: Callable[[Outcome], None]) -> int | None:
        head = RequestHead(model_name="m", model_version="", inputs=(TensorHead("x", "FP32", (1, 2)),))
        try:
            plan = plan_request(self.engine.resolve("m", ""), head)
            submission = Submission(
                plan,
                str(next(self._tags)),
                self.world.now,
                NO_DEADLINE,
                done,
                account=client,
            )
            return self.engine.submit(submission, [bytes([first]) * 8])
        except ApplianceError:
            return None

    @property
    def states(self) -> set[VersionState]:
        """Of all versions."""
        return {entry.state for entry in self.engine.index(ready_only=False)}


def _model(number: int) -> ModelVersion:
    tensor = partial(TensorSpec, datatype=Datatype.FP32, shape=(2,))
    return make_version(
        "m",
        number,
        inputs=(tensor(name="x"),),
        outputs=(tensor(name="y"),),
        max_batch_size=8,
        batching=Batching(),
    )
