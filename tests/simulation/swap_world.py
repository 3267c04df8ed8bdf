"""A world of swaps: versions with scripted fates replace one another under load; everything follows from a seed.

The first version of each model is sound. Those that come after it may be refused, break their promise, crash or hang
while they load, be refused by their second process, fail requests, answer wrongly, or crash after a while; the catalog
may change its mind at any time.
After every turn and for every outcome these hold:

* no request that names no version ends in anything but an answer;
* a version that fails before it may serve never answers anybody;
* before it serves all, a version answers no more than its share;
* as soon as a model was ready once, something serves it until nothing of it is wanted.
"""

from __future__ import annotations

import itertools
import random
import struct
import sys
from collections import Counter
from dataclasses import replace
from functools import partial

from appliance.config.engine import EngineConfig
from appliance.config.workers import ArenaConfig, PlacementConfig
from appliance.core.processes.restart import RestartPolicy
from appliance.core.rollout.catalog import Catalog, CatalogVersion
from appliance.core.rollout.phase import ON_TRIAL
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.scheduling.planning import Planning
from appliance.core.scheduling.scheduler import Scheduler
from appliance.domain.assessment import Assessment
from appliance.domain.exit_cause import ExitCause
from appliance.domain.inference import NO_DEADLINE, Answer, Outcome, RequestHead, TensorHead
from appliance.domain.load_wish import PLAIN_LOAD, LoadWish
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.domain.validation import plan_request
from appliance.engine.control.model_cache import ResidencyTerms
from appliance.engine.control.recorder import SwapTerms
from appliance.engine.engine import Engine, EngineTerms
from appliance.engine.environment import Shell
from appliance.engine.port import Submission
from appliance.engine.versions.records import MemoryRecords
from appliance.workers import port
from appliance.workers.arena import Arena
from appliance.workers.settings import WorkerTerms
from tests.domain.sample import make_version
from tests.simulation.engine_turns import EngineTurns
from tests.simulation.engine_world import SilentLog
from tests.simulation.scripted_workers import MS, ScriptedWorkers, World

SOUND = "sound"
NEVER_SERVES = ("refused", "unkept", "slower", "crash_at_load", "hang_at_load")
CAUGHT_AT_WORK = ("failing", "invalid", "crash_at_10")
REFUSED_TWICE = "refused_twice"
"""By the second of its processes, when it may serve already from the first."""
REFUSED_ANEW = "refused_anew"
"""Whenever it was loaded once; none that is drawn."""
UNLIKE = "unlike"
FATES = (SOUND, SOUND, *NEVER_SERVES, *CAUGHT_AT_WORK, REFUSED_TWICE, UNLIKE)
RIGHT = (1.0, 2.0)
WRONG = (1.0, 7.0)
ARENA = ArenaConfig(classes=((4096, 512),), memory_limit_bytes=4 << 20)


def fate_of(version: ModelVersion) -> str:
    """What becomes of it."""
    return version.parameters["fate"]


class FatedWorkers(ScriptedWorkers):
    """Workers whose models do what their fates say; nothing else goes wrong."""

    evictable_bytes = 0

    def __init__(self, world: World, arena: Arena, emit: object) -> None:
        super().__init__(world, arena, emit, 0.0)  # type: ignore[arg-type]
        self.runs: Counter[int] = Counter()
        self.loading_now: set[tuple[int, int]] = set()
        self.held: set[int] = set()
        self.most_loading = self.built = self.loads = 0
        self.packs = False

    @property
    def versions_loading(self) -> int:
        """How many load in the background now."""
        return len({model for _, model in self.loading_now})

    def load(self, worker: int, model: int, version: ModelVersion, wish: LoadWish = PLAIN_LOAD) -> None:
        fate = fate_of(version)
        self.loads += 1
        if wish.background:
            self.loading_now.add((worker, model))
            self.most_loading = max(self.most_loading, self.versions_loading)
        took = self._world.random.randrange(5, 60) * MS

        def end() -> None:
            self.loading_now.discard((worker, model))
            twice = fate == REFUSED_TWICE and any(model in holds for holds in self._holds.values())
            if fate == "refused" or twice or (fate == REFUSED_ANEW and model in self.held):
                self._emit(port.ModelRefused(worker, model, "golden case 'a' differs"))
                return
            if fate in ("crash_at_load", "hang_at_load"):
                cause = ExitCause.DIED if fate == "crash_at_load" else ExitCause.HUNG
                self._exit(worker, cause, model)
                return
            self._holds[worker][model] = version
            self.held.add(model)
            p50 = 90 * MS if fate == "slower" else MS
            promised = p50 if fate == "unkept" else 0
            proof = Assessment(1, (), 1, 10, p50, p50 * 2, promised) if wish.assess else None
            packed = self.packs and self.built > 0
            self._emit(
                port.ModelLoaded(worker, model, ((1, MS),), took, 1000, proof, self.evictable_bytes, packed)
            )

        self._later(worker, took * (8 if fate == "hang_at_load" else 1), end)

    def _exit(self, worker: int, cause: ExitCause, loading: int) -> None:
        self.loading_now = {(where, model) for where, model in self.loading_now if where != worker}
        super()._exit(worker, cause, loading)

    def build_form(self, worker: int, model: int, version: ModelVersion, room_bytes: int = 0) -> None:
        self.built += 1
        super().build_form(worker, model, version, room_bytes)

    def _begin(self, worker: int) -> None:
        run = self._queues[worker][0]
        self.runs[run.model] += len(run.items)
        fate = fate_of(self._holds[worker][run.model])
        if fate == "crash_at_10" and self.runs[run.model] >= 10:
            self.runs[run.model] = 0
            self._later(worker, MS // 2, lambda: self._exit(worker, ExitCause.DIED, -1))
        else:
            self._later(worker, MS, lambda: self._end(worker, run))

    def _result(self, worker: int, model: int, item: port.RunItem) -> port.RunResult:
        fate = fate_of(self._holds[worker][model])
        if fate in ("failing", "invalid") and self._world.random.random() < 0.5:
            status = port.ItemStatus.FAILED if fate == "failing" else port.ItemStatus.INVALID
            return port.RunResult(item.ticket, status, (), (), 0, "scripted failure")
        said = struct.pack("<2f", *(WRONG if fate == UNLIKE else RIGHT)) * item.rows
        memory = self._arena.of_worker(worker)
        assert memory is not None
        memory.view(item.out_offset, len(said))[:] = said
        return port.RunResult(item.ticket, port.ItemStatus.OK, ((item.rows, 2),), (len(said),), 0, "")


class SwapWorld(EngineTurns):
    """One run. ``names`` models, each of which is swapped some times."""

    workers_type = FatedWorkers
    worker_terms = WorkerTerms()
    box = "this box"

    def __init__(
        self,
        seed: int,
        *,
        names: int = 4,
        swap: RolloutPolicy | None = None,
        residency: ResidencyTerms | None = None,
    ) -> None:
        self.world = World(seed)
        self._residency = residency
        rand = self.world.random
        self.config = swap or RolloutPolicy(
            loads=rand.choice((1, 2)),
            shadow_percent=rand.choice((0.0, 0.0, 50.0)),
            canary_percent=rand.choice((0.0, 10.0, 50.0)),
            trial_requests=10,
            stage_s=0.05,
            patience_s=30.0,
            differing_percent=0.0,
            error_percent=0.0,
            watch_s=rand.choice((3.0, 3.0, 0.0)),
        )
        self.names = [f"m{number}" for number in range(names)]
        self.wanted: dict[str, ModelVersion] = {name: version_of(name, 1, SOUND) for name in self.names}
        self.tried: tuple[CatalogVersion, ...] = ()
        self.records = MemoryRecords()
        self.boot()
        self.pending: set[int] = set()
        self.answers: Counter[tuple[str, int, str]] = Counter()
        self.served_once: set[str] = set()
        self._tags = itertools.count()

    def boot(self) -> None:
        """A daemon that begins, with the records there are."""
        world, rand = self.world, self.world.random
        self.arena = Arena(ARENA)
        self.workers = self.workers_type(world, self.arena, self._tell)
        self.scheduler = Scheduler(Planning())
        self.max_processes = rand.choice((2, 64))
        self.engine = Engine(
            terms=EngineTerms(
                engine=EngineConfig(),
                placement=PlacementConfig(max_processes=self.max_processes, share_below_bytes=2000),
                restart=RestartPolicy(),
                swap=SwapTerms(self.config, self.records, lambda model: self.box),
                residency=self._residency or ResidencyTerms(),
                workers=self.worker_terms,
            ),
            scheduler=self.scheduler,
            arena=self.arena,
            pool=self.workers,
            shell=Shell(
                clock=lambda: world.now,
                wall_ms=self.wall_ms,
                pace=self,
                memory_of=lambda pid: 0,
                log=SilentLog(),
            ),
        )

    def reboot(self, dark_ns: int = 0) -> None:
        """The power fails, and comes back after ``dark_ns``: what is on its way is gone."""
        before = self.world
        self.arena.close()
        self.world = World(0)
        self.world.random, self.world.now = before.random, before.now + dark_ns
        self._turn_asked = False
        self.served_once.clear()
        self.boot()
        self.apply()

    def wall_ms(self) -> int:
        """The wall clock."""
        return self.world.now // MS

    def _tell(self, event: port.PoolEvent) -> None:
        self.engine.pool_event(event)

    # --- Pace

    def arrived(self) -> None:
        """A turn in the same instant."""
        self.soon()

    news = arrived

    # --- what happens

    def apply(self, asked: tuple[str, ...] = ()) -> None:
        """Tell the engine what is wanted; ``asked``: models of which it is to try again what was given up."""
        self.engine.apply(
            Catalog(
                versions=tuple(
                    CatalogVersion(model=model, fingerprint=model.parameters["file"])
                    for model in self.wanted.values()
                )
                + self.tried
            ),
            asked,
        )

    def wish(self, name: str, fate: str = "") -> ModelVersion:
        """Want another version of ``name``: the next number, or other files under the same one."""
        rand, now = self.world.random, self.wanted[name]
        fate = fate or rand.choice(FATES if self.config.watch_s else (SOUND, SOUND, *NEVER_SERVES))
        number = now.version + rand.choice((0, 1, 1))
        self.wanted[name] = version_of(name, number, fate, str(next(self._tags)))
        self.apply()
        return self.wanted[name]

    def change(self, name: str) -> None:
        """Want something else of ``name``."""
        self.wish(name)

    def next_version(self, name: str, fate: str) -> ModelVersion:
        """The next version of ``name``, with that fate."""
        return version_of(name, self.wanted[name].version + 1, fate, str(next(self._tags)))

    def client(self, name: str) -> None:
        """One request that names no version."""
        model = self.engine.resolve(name, "")
        rows = self.world.random.choice((1, 1, 2))
        head = RequestHead(model_name=name, model_version="", inputs=(TensorHead("x", "FP32", (rows, 2)),))
        plan, tag = plan_request(model, head), next(self._tags)
        self.pending.add(tag)
        self.engine.submit(
            Submission(
                plan,
                request_id=str(tag),
                arrived_ns=self.world.now,
                deadline_ns=NO_DEADLINE,
                on_done=partial(self._done, tag),
            ),
            [b"\x01" * 8 * rows],
        )

    def _done(self, tag: int, outcome: Outcome) -> None:
        self.pending.remove(tag)
        assert isinstance(outcome, Answer), f"a request ended with {outcome!r}"
        fate = fate_of(outcome.model)
        assert fate not in NEVER_SERVES, f"{outcome.model.key} was {fate} and answered"
        self.answers[outcome.model.name, outcome.model.version, fate] += 1
        outcome.release()

    def check(self) -> None:
        """The invariants that hold after every turn."""
        self.scheduler.check_integrity()
        assert self.workers.versions_loading <= self.config.loads, "more loads in the background than allowed"
        for served in self.engine._routes.all():
            split = served.trial.split
            if split is not None:
                allowed = self.config.shadow_percent if split.shadow else self.config.canary_percent
                assert split.taken <= split.seen * allowed / 100 + 1, "more than its share"
                assert split.served.phase in ON_TRIAL, "on trial and serving"
        for name in self.names:
            current = self.engine._routes.current(name)
            if current is not None:
                self.served_once.add(name)
                assert fate_of(current.model) not in NEVER_SERVES, f"{current.key} serves"
            assert current is not None or name not in self.served_once, f"nothing serves {name}"

    # --- the run

    def start(self) -> None:
        """Serve the first versions."""
        self.apply()
        self.soon()
        self.world.run(self.world.now + 500 * MS)
        assert self.engine.ready

    def play(self, duration_ms: int = 1500, swaps: int = 6, requests: int = 900) -> None:
        """Swap under load until everything has come to its end, and leave nothing behind."""
        rand, world = self.world.random, self.world
        self.start()
        for _ in range(requests):
            world.after(rand.randrange(duration_ms) * MS, partial(self.client, rand.choice(self.names)))
        for _ in range(swaps):
            world.after(
                rand.randrange(duration_ms * 2 // 3) * MS, partial(self.change, rand.choice(self.names))
            )
        world.run(world.now + duration_ms * MS)
        self.settle()

    def settle(self) -> None:
        """Let everything come to its end, and see that nothing is left."""
        world = self.world
        world.run(world.now + 60_000 * MS)
        for name in self.names:
            self.check_end(name)
        self.engine.drain()
        world.run(world.now + 10_000 * MS)
        assert not self.pending, "requests without an outcome"
        statuses = self.engine.status()
        assert len(statuses.workers) <= 2 * len(self.names), "processes were left behind"
        self.engine.stop_workers()
        world.run(world.now + 1_000 * MS)
        assert self.arena.statistics().allocated_bytes == 0, "tensor memory leaked"
        assert self.engine.live_requests == 0
        self.arena.close()

    def check_end(self, name: str) -> None:
        """What was wanted last serves if it is sound; if it is not, and was seen at work, it does not."""
        current = self.engine._routes.current(name)
        assert current is not None
        wanted = self.wanted[name]
        fate = fate_of(current.model)
        seen = self.answers[name, current.model.version, fate]
        if fate_of(wanted) == SOUND:
            assert current.model == wanted, f"{wanted.key} is sound and does not serve"
        if self.config.watch_s and fate in CAUGHT_AT_WORK:
            assert seen < 20, f"{current.key} is {fate}, answered {seen} and still serves"
        if self.config.shadow_percent and fate == UNLIKE:
            assert seen < 20, f"{current.key} answers otherwise and still serves"
        assert current.trial.split is None, "a trial without an end"


def version_of(name: str, number: int, fate: str, file: str = "first") -> ModelVersion:
    made = make_version(
        name,
        number,
        inputs=(TensorSpec(name="x", datatype=Datatype.FP32, shape=(2,)),),
        outputs=(TensorSpec(name="y", datatype=Datatype.FP32, shape=(2,)),),
        max_batch_size=8,
        file_bytes=random.Random(name).choice((1000, 5000)),
        instance_count=2 if fate == REFUSED_TWICE else 1,
    )
    return replace(made, parameters={"fate": fate, "file": file})


def main() -> None:
    """Replay one seed and print what served."""
    world = SwapWorld(int(sys.argv[1]))
    world.play()
    for change in world.records.history(""):
        print(change)
    print(dict(world.answers))


if __name__ == "__main__":
    main()
