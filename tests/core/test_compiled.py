"""The compiled scheduler keeps the rules, acts as its source does, and gets into a wheel and nowhere else.

``python compiled_scheduler.py tests.core.test_compiled`` prints what the compiled one does, line by line.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import pytest

import appliance.core.scheduling.scheduler
from appliance.core.scheduling import events as on
from appliance.core.scheduling.actions import Dispatch, Refused
from appliance.core.scheduling.scheduler import Scheduler, SchedulingConfig
from appliance.domain.inference import NO_DEADLINE
from appliance.domain.model import Batching, QueuePolicy, TimeoutAction
from compiled_scheduler import ROOT, built, obstacle
from tests.simulation.granted_world import GrantedWorld
from tests.simulation.scheduler_world import World

MILLISECOND = 1_000_000
WORLDS = range(2_000, 2_060)
CROWD_SEEDS = range(4)
CROWD_STEPS = 6_000
CROWD_LANES = 4
CROWD_PRESENT = 2_500
NOT_FOR_COMPILED = ("test_compiled.py", "test_purity.py", "test_queue.py")
"""This file; one that reads the sources; one that puts None where a shape belongs, which compiled code refuses."""

pytestmark = pytest.mark.timeout(400)


# --- what both do


def lines() -> Iterator[str]:
    """Every event with the actions that answered it, in worlds and in crowds."""
    for seed in WORLDS:
        told: list[str] = []

        def trace(now_ns: int, event: object, actions: object, told: list[str] = told) -> None:
            told.append(f"{now_ns} {event} -> {actions}")

        (GrantedWorld if seed % 2 else World)(seed, trace).run()
        yield f"world {seed}"
        yield from told
    for seed in CROWD_SEEDS:
        yield f"crowd {seed}"
        yield from crowd(seed)


def crowd(seed: int) -> Iterator[str]:
    """Thousands of requests queued, which no world has: split blocks, coarse sums, spares from sums."""
    rng = random.Random(seed)
    config = SchedulingConfig(max_queued_requests=CROWD_PRESENT + 100, max_queued_per_model=CROWD_PRESENT)
    scheduler = Scheduler(config)
    now_ns = 1 << 40
    models = open_crowd(scheduler, now_ns)
    running: list[int] = []
    request = 0
    for step in range(CROWD_STEPS):
        now_ns += rng.randrange(MILLISECOND // 4)
        queued = scheduler.queued
        choice = rng.random()
        event: on.Event
        if step < CROWD_PRESENT or (choice < 0.5 and queued < CROWD_PRESENT):
            request += 1
            event = arrival(rng, request, models, now_ns)
        elif choice < 0.8 and running:
            event = on.BatchFinished(running.pop(rng.randrange(len(running))), rng.random() < 0.9)
        elif choice < 0.85:
            event = on.CancelRequested(rng.randrange(request + 1))
        elif choice < 0.855:
            event = on.LaneClosed(rng.randrange(CROWD_LANES), now_ns + MILLISECOND)
        elif choice < 0.86 and len(scheduler.statistics().lanes) < CROWD_LANES:
            there = {lane.lane for lane in scheduler.statistics().lanes}
            event = on.LaneOpened(min(set(range(CROWD_LANES)) - there), 0)
        else:
            event = on.Settle()
        actions = scheduler.step(event, now_ns)
        running += [action.batch for action in actions if isinstance(action, Dispatch)]
        yield f"{now_ns} {event} -> {actions}"
        if step % 500 == 0:
            scheduler.check_integrity()
            yield f"{scheduler.statistics()}"


def open_crowd(scheduler: Scheduler, now_ns: int) -> int:
    """One group whose models batch in every way there is; how many they are."""
    delaying = QueuePolicy(timeout_action=TimeoutAction.DELAY, default_timeout_us=400_000)
    ways = (
        Batching(),
        Batching(max_queue_delay_us=3_000, preferred_batch_size=(4, 8)),
        Batching(priority_levels=3, default_priority_level=2, priority_queue_policy={3: delaying}),
        Batching(default_queue_policy=QueuePolicy(default_timeout_us=5_000_000, max_queue_size=1_000)),
    )
    scheduler.step(on.GroupOpened(0), now_ns)
    for lane in range(CROWD_LANES):
        scheduler.step(on.LaneOpened(lane, 0), now_ns)
    for model, way in enumerate(ways):
        scheduler.step(on.ModelOpened(model, 0, 1 << (model + 1), way), now_ns)
        seeds = ((1, 300_000 + 50_000 * model), (8, 900_000)) if model else ()
        scheduler.step(on.ShapeOpened(model, model, seeds), now_ns)
    return len(ways)


def arrival(rng: random.Random, request: int, models: int, now_ns: int) -> on.Arrived:
    """Due soon, in seconds, in minutes, or never."""
    far = MILLISECOND * rng.choice((20, 2_000, 30_000, 300_000, 300_000, 300_000))
    deadline_ns = now_ns + rng.randrange(far) if rng.random() < 0.9 else NO_DEADLINE
    model = rng.randrange(models)
    rows = rng.choice((1, 1, 1, 1, rng.randrange(1, (1 << (model + 1)) + 1)))
    timeout_us = rng.randrange(1, 10_000_000) if rng.random() < 0.1 else 0
    return on.Arrived(
        request, model, rows, rng.randrange(1, 5_000), rng.randrange(5), deadline_ns, timeout_us
    )


# --- tests


@pytest.fixture(scope="module", autouse=True)
def place() -> Path:
    """Where the compiled modules are."""
    missing = obstacle()
    if missing:
        pytest.skip(f"the scheduler cannot be compiled: {missing}")
    return built()


def compiled(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a module with the compiled scheduler."""
    command = [sys.executable, "compiled_scheduler.py", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def wheel(directory: Path, kind: str = "wheel", **environment: str) -> tuple[Path, str]:
    """A wheel made of this tree, unpacked, and its file's name."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(directory)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = directory.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(directory / "unpacked")
    return directory / "unpacked", file.name


def version_in(directory: Path) -> str:
    """What ``appliance version`` says with the modules in ``directory``."""
    program = "from appliance.cli.main import main; main(['version'])"
    environment = os.environ | {"PYTHONPATH": str(directory)}
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def binaries(directory: Path) -> list[str]:
    """Compiled modules in ``directory``."""
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*.so"))


def test_the_compiled_scheduler_passes_the_tests_of_the_scheduler() -> None:
    """Its own tests and the simulated worlds, with the referee watching."""
    left_out = [f"--ignore=tests/core/{name}" for name in NOT_FOR_COMPILED]
    places = ("tests/core", "tests/simulation/test_scheduler_world.py")
    done = compiled("pytest", "-q", "-p", "no:cacheprovider", *places, *left_out)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-1_000:]


def test_compiled_and_interpreted_act_alike() -> None:
    assert (appliance.core.scheduling.scheduler.__file__ or "").endswith(".py")
    done = compiled("tests.core.test_compiled")
    assert done.returncode == 0, done.stderr[-2_000:]
    scene = ""
    for number, (ours, theirs) in enumerate(zip_longest(lines(), done.stdout.splitlines())):
        assert ours == theirs, f"line {number}, in {scene}"
        scene = ours if ours.startswith(("world", "crowd")) else scene


def test_a_crowd_is_one() -> None:
    """Thousands wait at once, batches run, and some requests are refused: else it would compare nothing."""
    told = "\n".join(crowd(0))
    assert max(int(part.partition(",")[0]) for part in told.split("SchedulerStatistics(queued=")[1:]) > 1_000
    assert told.count(Dispatch.__name__) > 100
    assert told.count(Refused.__name__) > 100


def test_a_wheel_holds_the_compiled_scheduler(tmp_path: Path, place: Path) -> None:
    unpacked, name = wheel(tmp_path)
    assert binaries(unpacked) == binaries(place)
    assert not name.endswith("-none-any.whl")
    assert "scheduler: compiled" in version_in(unpacked)


def test_a_wheel_made_without_a_compiler_is_pure(tmp_path: Path) -> None:
    unpacked, name = wheel(tmp_path, CC="no-such-compiler")
    assert name.endswith("-py3-none-any.whl")
    assert not binaries(unpacked)
    assert "scheduler: interpreted" in version_in(unpacked)


def test_an_editable_install_is_interpreted(tmp_path: Path) -> None:
    unpacked, _ = wheel(tmp_path, "wheel:editable")
    assert not binaries(unpacked)


def test_nothing_compiled_lies_beside_the_sources() -> None:
    assert not binaries(ROOT / "appliance")


if __name__ == "__main__":
    for line in lines():
        print(line)
