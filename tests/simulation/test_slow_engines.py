"""Versions whose engines are faster or slower than their sessions, under load and by seed: what is slower never serves,
costs its version nothing, and is not built again."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.records import Ending
from appliance.core.rollout.version import Artifact
from appliance.domain.load_wish import PLAIN_LOAD, LoadWish
from appliance.domain.model import ModelVersion
from appliance.domain.side_by_side import FACTOR, SideBySide, of_pairs
from appliance.workers import port
from appliance.workers.arena import Arena
from appliance.workers.jail.support import Support
from tests.domain.sample import make_version
from tests.simulation.scripted_workers import MS, World
from tests.simulation.swap_world import SOUND, FatedWorkers, SwapWorld, fate_of

SEEDS = range(12)
RATIOS = (0.4, 0.8, 1.0, 1.2, 2.9, 10.9)


def ratio_of(version: ModelVersion, seed: int) -> float:
    """How many times as long its engine takes."""
    return random.Random(f"{version.key} {seed}").choice(RATIOS)


class EngineWorkers(FatedWorkers):
    """Workers that build engines, and know which of the versions that they load run from one."""

    seed = 0

    def __init__(self, world: World, arena: Arena, emit: object) -> None:
        super().__init__(world, arena, emit)
        self.engines: dict[str, int] = {}
        self.packed: set[str] = set()

    def compared(self, version: ModelVersion) -> tuple[SideBySide, ...]:
        """Runs in turns on a box that is busy."""
        draw = self._world.random

        def run(ns: float) -> int:
            return int(
                ns * draw.lognormvariate(0, 0.06) * (draw.uniform(1, 8) if draw.random() < 0.1 else 1.0)
            )

        ratio = ratio_of(version, self.seed)
        self.engines[version.key] = self.engines.get(version.key, 0) + 1
        return tuple(
            of_pairs(rows, [(run(ratio * rows * MS), run(rows * MS)) for _ in range(41)]) for rows in (1, 4)
        )

    def load(self, worker: int, model: int, version: ModelVersion, wish: LoadWish = PLAIN_LOAD) -> None:
        self.packs = version.key in self.engines
        if self.packs:
            self.packed.add(version.key)
        super().load(worker, model, version, wish)


class EngineWorld(SwapWorld):
    """A world of models that have engines."""

    workers_type: type[FatedWorkers] = EngineWorkers
    workers: EngineWorkers

    def engined(self) -> None:
        """What is wanted from now on has engines."""
        self.wanted = {
            name: replace(model, runtime="tensorrt", forms="/nowhere", digest=f"{model.version:064x}")
            for name, model in self.wanted.items()
        }


@pytest.fixture(autouse=True)
def landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel keeps workers from the key that seals engines."""
    monkeypatch.setattr("appliance.workers.seal.kernel_support", lambda: Support(landlock=4, filter=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_only_engines_that_are_no_slower_serve_and_each_is_built_once(seed: int) -> None:
    world = EngineWorld(seed, names=3, swap=RolloutPolicy(watch_s=0.1))
    world.workers.seed = seed
    world.engined()
    world.start()
    for _ in range(120):
        world.world.after(world.world.random.randrange(8_000) * MS, lambda: world.client("m0"))
    world.world.run(world.world.now + 5_000 * MS)
    first = dict(world.wanted)
    world.wanted["m0"] = replace(world.next_version("m0", SOUND), parameters={"fate": SOUND, "file": "two"})
    world.engined()
    for _ in range(2):
        world.apply()
        world.world.run(world.world.now + 5_000 * MS)
    assert world.workers.engines == dict.fromkeys(("m0/1", "m0/2", "m1/1", "m2/1"), 1)
    lines = [change for change in world.records.history("") if change.artifact is Artifact.PACKED]
    models = {model.key: model for model in (*first.values(), *world.wanted.values())}
    assert len(lines) == len(models)
    for change in lines:
        model, slower = models[f"{change.name}/{change.version}"], "its engine is slower" in change.reason
        assert slower is (ratio_of(model, seed) > FACTOR)
        assert change.ending is (Ending.ABANDONED if slower else Ending.LIVE)
        assert (model.key in world.workers.packed) is not slower, "it was loaded all the same"
    for version in world.engine.status().versions:
        slower = ratio_of(models[f"{version.name}/{version.version}"], seed) > FACTOR
        assert version.state.value == "READY"
        assert version.packed is not slower
        assert any("its engine is slower: a run takes" in note for note in version.notes) is slower
        assert version.tries_left == RolloutPolicy().tries
    world.settle()


def test_the_seeds_have_engines_of_either_kind() -> None:
    names = EngineWorld(0, names=3).wanted.values()
    ratios = {ratio_of(model, seed) for seed in SEEDS for model in names}
    assert min(ratios) < FACTOR < max(ratios)


SLOW_AT_WORK = "slow_at_work"


class LyingWorkers(EngineWorkers):
    """Workers of which some say while they load that runs take a millisecond, and take a hundred then."""

    def __init__(self, world: World, arena: Arena, emit: Callable[[port.PoolEvent], None]) -> None:
        super().__init__(world, arena, lambda event: emit(self._told(event)))
        self.slow: set[int] = set()

    def _told(self, event: port.PoolEvent) -> port.PoolEvent:
        if isinstance(event, port.RunFinished) and event.batch in self.slow:
            return event._replace(run_ns=100 * MS)
        return event

    def _begin(self, worker: int) -> None:
        run = self._queues[worker][0]
        if fate_of(self._holds[worker][run.model]) != SLOW_AT_WORK:
            super()._begin(worker)
            return
        self.slow.add(run.batch)
        self._later(worker, 100 * MS, lambda: self._end(worker, run))


class LyingWorld(EngineWorld):
    """A world of those."""

    workers_type = LyingWorkers
    workers: LyingWorkers


@pytest.mark.parametrize("golden", [False, True])
@pytest.mark.parametrize(("canary_percent", "shadow_percent"), [(0.0, 0.0), (50.0, 0.0), (0.0, 50.0)])
@pytest.mark.parametrize("fate", [SOUND, SLOW_AT_WORK])
def test_what_is_slow_at_work_does_not_replace_a_version_that_runs_from_its_engine(
    fate: str, canary_percent: float, shadow_percent: float, golden: bool
) -> None:
    seed = next(each for each in range(99) if ratio_of(make_version("m0", 1), each) < FACTOR)
    policy = RolloutPolicy(
        watch_s=5.0, trial_requests=20, canary_percent=canary_percent, shadow_percent=shadow_percent
    )
    world = LyingWorld(seed, names=1, swap=policy)
    world.workers.seed = seed
    world.wanted["m0"] = replace(world.wanted["m0"], golden="set" if golden else "")
    world.engined()
    world.start()
    world.world.run(world.world.now + 20_000 * MS)
    assert [each.packed for each in world.engine.status().versions] == [True]
    world.wanted["m0"] = world.next_version("m0", fate)
    world.engined()
    world.apply()
    for number in range(600):
        world.world.after(number * 20 * MS, lambda: world.client("m0"))
    world.world.run(world.world.now + 30_000 * MS)
    lines = [each for each in world.records.history("m0") if each.version == 2]
    if fate == SOUND:
        endings = {each.ending for each in lines if each.artifact is Artifact.AS_PACKAGED}
        assert endings == {Ending.LIVE}
    else:
        tried = canary_percent or shadow_percent
        assert lines[-1].ending is (Ending.REFUSED if tried else Ending.ROLLED_BACK)
        assert "with the version before, without its engine" in lines[-1].reason
    world.settle()


class ApartWorkers(EngineWorkers):
    """Workers with no room for an engine beside its session, whose engines load while a neighbour slows them."""

    def __init__(self, world: World, arena: Arena, emit: Callable[[port.PoolEvent], None]) -> None:
        super().__init__(world, arena, lambda event: emit(self._slowed(event)))

    def _slowed(self, event: port.PoolEvent) -> port.PoolEvent:
        if isinstance(event, port.ModelLoaded) and event.packed and event.assessment is not None:
            return event._replace(assessment=event.assessment._replace(p50_ns=13 * MS // 10))
        return event

    def compared(self, version: ModelVersion) -> tuple[SideBySide, ...]:
        super().compared(version)
        return ()


class ApartWorld(EngineWorld):
    """A world of those."""

    workers_type = ApartWorkers
    workers: ApartWorkers


def test_an_engine_that_a_neighbour_slowed_is_dropped_and_not_refused_and_built_once_in_a_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    marked: list[bool] = []

    def mark(forms: str, digest: str, reason: str, *, known: bool = True) -> bool:
        marked.append(known)
        return True

    monkeypatch.setattr("appliance.engine.control.forms.refuse_forms", mark)
    for lives in (1, 2):
        world = ApartWorld(lives, names=1, swap=RolloutPolicy(watch_s=0.1))
        world.engined()
        world.start()
        for _ in range(3):
            world.apply()
            world.world.run(world.world.now + 5_000 * MS)
        assert marked == [False] * lives, "it is left to be built when the daemon starts anew"
        assert world.workers.engines == {"m0/1": 1}
        (version,) = world.engine.status().versions
        assert (version.state.value, version.packed) == ("READY", False)
        assert any("measured apart" in note for note in version.notes)
        world.settle()


class FullWorkers(EngineWorkers):
    """Workers on a device that is full whenever an engine is loaded, so often as ``full`` says."""

    full = 0

    def __init__(self, world: World, arena: Arena, emit: Callable[[port.PoolEvent], None]) -> None:
        super().__init__(world, arena, lambda event: emit(self._refused(event)))

    def _refused(self, event: port.PoolEvent) -> port.PoolEvent:
        if isinstance(event, port.ModelLoaded) and event.packed and self.full:
            self.full -= 1
            return port.ModelRefused(event.worker, event.model, "its GPU has no memory left", full=True)
        return event

    def compared(self, version: ModelVersion) -> tuple[SideBySide, ...]:
        """It is built once: who builds it again finds it there, and compares nothing."""
        return () if version.key in self.engines else super().compared(version)


class FullWorld(EngineWorld):
    """A world of those."""

    workers_type = FullWorkers
    workers: FullWorkers


@pytest.mark.parametrize("full", [0, 1, 3])
def test_an_engine_for_which_the_device_is_full_is_loaded_when_there_is_room(full: int) -> None:
    """It was built, proven and compared: what it lacks is memory, which somebody else has for a moment."""
    seed = next(each for each in range(99) if ratio_of(make_version("m0", 1), each) < FACTOR)
    world = FullWorld(seed, names=1, swap=RolloutPolicy(watch_s=0.1))
    world.workers.seed, world.workers.full = seed, full
    world.engined()
    world.start()
    minutes = 0
    while not world.engine.status().versions[0].packed:
        (version,) = world.engine.status().versions
        assert version.state.value == "READY", "it serves from its session meanwhile"
        world.world.run(world.world.now + 60_000 * MS)
        minutes += 1
        assert minutes < 20
    assert world.workers.full == 0
    (version,) = world.engine.status().versions
    assert not [note for note in version.notes if "has no engine" in note]
    world.settle()
