"""Placement: a process each while there are some, then small models share, evenly."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from appliance.config.workers import PlacementConfig
from appliance.core.processes.placement import GroupLoad, has_processes, place
from appliance.domain.device import CPU, cuda
from appliance.domain.device_wish import ON_CUDA
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


OWN = {"own_worker": "true"}


def test_one_that_asks_for_a_worker_of_its_own_shares_with_nobody() -> None:
    small = [make_version(str(number), file_bytes=10) for number in range(10)]
    own = make_version("own", file_bytes=10, parameters=OWN)
    alone, *_, shared = place([*small, own], [], CONFIG)
    assert (alone.models, alone.shared, alone.processes) == ((own,), False, 1)
    assert own not in shared.models
    not_own = make_version("not", file_bytes=10, parameters={"own_worker": "false"})
    assert [len(each.models) for each in place([*small, not_own], [], CONFIG)] == [3, 3, 3, 2]


def test_nor_does_it_on_a_gpu_and_the_others_share_theirs() -> None:
    own = make_version("own", device=ON_CUDA, parameters=OWN)
    there = [GroupLoad(group=3, device=cuda(0), shared=False, processes=1, models=1)]
    alone, shared = place([make_version("a", device=ON_CUDA), own], there, CONFIG)
    assert (alone.group, alone.device, alone.shared, alone.models) == (-1, cuda(0), False, (own,))
    assert (shared.group, shared.shared, shared.processes) == (-1, True, 1), (
        "no other joins the one that is there"
    )


def test_processes_that_are_promised_are_left_to_those_that_have_them() -> None:
    own = make_version("own", file_bytes=10, parameters=OWN)
    small = [make_version(str(number), file_bytes=10) for number in range(4)]
    assert len(place(small, [], CONFIG)) == 4
    placements = place(small, [], CONFIG, promised=[own])
    assert [each.shared for each in placements] == [True] * 3


def test_there_is_a_process_as_long_as_not_all_are_taken_or_promised() -> None:
    own = make_version("own", file_bytes=10, parameters=OWN)
    on_gpu = make_version("own", device=ON_CUDA, instance_count=4, parameters=OWN)
    groups = [
        GroupLoad(group=1, device=CPU, shared=True, processes=1, models=9),
        GroupLoad(group=2, device=CPU, shared=False, processes=2, models=1),
    ]
    assert has_processes(own, groups, CONFIG)
    assert has_processes(on_gpu, groups, CONFIG), "it has one, however many are asked for"
    assert has_processes(own, groups, CONFIG, promised=[on_gpu]), "what small models share does not count"
    assert not has_processes(own, groups[1:], CONFIG, promised=[on_gpu] * 2)
    assert not has_processes(own, groups, CONFIG, promised=[on_gpu] * 2)
    assert has_processes(own, groups, CONFIG, promised=[on_gpu] * 2, replaces=2)
    assert not has_processes(own, groups, CONFIG, promised=[on_gpu] * 2, replaces=1), "others are in it"
    large = make_version("large", file_bytes=5000, parameters=OWN)
    assert has_processes(large, groups, CONFIG, promised=[on_gpu] * 9), "it shares with nobody in any case"


def test_a_process_is_there_again_for_one_that_left_whatever_came_meanwhile() -> None:
    """Two with workers of their own and small ones, where there are two processes: as at the start, so later."""
    config = PlacementConfig(max_processes=2, share_below_bytes=1000)
    own, other = (make_version(name, file_bytes=10, parameters=OWN) for name in ("own", "other"))
    placements = place(
        [own, other, *(make_version(str(number), file_bytes=10) for number in range(3))], [], config
    )
    groups = [
        GroupLoad(
            group=number, device=CPU, shared=each.shared, processes=each.processes, models=len(each.models)
        )
        for number, each in enumerate(placements)
    ]
    assert sum(group.processes for group in groups) == 3
    (left,) = (number for number, each in enumerate(placements) if each.models == (own,))
    assert has_processes(own, [group for group in groups if group.group != left], config)
    assert not has_processes(own, groups, config)


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
