"""Which model versions share a worker process. Pure.

A version gets a process of its own while there are processes left to give. Beyond that, versions whose file is small
share: a crash then costs the whole group its batches in flight, which is the price of fitting a thousand models into
one box. Versions for a GPU share one process per device, because a CUDA context is dear. One that asks for a worker of
its own never shares: it waits until there is a process for it, and others leave that to it while it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from appliance.config.workers import PlacementConfig
from appliance.domain.device import CPU, DeviceName
from appliance.domain.model import ModelVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLoad:
    """A group as it is: how many processes it has, how many models, whether small models may join it."""

    group: int
    device: DeviceName
    shared: bool
    processes: int
    models: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Models for one group. ``group`` is -1 for a new one."""

    group: int
    device: DeviceName
    shared: bool
    processes: int
    models: tuple[ModelVersion, ...]


def processes_of(model: ModelVersion) -> int:
    """How many processes it has that shares with no other version."""
    return max(model.instance_count, 1) if model.on_cpu else 1


def has_processes(
    model: ModelVersion,
    groups: Sequence[GroupLoad],
    config: PlacementConfig,
    *,
    promised: Sequence[ModelVersion] = (),
    replaces: int = -1,
) -> bool:
    """Whether there are processes for a version that asks for a worker of its own; one that is too large to share gets
    its own in any case. ``promised`` are others that have none now, and are to have theirs whenever they want it; what
    it ``replaces`` (a group) has its own for a while longer, which do not count. Nor does one process of small models:
    ``place`` has them share one when those with workers of their own have taken all, so that it must not depend on who
    came first."""
    if model.on_cpu and not _may_share(model, config):
        return True
    used = sum(group.processes for group in groups if group.shared or group.group != replaces)
    used -= any(group.shared and group.device.is_cpu for group in groups)
    return used + sum(map(processes_of, promised)) + processes_of(model) <= config.max_processes


def place(
    wanted: Sequence[ModelVersion],
    groups: Sequence[GroupLoad],
    config: PlacementConfig,
    *,
    alone: bool = False,
    promised: Sequence[ModelVersion] = (),
    device_of: Callable[[ModelVersion], DeviceName] = lambda model: model.device.first,
) -> tuple[Placement, ...]:
    """Where each of ``wanted`` goes, next to the ``groups`` there are. Every model is in exactly one placement.
    ``alone``: those for the CPU share with nobody, however many processes there are; ``promised``: see has_processes;
    ``device_of`` says which device was chosen for a version."""
    if alone:
        config = replace(config, share_below_bytes=0)
    own = [model for model in wanted if model.own_worker]
    rest = [model for model in wanted if not model.own_worker]
    on_gpu = [model for model in rest if not model.on_cpu]
    large = [model for model in rest if model.on_cpu and not _may_share(model, config)]
    small = [model for model in rest if model.on_cpu and _may_share(model, config)]
    placements = [_alone(model, device_of(model)) for model in own]
    placements += [*_on_devices(on_gpu, groups, device_of), *map(_alone, large)]
    used = sum(group.processes for group in groups) + sum(placement.processes for placement in placements)
    used += sum(map(processes_of, promised))
    left = config.max_processes - used
    sharing = [group for group in groups if group.shared and group.device.is_cpu]
    if len(small) <= left:
        placements.extend(map(_alone, small))
    elif small:
        placements.extend(_spread(small, sharing, max(left, 0)))
    return tuple(placements)


def _may_share(model: ModelVersion, config: PlacementConfig) -> bool:
    return model.instance_count == 1 and model.file_bytes < config.share_below_bytes


def _alone(model: ModelVersion, device: DeviceName = CPU) -> Placement:
    return Placement(group=-1, device=device, shared=False, processes=processes_of(model), models=(model,))


def _on_devices(
    models: Sequence[ModelVersion],
    groups: Sequence[GroupLoad],
    device_of: Callable[[ModelVersion], DeviceName],
) -> list[Placement]:
    placements = []
    for device in sorted(set(map(device_of, models)), key=str):
        there = next((group for group in groups if group.shared and group.device == device), None)
        placements.append(
            Placement(
                group=there.group if there else -1,
                device=device,
                shared=True,
                processes=0 if there else 1,
                models=tuple(model for model in models if device_of(model) == device),
            )
        )
    return placements


def _spread(small: Sequence[ModelVersion], sharing: Sequence[GroupLoad], new: int) -> list[Placement]:
    """Fill the emptiest first; ``new`` groups may be opened, at least one when there is none to join."""
    if not sharing and new == 0:
        new = 1
    filled: list[tuple[int, int, list[ModelVersion]]] = [(group.models, group.group, []) for group in sharing]
    filled.extend((0, -1, []) for _ in range(min(new, len(small))))
    counts = [models for models, _, _ in filled]
    for model in small:
        emptiest = min(range(len(filled)), key=counts.__getitem__)
        filled[emptiest][2].append(model)
        counts[emptiest] += 1
    return [
        Placement(group=group, device=CPU, shared=True, processes=int(group < 0), models=tuple(models))
        for _, group, models in filled
        if models
    ]
