"""What versions take in memory, as far as is known, and what cannot be as it is configured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from appliance.core.memory.budget import Limit, NeverFits, ResidencyPolicy
from appliance.core.memory.footprint import PROCESS_BYTES, Residency
from appliance.core.rollout.catalog import CatalogProblem
from appliance.core.rollout.phase import Phase
from appliance.domain.device import CPU, cuda
from appliance.domain.device_wish import ON_CUDA
from appliance.domain.model import GraphSize, VersionState
from appliance.engine.control.cache_report import Situation, problems
from appliance.engine.control.sizes import Costs, Sizes
from appliance.engine.versions.records import Cost, MemoryRecords
from appliance.engine.versions.routes import Routes
from appliance.engine.versions.served import Served
from appliance.telemetry.meter import VersionMeter
from appliance.workers.port import ModelLoaded
from tests.domain.sample import make_version
from tests.engine.versions import make_served

MB = 1_000_000
LIMITS = {CPU: 100 * MB}


def version(number: int, size_bytes: int, name: str = "m") -> Served:
    model = replace(make_version(name, number), file_bytes=size_bytes - PROCESS_BYTES)
    return make_served(id=number, model=model, fingerprint="", meter=VersionMeter(name, number))


def measured(sizes: Sizes, served: Served, memory: int, weights: int = 0, *, packed: bool = False) -> None:
    loaded = ModelLoaded(1, served.id, (), 5_000, memory, None, weights, packed=packed)
    sizes.measured(served, loaded)


@pytest.mark.parametrize("evict", [True, False])
@pytest.mark.parametrize("weights", [90, 1])
def test_mapped_weights_count_whether_or_not_they_can_be_let_go(evict: bool, weights: int) -> None:
    sizes, served = Sizes(evict, LIMITS), version(1, 10 * MB)
    measured(sizes, served, 10 * MB, weights * MB)
    footprint = sizes.footprint(served)
    assert footprint.bytes == (10 + weights) * MB + PROCESS_BYTES
    assert footprint.evictable_bytes == (90 * MB if evict and weights == 90 else 0)
    assert sizes.bytes_now(served) == footprint.bytes
    served.memory.residency = Residency.WEIGHTS_EVICTED
    assert sizes.bytes_now(served) == footprint.bytes - footprint.evictable_bytes
    served.memory.residency = Residency.COLD
    assert sizes.bytes_now(served) == 0


def test_the_largest_process_of_the_same_artifact_counts() -> None:
    sizes, served = Sizes(True, LIMITS), version(1, 10 * MB)
    for memory in (20 * MB, 10 * MB):
        measured(sizes, served, memory)
    assert sizes.footprint(served).bytes == 20 * MB + PROCESS_BYTES
    measured(sizes, served, 10 * MB, packed=True)
    assert sizes.footprint(served).bytes == 10 * MB + PROCESS_BYTES


def test_what_a_version_takes_with_its_runs_counts_until_its_process_is_gone() -> None:
    sizes, served = Sizes(True, LIMITS), version(1, 10 * MB)
    measured(sizes, served, 10 * MB, 40 * MB)
    loaded = sizes.footprint(served)
    sizes.grew(served, 7, 10 * MB)
    assert sizes.footprint(served) == loaded, "that is what it took when it was loaded"
    sizes.grew(served, 7, 15 * MB)
    sizes.grew(served, 8, 11 * MB)
    assert sizes.footprint(served) == loaded._replace(bytes=loaded.bytes + 6 * MB)
    assert sizes.ended(9) == []
    assert sizes.ended(8) == [1]
    assert sizes.footprint(served) == loaded._replace(bytes=loaded.bytes + 5 * MB)
    sizes.left(served)
    assert sizes.footprint(served) == loaded
    assert sizes.ended(7) == []


@pytest.mark.parametrize("loaded", [10 * MB, 200 * MB])
def test_nothing_that_runs_by_itself_grows_beyond_all_there_is(loaded: int) -> None:
    """It would be put out for itself, and loaded again."""
    sizes, served = Sizes(True, LIMITS), version(1, 10 * MB)
    measured(sizes, served, loaded)
    sizes.grew(served, 7, 500 * MB)
    assert sizes.footprint(served).bytes == max(LIMITS[CPU], loaded + PROCESS_BYTES)


def test_a_session_that_takes_the_place_of_one_or_takes_more_than_others_is_counted_once() -> None:
    sizes, served = Sizes(True, LIMITS), version(1, 10 * MB)
    measured(sizes, served, 10 * MB)
    loaded = sizes.footprint(served)
    sizes.grew(served, 1, 40 * MB)
    sizes.grew(served, 7, 40 * MB)
    measured(sizes, served, 30 * MB)  # in worker 1, and others of it are expected to take as much
    assert sizes.footprint(served) == loaded._replace(bytes=loaded.bytes + 20 * MB + 10 * MB)


def counted(sizes: Sizes, *versions: Served, stays: tuple[Served, ...] = ()) -> list[int]:
    """What each counts with above what it took when it was loaded, when that was bounded."""
    sizes.bound_growth(versions, {each.id for each in stays})
    return [sizes.footprint(each).bytes - sizes.session_bytes(each) - PROCESS_BYTES for each in versions]


def grown_to(sizes: Sizes, number: int, loaded: int, now: int) -> Served:
    served = version(number, 10 * MB)
    measured(sizes, served, loaded * MB - PROCESS_BYTES)
    sizes.grew(served, 7 + number, now * MB - PROCESS_BYTES)
    return served


def test_what_stays_in_memory_may_grow_as_far_as_the_largest_other_one_still_fits() -> None:
    sizes = Sizes(True, LIMITS)
    one, two = grown_to(sizes, 1, 20, 35), grown_to(sizes, 2, 10, 500)
    other, too_large = grown_to(sizes, 3, 30, 30), grown_to(sizes, 4, 75, 75)
    assert counted(sizes, one, two, other, stays=(one, two)) == [15 * MB, 20 * MB, 0]
    assert sizes.bound_growth((one, two, other), {1, 2}) == [], "nothing is new"
    assert counted(sizes, one, two, other, too_large, stays=(one, two)) == [15 * MB, 20 * MB, 0, 0]
    assert counted(sizes, one, two, stays=(one, two)) == [15 * MB, 55 * MB]
    sizes.ended(8)
    assert counted(sizes, one, two, stays=(one, two)) == [0, 70 * MB]


def test_what_may_leave_grows_as_far_as_it_fits_beside_what_stays_and_another_one() -> None:
    sizes = Sizes(True, LIMITS)
    stays, grown, other = grown_to(sizes, 1, 20, 25), grown_to(sizes, 2, 10, 500), grown_to(sizes, 3, 15, 40)
    changed = sizes.bound_growth((stays, grown, other), {1})
    assert changed == [grown]
    assert counted(sizes, stays, grown, other, stays=(stays,)) == [5 * MB, 50 * MB, 25 * MB]
    assert counted(sizes, grown, other) == [75 * MB, 25 * MB]
    large = grown_to(sizes, 4, 70, 70)
    assert counted(sizes, grown, large) == [45 * MB, 0], (
        "half of what is left, or nothing would count beside it"
    )
    on_device = make_served(
        id=9, model=replace(make_version("m", 9), device=ON_CUDA), fingerprint="", meter=VersionMeter("m", 9)
    )
    assert counted(sizes, grown) == [90 * MB]
    assert sizes.bound_growth((on_device,), {9}) == [], "nobody sees there what runs take"


def test_what_a_version_cost_before_a_restart_is_what_is_expected_of_it() -> None:
    records = MemoryRecords()

    def known() -> Sizes:
        return Sizes(True, LIMITS, Costs(records, lambda model: "here"))

    first, served = known(), version(1, 10 * MB)
    measured(first, served, 20 * MB, 60 * MB)
    first.came_back(served, 300, by_page_in=True)
    again, later = known(), version(1, 10 * MB)
    assert again.guessed(later) == first.footprint(served)
    assert not again.knows(later.id)
    again.assumed(later)
    assert again.footprint(later) == first.footprint(served)
    assert again.costs_ns(later) == (5_000, 300)
    measured(again, later, 20 * MB, 60 * MB, packed=True)
    assert again.costs_ns(later) == (5_000, 0), "a form is another thing"
    records.weigh(later.identity, "here", Cost(500 * MB, 0, 7))
    assert known().guessed(later).bytes == 10 * MB, "what is on record keeps nobody out for good"


@pytest.mark.parametrize(("page_in", "kept"), [(False, (2_000, 0)), (True, (1_000, 5_000))])
def test_each_measurement_of_a_cost_counts_for_a_part(page_in: bool, kept: tuple[int, int]) -> None:
    records = MemoryRecords()
    costs, served = Costs(records, lambda model: ""), version(1, 10 * MB)
    costs.took(served, 1_000, page_in=page_in)
    assert costs.of(served) is None, "it was never measured"
    costs.loaded(served, ModelLoaded(1, 1, (), 1_000, MB))
    costs.took(served, 5_000, page_in=page_in)
    known = costs.of(served)
    assert known is not None
    assert (known.load_ns, known.page_in_ns) == kept
    costs.took(served, kept[page_in] + 100, page_in=page_in)
    assert costs.of(served) is known, "too little to be written"


def found(
    config: ResidencyPolicy, versions: Iterable[Served], unfit: dict[int, NeverFits] | None = None
) -> list[str]:
    """The problems of these versions, of which those that are READY serve, in 100 MB."""
    sizes, routes = Sizes(True, LIMITS), Routes()
    routes.set_aside([CatalogProblem(name="unloaded", version="1", reason="unloaded by hand")])
    serving = [served for served in versions if served.state is VersionState.READY]
    for served in serving:
        measured(sizes, served, served.model.file_bytes)
    limits = {CPU: Limit(bytes=100 * MB, configured=False)}
    now = Situation(versions=versions, serving=serving, unfit=unfit or {}, limits=limits)
    return list(problems(config, sizes, routes, now))


def serving(number: int, size_bytes: int, name: str) -> Served:
    served = version(number, size_bytes, name)
    served.version.phase = Phase.LIVE
    return served


def test_a_name_that_no_model_has_is_told_and_one_that_is_unloaded_by_hand_is_not() -> None:
    config = ResidencyPolicy(pins=("unloaded", "unheard-of"), keep_warm_s={"unloaded": 2.0, "never": 2.0})
    assert found(config, []) == [
        "residency.pins names 'unheard-of', and there is no such model",
        "residency.keep_warm_s names 'never', and there is no such model",
    ]


def test_a_version_on_its_way_that_can_never_fit_is_told() -> None:
    unfit = {1: NeverFits(need_bytes=120 * MB, limit=Limit(bytes=100 * MB, configured=False))}
    (said,) = found(ResidencyPolicy(), [version(1, 120 * MB), version(2, 50 * MB)], unfit)
    assert said.startswith("m/1 can never fit into memory: it needs about 120.0 MB, and there is memory for")


def test_what_does_not_fit_beside_the_pins_is_told() -> None:
    config = ResidencyPolicy(pins=("a", "b"))
    versions = [serving(1, 60 * MB, "a"), serving(2, 50 * MB, "b"), serving(3, 5 * MB + PROCESS_BYTES, "c")]
    said = found(config, versions)
    assert said[0] == "residency.pins need about 110.0 MB, and there is memory for models of 100.0 MB"
    assert [line.split()[0] for line in said[1:]] == ["a/1", "b/2", "c/3"]
    assert "residency.pins and versions on trial keep 60.0 MB" in said[2]
    assert not found(ResidencyPolicy(pins=("b",)), versions[1:])


def test_a_word_that_is_more_than_its_room_counts_for_that_and_is_not_remembered() -> None:
    records = MemoryRecords()
    costs = Costs(records, lambda model: "here")
    sizes, served = Sizes(True, {cuda(0): 100 * MB}, costs), version(1, 10 * MB)
    served = make_served(
        id=1, model=replace(served.model, device=ON_CUDA), fingerprint="", meter=served.meter
    )
    served.memory.device = cuda(0)
    said = ModelLoaded(1, 1, (), 5_000, 10 * MB, device_bytes=40 * MB)
    sizes.measured(served, said, 30 * MB)
    assert sizes.session_bytes(served) == 30 * MB
    assert costs.of(served) is None
    sizes.measured(served, said, 40 * MB)
    assert sizes.session_bytes(served) == 40 * MB
    known = costs.of(served)
    assert known is not None
    assert known.memory_bytes == 40 * MB


def test_a_version_on_a_device_is_expected_to_take_its_weights_as_they_are_in_memory() -> None:
    served = version(1, 10 * MB)
    model = replace(served.model, device=ON_CUDA, graph=GraphSize(tensor_bytes=60 * MB, nodes=3))
    served = make_served(id=1, model=model, fingerprint="", meter=served.meter)
    served.memory.device = cuda(0)
    assert Sizes(True, {cuda(0): 100 * MB}).guessed(served).bytes == 60 * MB
