"""Worlds of swaps. A failing seed replays with ``python -m tests.simulation.swap_world SEED``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from appliance.core.memory.budget import ResidencyPolicy
from appliance.core.memory.footprint import PROCESS_BYTES
from appliance.core.rollout.catalog import Catalog, CatalogVersion, TrialWish
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.records import Change, Ending
from appliance.core.rollout.version import Artifact
from appliance.domain.exit_cause import ExitCause
from appliance.domain.model import VersionState, WeightsFile
from appliance.engine.versions.wording import megabytes
from tests.engine.memory_terms import terms_of
from tests.simulation.scripted_workers import MS
from tests.simulation.swap_world import REFUSED_ANEW, SOUND, SwapWorld, version_of

SEEDS = 60
CHUNK = 10


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_request_fails_because_of_a_swap_and_nothing_unproven_serves(first: int) -> None:
    endings: set[str] = set()
    for seed in range(first, first + CHUNK):
        world = SwapWorld(seed)
        try:
            world.play()
        except Exception as error:
            raise AssertionError(f"replay with: python -m tests.simulation.swap_world {seed}") from error
        endings |= {change.ending.value for change in world.records.history("")}
    assert {"live", "refused"} <= endings


def test_two_hundred_models_swapped_at_once_load_a_few_at_a_time() -> None:
    world = SwapWorld(1, names=200, swap=RolloutPolicy(loads=3, watch_s=0.1))
    world.start()
    for name in world.names:
        world.wanted[name] = world.next_version(name, SOUND)
    world.apply()
    for _ in range(400):
        world.world.after(world.world.random.randrange(2_000) * MS, lambda: world.client("m7"))
    world.settle()
    assert world.workers.most_loading == 3
    assert {version.version for version in world.wanted.values()} == {2}


def test_the_newest_wish_wins_and_the_one_under_way_is_abandoned() -> None:
    world = SwapWorld(2, names=1, swap=RolloutPolicy(watch_s=0.1))
    world.start()
    for _ in range(5):
        world.wish("m0", SOUND)
        world.world.run(world.world.now + MS)
    world.settle()
    endings = [change.ending.value for change in world.records.history("m0")]
    assert endings == ["live", *["abandoned"] * 4, "live"]


def test_a_version_that_is_wanted_again_while_it_is_kept_is_back_at_once() -> None:
    world = SwapWorld(3, names=1, swap=RolloutPolicy(watch_s=5))
    world.start()
    first = world.wanted["m0"]
    world.wish("m0", SOUND)
    world.world.run(world.world.now + 200 * MS)
    started = world.world.now
    world.wanted["m0"] = first
    world.apply()
    assert world.engine.resolve("m0", "") is first
    assert world.world.now == started
    world.settle()
    assert world.records.standing(world.records.history("m0")[1].identity).rejected is None


def with_forms(world: SwapWorld) -> None:
    """Packed forms of the first versions can be built."""
    for name, model in world.wanted.items():
        weights = WeightsFile(path="w", size=1 << 20)
        world.wanted[name] = replace(model, forms="/nowhere", digest="d" * 64, weights=weights)
    world.workers.packs = True


def test_what_is_kept_in_its_packed_form_is_back_at_once() -> None:
    world = SwapWorld(3, names=1, swap=RolloutPolicy(watch_s=1.0))
    with_forms(world)
    world.start()
    world.world.run(world.world.now + 5_000 * MS)
    (first,) = world.engine.status().versions
    assert world.workers.built == 1
    world.wanted["m0"], before = world.next_version("m0", SOUND), world.wanted["m0"]
    world.apply()
    world.world.run(world.world.now + 200 * MS)
    assert world.engine.resolve("m0", "").version == 2
    loads, world.wanted["m0"] = world.workers.loads, before
    world.apply()
    assert world.engine.resolve("m0", "") is before
    (again,) = world.engine.status().versions
    assert (again.workers, world.workers.loads) == (first.workers, loads)
    world.settle()


def crash(world: SwapWorld) -> None:
    """The worker of what serves dies with a batch."""
    world.client("m0")
    world.world.run(world.world.now + MS // 10)
    (worker,) = [worker for worker, runs in world.workers._queues.items() if runs]
    world.workers.kill(worker, ExitCause.KILLED)
    world.world.run(world.world.now + 300 * MS)


def test_a_crash_of_the_packed_form_is_none_of_the_version_without_it() -> None:
    world = SwapWorld(3, names=1, swap=RolloutPolicy(watch_s=1.0))
    with_forms(world)
    world.start()
    world.world.run(world.world.now + 1_500 * MS)
    (change,) = [each for each in world.records.history("m0") if each.artifact is Artifact.PACKED]
    assert change.ending is Ending.LIVE
    for _ in range(2):  # one while the form is watched, one of what served before
        crash(world)
        assert world.engine.resolve("m0", "") is world.wanted["m0"]
    assert world.records.history("m0")[-1].ending is Ending.ROLLED_BACK
    world.settle()


@pytest.mark.parametrize("fate", ["crash_at_load", "crash_at_10"])
def test_crashes_of_new_files_are_none_of_the_ones_that_serve(fate: str) -> None:
    world = SwapWorld(3, names=1, swap=RolloutPolicy(watch_s=60.0))
    world.start()
    first, world.wanted["m0"] = world.wanted["m0"], version_of("m0", 1, fate, "second")
    world.apply()
    world.world.run(world.world.now + 1_000 * MS)
    for _ in range(20):
        world.client("m0")
    world.world.run(world.world.now + 1_000 * MS)
    assert world.engine.resolve("m0", "") is first
    crash(world)
    assert world.engine.resolve("m0", "") is first
    world.settle()


def test_an_operator_who_goes_back_and_forth_uses_up_no_tries() -> None:
    world = SwapWorld(3, names=1, swap=RolloutPolicy(tries=3, watch_s=600.0))
    world.start()
    first = world.wanted["m0"]
    second = world.wish("m0", SOUND)
    for _ in range(4):
        world.wanted["m0"] = second
        world.apply()
        world.world.run(world.world.now + 2_000 * MS)
        assert world.engine.resolve("m0", "") is second
        world.wanted["m0"] = first
        world.apply()
        world.world.run(world.world.now + 2_000 * MS)
        assert world.engine.resolve("m0", "") is first
    assert all(standing.tries <= 1 for standing in world.records.standings.values())


def watched(fate: str, swap: RolloutPolicy) -> tuple[SwapWorld, int]:
    """A world in which a version with that fate is watched, and its worker; the one before is kept."""
    world = SwapWorld(4, names=1, swap=swap)
    world.start()
    first = {worker.worker for worker in world.engine.status().workers}
    world.wanted["m0"] = second = version_of("m0", 2, fate, "second")
    world.apply()
    world.world.run(world.world.now + 500 * MS)
    assert world.engine.resolve("m0", "") is second
    (worker,) = {worker.worker for worker in world.engine.status().workers} - first
    return world, worker


@pytest.mark.parametrize("busy", [False, True])
def test_a_watched_version_that_is_refused_by_its_next_worker_gives_way_to_the_one_before(busy: bool) -> None:
    world, worker = watched(REFUSED_ANEW, RolloutPolicy(watch_s=60.0))
    for _ in range(5 * busy):
        world.client("m0")
    world.workers.kill(worker, ExitCause.ZYGOTE)
    world.world.run(world.world.now + MS)
    world.client("m0")
    world.world.run(world.world.now + 1_000 * MS)
    assert not world.pending
    assert world.engine.resolve("m0", "").version == 1
    last = world.records.history("m0")[-1]
    assert (last.ending, last.reason) == (Ending.ROLLED_BACK, "golden case 'a' differs")
    world.settle()


def test_a_watched_version_that_is_quarantined_gives_way_to_the_one_before() -> None:
    """Where more crashes are allowed while it is watched than at all."""
    world, _ = watched("crash_at_10", RolloutPolicy(watch_s=60.0, crashes=5))
    for _ in range(40):
        world.client("m0")
        world.world.run(world.world.now + 50 * MS)
    assert not world.pending
    assert world.engine.resolve("m0", "").version == 1
    last = world.records.history("m0")[-1]
    assert last.ending is Ending.ROLLED_BACK
    assert "quarantined after repeated crashes" in last.reason
    world.settle()


def test_what_was_rolled_back_is_not_tried_again_until_somebody_asks() -> None:
    world = SwapWorld(4, names=1, swap=RolloutPolicy(watch_s=5, error_percent=0))
    world.start()
    world.wish("m0", "failing")
    world.world.run(world.world.now + 300 * MS)
    for _ in range(30):
        world.client("m0")
    world.world.run(world.world.now + 1_000 * MS)
    said = [change.ending.value for change in world.records.history("m0")]
    assert said == ["live", "live", "rolled back"]
    world.apply()
    world.world.run(world.world.now + 1_000 * MS)
    assert len(world.records.history("m0")) == 3
    reason = " ".join(entry.reason for entry in world.engine.index(ready_only=False))
    assert "rolled back" in reason or "not tried again" in reason
    world.apply(asked=("m0",))
    world.world.run(world.world.now + 1_000 * MS)
    assert [change.ending.value for change in world.records.history("m0")][3:] == ["live"]


def refusals(world: SwapWorld) -> list[Change]:
    """The lines of the history that tell of refused tries."""
    return [change for change in world.records.history("m0") if change.ending is Ending.REFUSED]


@pytest.mark.parametrize("number", [1, 2])
def test_an_unproven_version_is_tried_so_often_with_pauses_and_no_more(number: int) -> None:
    """Whatever else changes on the box meanwhile. Number 1: it is that of the version that serves."""
    world = SwapWorld(5, names=1, swap=RolloutPolicy(tries=3, retry_first_s=600.0))
    world.start()
    world.wanted["m0"] = bad = version_of("m0", number, "refused", "bad")
    world.apply()
    for tried in (1, 2, 3, 3, 3):
        for _ in range(3):
            world.world.run(world.world.now + 1_000 * MS)
            world.apply()
        assert len(refusals(world)) == tried
        (entry,) = [each for each in world.engine.index(ready_only=False) if each.version == str(number)]
        assert "golden case 'a' differs" in entry.reason or "was tried 3 times" in entry.reason
        world.world.run(world.world.now + 600_000 * MS)
        world.apply()
    assert all(change.version == bad.version and "golden" in change.reason for change in refusals(world))
    world.settle()


def test_without_retries_what_was_given_up_is_left_alone() -> None:
    world = SwapWorld(5, names=1, swap=RolloutPolicy(retry_first_s=0.0))
    world.start()
    world.wish("m0", "refused")
    for _ in range(3):
        world.world.run(world.world.now + 90_000_000 * MS)
        world.apply()
    assert len(refusals(world)) == 1
    world.apply(asked=("m0",))
    world.world.run(world.world.now + 1_000 * MS)
    assert len(refusals(world)) == 2
    for version, tried in ((99, 2), (refusals(world)[-1].version, 3)):
        world.apply(asked=(f"m0/{version}",))
        world.world.run(world.world.now + 1_000 * MS)
        assert len(refusals(world)) == tried, "one version may be asked for alone"
    world.settle()


@pytest.mark.parametrize("number", [1, 2])
def test_a_repaired_package_is_tried_at_once_and_with_all_its_tries(number: int) -> None:
    """Number 1: it is that of the version that serves."""
    world = SwapWorld(5, names=1, swap=RolloutPolicy(tries=1))
    world.start()
    bad = replace(version_of("m0", number, "refused"), digest="d" * 64)
    for files, tried in (("damaged", 1), ("damaged", 1), ("repaired", 2), ("repaired", 2)):
        world.engine.apply(Catalog(versions=(CatalogVersion(model=bad, fingerprint=files),)))
        world.world.run(world.world.now + 1_000 * MS)
        assert len(refusals(world)) == tried
    world.settle()


def test_a_repaired_package_of_what_serves_changes_nothing() -> None:
    world = SwapWorld(5, names=1, swap=RolloutPolicy(watch_s=0.1))
    world.wanted["m0"] = sound = replace(world.wanted["m0"], digest="d" * 64)
    world.start()
    loads = world.workers.loads
    world.engine.apply(Catalog(versions=(CatalogVersion(model=sound, fingerprint="repaired"),)))
    world.world.run(world.world.now + 1_000 * MS)
    assert world.workers.loads == loads
    world.settle()


def test_a_stop_that_was_asked_for_costs_no_try() -> None:
    """Else a few restarts while a version is watched would leave a box with nothing that serves."""
    world = SwapWorld(5, names=1, swap=RolloutPolicy(tries=3, watch_s=600.0))
    world.start()
    world.world.run(world.world.now + 2_000 * MS)
    assert {standing.tries for standing in world.records.standings.values()} == {1}
    world.settle()
    assert not world.records.standings


def test_what_the_catalog_only_wants_tried_serves_its_share_from_the_start_until_it_is_wanted() -> None:
    world = SwapWorld(
        6, names=1, swap=RolloutPolicy(trial_requests=5, stage_s=0, watch_s=0.1, canary_percent=50.0)
    )
    second = world.next_version("m0", SOUND)
    wish = TrialWish(canary_percent=50.0, hold=True)
    world.tried = (CatalogVersion(model=second, fingerprint=second.parameters["file"], trial=wish),)
    world.start()
    for _ in range(40):
        world.client("m0")
    world.world.run(world.world.now + 60_000 * MS)
    assert world.answers == {("m0", 1, SOUND): 20, ("m0", 2, SOUND): 20}
    assert world.engine.resolve("m0", "").version == 1
    assert {model.key for model in world.engine.held()} == {"m0/1", "m0/2"}
    world.tried, world.wanted["m0"] = (), second
    world.apply()
    for _ in range(12):
        world.client("m0")
    world.world.run(world.world.now + 60_000 * MS)
    assert world.engine.resolve("m0", "") is second
    world.settle()


def test_a_proven_version_changes_over_to_its_packed_form_and_only_once() -> None:
    world = SwapWorld(7, names=2, swap=RolloutPolicy(watch_s=0.1))
    with_forms(world)
    world.start()
    for _ in range(100):
        world.world.after(world.world.random.randrange(1_000) * MS, lambda: world.client("m0"))
    world.world.run(world.world.now + 5_000 * MS)
    world.apply()
    world.world.run(world.world.now + 5_000 * MS)
    lines = [(change.artifact, change.ending.value) for change in world.records.history("m0")]
    assert lines == [(Artifact.AS_PACKAGED, "live"), (Artifact.PACKED, "live")]
    assert world.workers.built == 2
    assert len(world.engine.status().workers) == 2
    world.settle()


def tight(free_bytes: Callable[[], int]) -> SwapWorld:
    """A pinned model and another one, in a budget that is filled by the two; a swap of the first does not fit."""
    config = ResidencyPolicy(pins=("m0",))
    terms = terms_of(config, 2 * (PROCESS_BYTES + 1000) + 100)._replace(
        free_bytes=lambda device: free_bytes()
    )
    world = SwapWorld(8, names=2, swap=RolloutPolicy(watch_s=0.1), residency=terms)
    for name, model in world.wanted.items():
        world.wanted[name] = replace(model, file_bytes=1000)
    world.start()
    world.wanted["m0"] = replace(world.next_version("m0", SOUND), file_bytes=5000)
    world.apply()
    for _ in range(100):
        world.world.after(world.world.random.randrange(1_000) * MS, lambda: world.client("m1"))
    world.world.run(world.world.now + 3_000 * MS)
    return world


@pytest.mark.parametrize("free_bytes", [1 << 40, 0])
def test_nobody_is_put_out_for_a_swap_that_does_not_fit_all_the_same(free_bytes: int) -> None:
    world = tight(lambda: free_bytes)
    status = world.engine.status()
    assert status.residency.misses == 0
    states = {(entry.name, entry.version): (entry.state, entry.reason) for entry in status.versions}
    if free_bytes:
        assert states["m0", 2] == (VersionState.READY, "")
        world.settle()
        return
    state, reason = states["m0", 2]
    assert state is VersionState.LOADING
    assert f"beside the {megabytes(PROCESS_BYTES + 1000)} of the version that serves" in reason
    assert "too little to try it above the budget" in reason
    assert states["m0", 1] == (VersionState.READY, "")


def test_what_waits_for_memory_goes_on_when_there_is_some() -> None:
    spare = [0]
    world = tight(lambda: spare[0])
    spare[0] = 1 << 40
    world.world.run(world.world.now + 3_000 * MS)
    assert world.engine.resolve("m0", "").version == 2
    world.settle()


def test_a_load_that_nobody_waits_for_any_more_ends_at_once() -> None:
    world = SwapWorld(9, names=1, swap=RolloutPolicy(loads=1, watch_s=0.1))
    world.start()
    world.wish("m0", "hang_at_load")
    world.world.run(world.world.now + 3 * MS)
    assert len(world.workers.loading_now) == 1
    world.wish("m0", SOUND)
    world.world.run(world.world.now + 5 * MS)
    (current,) = [
        each for each in world.engine.status().versions if each.trial and each.trial.stage == "loading"
    ]
    assert current.workers == ()
    assert len(world.workers.loading_now) == 1
    world.world.run(world.world.now + 300 * MS)
    assert world.engine.resolve("m0", "") is world.wanted["m0"]
    world.settle()


@pytest.mark.parametrize("fate", ["refused", "unkept"])
def test_what_never_served_is_in_the_history_once(fate: str) -> None:
    world = SwapWorld(10, names=1, swap=RolloutPolicy(watch_s=0.1))
    world.start()
    world.wish("m0", fate)
    world.world.run(world.world.now + 1_000 * MS)
    assert [change.ending.value for change in world.records.history("m0")] == ["live", "refused"]
    world.settle()
