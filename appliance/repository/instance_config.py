"""What ``instance_group`` of a ``config.pbtxt`` says: how many workers a version has, and which devices it may run on.

Which of those devices there are is not known here, but for what KIND_AUTO stands for on this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from appliance.config.repository import RepositoryConfig
from appliance.domain.device import DeviceKind
from appliance.domain.device_wish import ON_CPU, ON_CUDA, DeviceWish
from appliance.repository.noted import Json
from appliance.repository.section import NO_EFFECT, Section

_UNOFFERED: Final = MappingProxyType(
    {
        "rate_limiter": "is not offered: the scheduler bounds work by deadlines; remove it",
        "secondary_devices": "is not offered; remove it",
        "profile": "is not offered: optimization profiles belong to another runtime; remove it",
        "passive": "is not offered: every instance takes requests; remove it",
    }
)
AUTO: Final = "KIND_AUTO"
NAMED_KINDS: Final = MappingProxyType({"KIND_CPU": DeviceKind.CPU, "KIND_GPU": DeviceKind.CUDA})
GPUS_MAX: Final = 64
"""Numbers of GPUs that can be named: more than any machine has."""
INSTANCES_MAX: Final = 64
"""Worker processes of one model version: more than any edge box has processors for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """Workers of one model version and the device that they ask for, and the groups as written. ``auto``: KIND_AUTO
    says on which kind of device they run."""

    count: int = 1
    device: DeviceWish = ON_CPU
    groups: tuple[dict[str, Json], ...] = ()
    auto: bool = False


ONE_INSTANCE: Final = Instances()


def read_instances(section: Section, settings: RepositoryConfig, wish: DeviceWish) -> Instances:
    """What all ``instance_group`` entries say together: their counts add up, their kind must be one, and the version
    may run on any GPU that one of them names, on any at all where one names none, if it is what else is the ``wish``
    of a GPU."""
    written_groups = tuple(section.sections("instance_group"))
    if not written_groups:
        return ONE_INSTANCE
    gpus = [tuple(sorted(set(each.integers("gpus", maximum=GPUS_MAX - 1)))) for each in written_groups]
    wish = replace(wish, indexes=tuple(sorted(set().union(*gpus))) if all(gpus) else ())
    auto = _auto_kind(written_groups, settings, wish)
    groups = [_read_group(group, auto, named) for group, named in zip(written_groups, gpus, strict=True)]
    if len({group.device.kind for group in groups}) > 1:
        section.problem("instance_group", "groups on different devices are not offered; keep one kind")
    count = sum(group.count for group in groups)
    if count > INSTANCES_MAX:
        section.problem("instance_group", f"asks for {count} instances; the limit is {INSTANCES_MAX}")
    written = tuple(each for group in groups for each in group.groups)
    on_cpu = groups[0].device.kind is DeviceKind.CPU
    decided = not _named_kinds(written_groups)
    return Instances(count=count, device=ON_CPU if on_cpu else wish, groups=written, auto=decided)


def _named_kinds(groups: Sequence[Section]) -> frozenset[DeviceKind]:
    """Those that groups name; none where KIND_AUTO decides."""
    named = {group.name("kind") for group in groups}
    return frozenset(kind for word, kind in NAMED_KINDS.items() if word in named)


def _auto_kind(groups: Sequence[Section], settings: RepositoryConfig, wish: DeviceWish) -> DeviceKind:
    """What KIND_AUTO stands for: the kind that other groups of the model name, so that no model is refused for what
    machine it is on, else the machine's for the ``wish``."""
    if len(named := _named_kinds(groups)) == 1:
        return next(iter(named))
    found = settings.auto_kind(wish)
    if found is not settings.auto_kind(ON_CUDA):
        groups[0].note("KIND_AUTO is the processor here: no GPU that can be used is what the model asks for")
    return found


def _read_group(group: Section, auto: DeviceKind, gpus: tuple[int, ...]) -> Instances:
    group.refuse(_UNOFFERED)
    group.ignore(("host_policy",), NO_EFFECT)
    device = _read_device(group, auto, gpus)
    count = group.integer("count", default=1) or 1
    if device.kind is not DeviceKind.CPU and count > 1:
        group.ignore(("count",), f"{NO_EFFECT}: on a GPU a version has one worker")
    host_policy = group.text("host_policy")
    written: dict[str, Json] = {
        "name": group.text("name"),
        "kind": "KIND_CPU" if device.kind is DeviceKind.CPU else "KIND_GPU",
        "count": count,
        "gpus": list[Json](device.indexes),
        "host_policy": host_policy,
    }
    group.close()
    return Instances(
        count=count, device=device, groups=({key: each for key, each in written.items() if each},)
    )


def _read_device(group: Section, auto: DeviceKind, gpus: tuple[int, ...]) -> DeviceWish:
    """The kind, and the GPUs that are allowed; which of those there are is not known here."""
    kind = group.name("kind") or AUTO
    kinds = {**NAMED_KINDS, AUTO: auto}
    if kind not in kinds:
        group.problem("kind", f"'{kind}' is not offered; expected one of {', '.join(kinds)}")
    found = kinds.get(kind, DeviceKind.CPU)
    if found is DeviceKind.CPU and group.has("gpus"):
        if kind != AUTO:
            group.problem(
                "gpus", "GPUs are named, and the group is not of KIND_GPU; say so, or leave them out"
            )
        elif gpus:
            group.note("KIND_AUTO is the processor here, where 'gpus' has no effect")
        return ON_CPU
    return DeviceWish(found, gpus)
