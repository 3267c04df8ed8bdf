"""The ``instance_group`` part of a model's configuration: how many workers, and on which device."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from appliance.config.repository import RepositoryConfig
from appliance.repository.section import Section

_UNOFFERED: Final = MappingProxyType(
    {
        "rate_limiter": "is not offered: the scheduler bounds work by deadlines; remove it",
        "secondary_devices": "is not offered; remove it",
        "profile": "is not offered: optimization profiles belong to another runtime; remove it",
        "passive": "is not offered: every instance takes requests; remove it",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """Workers of one model version and the device ("cpu" or "cuda") they run on."""

    count: int = 1
    device: str = "cpu"


ONE_INSTANCE: Final = Instances()
INSTANCES_MAX: Final = 64
"""Worker processes of one model version: more than any edge box has processors for."""


def read_instances(section: Section, settings: RepositoryConfig) -> Instances:
    """What all ``instance_group`` entries say together: their counts add up, their devices must be one."""
    groups = [_read_group(group, settings) for group in section.sections("instance_group")]
    if not groups:
        return ONE_INSTANCE
    if len({group.device for group in groups}) > 1:
        section.problem("instance_group", "groups on different devices are not offered; keep one kind")
    count = sum(group.count for group in groups)
    if count > INSTANCES_MAX:
        section.problem("instance_group", f"asks for {count} instances; the limit is {INSTANCES_MAX}")
    return Instances(count=count, device=groups[0].device)


def _read_group(group: Section, settings: RepositoryConfig) -> Instances:
    group.refuse(_UNOFFERED)
    group.ignore(("host_policy",), "is accepted, but has no effect here")
    group.text("name")  # names the instances in other servers' logs; nothing to check
    device = _read_device(group, settings)
    if any(group.integers("gpus")) or (group.has("gpus") and device == "cpu"):
        group.problem("gpus", "only GPU 0 is offered, and only with KIND_GPU; leave it out or say [ 0 ]")
    count = group.integer("count", default=1) or 1
    group.close()
    return Instances(count=count, device=device)


def _read_device(group: Section, settings: RepositoryConfig) -> str:
    kind = group.name("kind") or "KIND_AUTO"
    devices = {"KIND_CPU": "cpu", "KIND_GPU": "cuda", "KIND_AUTO": settings.auto_device}
    if kind not in devices:
        group.problem("kind", f"'{kind}' is not offered; expected one of {', '.join(devices)}")
    return devices.get(kind, "cpu")
