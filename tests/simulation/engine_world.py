"""A world for the engine: virtual clock, scripted workers, random clients; everything follows from a seed.

The engine, its scheduler and the arena are the real ones. Workers answer late, refuse, crash, hang until they are
killed, or want more room for outputs; clients cancel, bring deadlines and vanish; the catalog changes underneath.
After every turn the invariants are checked:

* each request's outcome is given exactly once, and only after ``submit`` has returned;
* memory that a worker may touch, or an answer that was not released, is never given to another request;
* a worker is only asked for models it holds and only while it lives;
* scheduler and arena are sound; at the end nothing is left.

The wall clock jumps by up to an hour at every look; nothing may depend on it.
"""

from __future__ import annotations

import ctypes
import itertools
import random
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any

from appliance.config.engine import EngineConfig
from appliance.config.workers import ArenaConfig, PlacementConfig
from appliance.core.memory.budget import ResidencyPolicy
from appliance.core.processes.restart import RestartPolicy
from appliance.core.rollout.catalog import Catalog, CatalogProblem, CatalogVersion
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.scheduling.planning import Planning
from appliance.core.scheduling.scheduler import Scheduler
from appliance.domain.errors import ApplianceError
from appliance.domain.inference import NO_DEADLINE, Answer, Outcome, RequestHead, TensorHead
from appliance.domain.model import Batching, ModelVersion, WeightsFile
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.domain.validation import plan_request
from appliance.engine.control.model_cache import ResidencyTerms
from appliance.engine.control.recorder import SwapTerms
from appliance.engine.engine import Engine, EngineTerms
from appliance.engine.environment import Shell
from appliance.engine.port import Submission
from appliance.engine.versions.records import MemoryRecords
from appliance.workers.arena import Arena, aligned
from tests.domain.sample import make_version
from tests.engine.memory_terms import terms_of
from tests.simulation.engine_turns import EngineTurns
from tests.simulation.scripted_workers import EVICTABLE_BYTES, MS, ScriptedWorkers, World

ARENA = ArenaConfig(classes=((4096, 64), (65536, 16)), memory_limit_bytes=1 << 20)


class SilentLog:
    """Takes lines and keeps none."""

    def request(self, **fields: Any) -> None:
        """Nothing to do."""

    def slow(self, **fields: Any) -> None:
        """Nothing to do."""

    def rejected(self, **fields: Any) -> None:
        """Nothing to do."""

    def event(self, what: str, **fields: Any) -> None:
        """Nothing to do."""


class EngineWorld(EngineTurns):
    """One run: an engine with its clients. ``trouble`` follows from the seed; every third seed is calm."""

    def __init__(self, seed: int) -> None:
        self.world = world = World(seed)
        self.trouble = 0.0 if seed % 3 == 0 else world.random.choice((0.02, 0.1, 0.3))
        self.arena = Arena(ARENA)
        self.workers = ScriptedWorkers(
            world,
            self.arena,
            lambda event: self.engine.pool_event(event),  # noqa: PLW0108  the engine is made later
            self.trouble,
        )
        self.workers.growth = 0.2 * (seed % 2)
        self.scheduler = Scheduler(Planning())
        self.engine = Engine(
            terms=EngineTerms(
                engine=EngineConfig(),
                batch_keys_per_model=3,
                placement=PlacementConfig(
                    max_processes=world.random.choice((1, 2, 8)), share_below_bytes=2000
                ),
                restart=RestartPolicy(),
                swap=SwapTerms(_swap(world.random), MemoryRecords(), lambda model: ""),
                residency=_residency(world.random),
            ),
            scheduler=self.scheduler,
            arena=self.arena,
            pool=self.workers,
            shell=Shell(
                clock=lambda: world.now,
                wall_ms=lambda: world.random.randrange(-3_600_000, 3_600_000),
                pace=self,
                memory_of=lambda pid: 0,
                log=SilentLog(),
            ),
        )
        self.pending: dict[int, int] = {}
        self.answers: list[tuple[Answer, int, int]] = []
        self.outcomes: dict[str, int] = {}
        self._inside_submit = False
        self._tags = itertools.count()

    # --- Pace

    def arrived(self) -> None:
        """Sometimes a turn on the spot, sometimes later."""
        if self.world.random.random() < 0.5:
            self.engine.turn()
            self.check()
            self.world.after(0, self.engine.hand_out)
        else:
            self.soon()

    def news(self) -> None:
        """As for arrivals."""
        self.soon()

    # --- clients

    def catalog(self) -> Catalog:
        """Some models, some versions, some of them changed."""
        rand = self.world.random
        versions = [
            CatalogVersion(model=_model(rand, name, version), fingerprint=str(rand.randrange(3)))
            for name in "abcd"
            for version in (1, 2)
            if rand.random() < 0.7
        ]
        return Catalog(
            versions=tuple(versions), problems=(CatalogProblem(name="z", version="", reason="scripted"),)
        )

    def client(self) -> None:
        """One request, perhaps cancelled later."""
        rand, engine = self.world.random, self.engine
        name, version = rand.choice("abcdz"), rand.choice(("", "", "1", "2"))
        width = rand.choice((1, 2, 300))
        rows = rand.choice((1, 1, 1, 2, 8))
        try:
            model = engine.resolve(name, version)
            shape = (rows, width) if model.max_batch_size else (width,)
            head = RequestHead(
                model_name=name, model_version=version, inputs=(TensorHead("x", "FP32", shape),),
                priority=rand.choice((0, 0, 1, 2)) if model.batching and model.batching.priority_levels else 0,
                timeout_us=rand.choice((0, 0, 30_000)),
            )  # fmt: skip
            plan = plan_request(model, head)
        except ApplianceError:
            return
        tag = next(self._tags)
        deadline = rand.choice((NO_DEADLINE, self.world.now + rand.randrange(2, 100) * MS))
        self._inside_submit = True
        try:
            handle = engine.submit(
                Submission(
                    plan,
                    request_id=str(tag),
                    arrived_ns=self.world.now,
                    deadline_ns=deadline,
                    on_done=lambda outcome: self._done(tag, outcome),
                ),
                [bytes([tag % 255 + 1]) * plan.inputs[0].nbytes],
            )
        except ApplianceError as refusal:
            self._count(refusal)
            return
        finally:
            self._inside_submit = False
        self.pending[tag] = handle
        if rand.random() < 0.1:
            self.world.after(rand.randrange(20) * MS, lambda: engine.cancel(handle))

    def _count(self, outcome: Outcome) -> None:
        name = type(outcome).__name__
        self.outcomes[name] = self.outcomes.get(name, 0) + 1

    def _done(self, tag: int, outcome: Outcome) -> None:
        assert not self._inside_submit, "an outcome was given inside submit"
        assert tag in self.pending, f"request {tag} ended twice"
        del self.pending[tag]
        self._count(outcome)
        if isinstance(outcome, Answer):
            views = [
                output.data
                for output in outcome.outputs
                if isinstance(output.data, memoryview) and output.data
            ]
            starts = [self._offset_of(view) for view in views]
            ends = [start + len(view) for start, view in zip(starts, views, strict=True)]
            self.answers.append((outcome, min(starts, default=-1), max(ends, default=-1)))
            self.world.after(self.world.random.randrange(3) * MS, lambda: self._release(outcome))

    def _offset_of(self, view: memoryview) -> int:
        """Where it begins in whichever object it lies."""
        for memory in self.workers.objects:
            with suppress(ValueError):  # that one is closed
                offset = _address(view) - _address(memory.view(0, 1))
                if 0 <= offset < self.arena.size:
                    return offset
        raise AssertionError("an answer lies nowhere")

    def _release(self, answer: Answer) -> None:
        self.answers = [entry for entry in self.answers if entry[0] is not answer]
        answer.release()

    # --- the run

    def play(self, duration_ms: int = 400) -> None:
        """Load, serve, change, drain, and leave nothing behind."""
        rand, world = self.world.random, self.world
        self.engine.apply(self.catalog())
        self.soon()
        for _ in range(rand.randrange(50, 300)):
            world.after(rand.randrange(20, duration_ms) * MS, self.client)
        for _ in range(rand.randrange(3)):
            world.after(rand.randrange(30, duration_ms) * MS, lambda: self.engine.apply(self.catalog()))
        world.run(world.now + duration_ms * MS)
        self.engine.drain()
        self.workers.trouble = 0.0
        world.run(world.now + 120_000 * MS)
        assert not self.pending, f"requests without an outcome: {sorted(self.pending)[:5]}"
        self.engine.stop_workers()
        world.run(world.now + 1_000 * MS)
        self.arena.check_integrity()
        assert self.arena.statistics().allocated_bytes == 0, "tensor memory leaked"
        assert self.engine.live_requests == 0
        self.arena.close()

    def check(self) -> None:
        """The invariants."""
        self.arena.check_integrity()
        self.scheduler.check_integrity()
        taken: list[tuple[int, int]] = []
        for item in self.workers.running():
            end = item.out_offset + item.out_capacity
            taken.append((item.offset, max(item.offset + sum(map(aligned, item.sizes)), end)))
        taken.extend((start, end) for _, start, end in self.answers)
        taken.sort()
        for (_, end), (start, _) in itertools.pairwise(taken):
            assert end <= start, "memory in use was given to another request"


def _swap(rand: random.Random) -> RolloutPolicy:
    """Trials of every kind, short enough for a run."""
    return RolloutPolicy(
        loads=rand.choice((1, 2)),
        shadow_percent=rand.choice((0.0, 0.0, 30.0)),
        canary_percent=rand.choice((0.0, 0.0, 30.0)),
        trial_requests=5,
        stage_s=0.02,
        patience_s=0.2,
        watch_s=rand.choice((0.0, 0.05, 0.5)),
    )


def _residency(rand: random.Random) -> ResidencyTerms:
    """Memory for all models, or for some of them, with evicted weights as a step between or without."""
    config = ResidencyPolicy(evict_weights=rand.choice((True, False)), retry_ns=500 * MS, early_bytes=1)
    return terms_of(config, rand.choice((1 << 62, 20 << 20, 14 << 20)))


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def _model(rand: random.Random, name: str, version: int) -> ModelVersion:
    batching = rand.choice(
        (
            None,
            Batching(),
            Batching(max_queue_delay_us=2000),
            Batching(priority_levels=2, default_priority_level=2),
        )
    )
    made = make_version(
        name,
        version,
        inputs=(TensorSpec(name="x", datatype=Datatype.FP32, shape=(-1,)),),
        outputs=(TensorSpec(name="y", datatype=Datatype.FP32, shape=(-1,)),),
        max_batch_size=rand.choice((0, 8)),
        batching=batching,
        file_bytes=rand.choice((1000, 5000)),
        instance_count=rand.choice((1, 1, 2)),
    )
    return replace(made, weights=rand.choice((None, WeightsFile(path="weights.bin", size=EVICTABLE_BYTES))))


def main() -> None:
    """Replay one seed and print how its requests ended."""
    world = EngineWorld(int(sys.argv[1]))
    world.play()
    print(f"trouble {world.trouble}, outcomes {world.outcomes}")


if __name__ == "__main__":
    main()
