"""Placement: a process each while there are some, then small models share, evenly."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from appliance.config.workers import PlacementConfig
from appliance.core.processes.placement import GroupLoad, place
from appliance.domain.device import CPU, ON_CUDA, cuda
from tests.domain.sample import make_version

CONFIG = PlacementConfig(max_processes=4, share_below_bytes=1000)


def test_each_version_gets_a_process_of_its_own_while_there_are_some() -> None:
    placements = place([make_version(str(number), file_bytes=10) for number in range(4)], [], CONFIG)
    assert [(len(placement.models), placement.shared, placement.processes) for placement in placements] == [
        (1, False, 1)
    ] * 4


def test_beyond_that_small_ones_share_evenly_and_large_ones_never() -> None:
    small = [make_version(str(number), file_bytes=10) for number in range(10)]
    large = [make_version("large", file_bytes=5000), make_version("twice", file_bytes=10, instance_count=2)]
    placements = place([*small, *large], [], CONFIG)
    assert [placement.processes for placement in placements if not placement.shared] == [1, 2]
    assert [len(placement.models) for placement in placements if placement.shared] == [10]


def test_newcomers_join_the_emptiest_shared_group() -> None:
    groups = [
        GroupLoad(group=7, device=CPU, shared=True, processes=1, models=5),
        GroupLoad(group=8, device=CPU, shared=True, processes=1, models=2),
        GroupLoad(group=9, device=CPU, shared=False, processes=2, models=1),
    ]
    (placement,) = place([make_version("a", file_bytes=1), make_version("b", file_bytes=1)], groups, CONFIG)
    assert (placement.group, len(placement.models), placement.processes) == (8, 2, 0)


def test_all_versions_on_a_gpu_share_its_one_process() -> None:
    (placement,) = place([make_version(name, device=ON_CUDA) for name in "abc"], [], CONFIG)
    assert (placement.device, placement.processes, len(placement.models)) == (cuda(0), 1, 3)
    there = [GroupLoad(group=3, device=cuda(0), shared=True, processes=1, models=3)]
    (placement,) = place([make_version("d", device=ON_CUDA)], there, CONFIG)
    assert (placement.group, placement.processes) == (3, 0)


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 3)), max_size=40), st.integers(1, 12))
def test_everyone_is_placed_once_and_sharing_keeps_within_the_limit(
    sizes: list[tuple[int, int]], limit: int
) -> None:
    models = [
        make_version(str(number), file_bytes=size, instance_count=count)
        for number, (size, count) in enumerate(sizes)
    ]
    placements = place(models, [], PlacementConfig(max_processes=limit, share_below_bytes=1000))
    placed = Counter(model.name for placement in placements for model in placement.models)
    assert placed == Counter(model.name for model in models)
    alone = sum(
        model.instance_count for model in models if model.instance_count > 1 or model.file_bytes >= 1000
    )
    assert sum(placement.processes for placement in placements) <= max(limit, alone + 1)
