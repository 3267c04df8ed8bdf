"""Where instance groups of KIND_AUTO run: decided by what was found when the process began.

That is a GPU, for models of which one that was found is what they ask for; a GPU that is found or lost later changes
nothing of it. What only judges a model need not decide: no verdict depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from appliance.config.repository import RepositoryConfig, SettledRepository
from appliance.devices.watch import DeviceWatch, find_devices
from appliance.domain.binding import extended
from appliance.domain.device import Device, DeviceKind
from appliance.domain.device_reading import faults
from appliance.runtimes.distributions import clash, cuda_problem, cuda_remedy

AUTO: Final = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What this machine has for models on a GPU. ``lacking``: why the installed runtime can use none ("": it can).
    ``devices``: what is wrong with each ("": nothing is); ``problem``: why the driver tells of none."""

    lacking: str = ""
    devices: Mapping[Device, str]
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoDevice:
    """What KIND_AUTO stands for, and why; ``usable`` are the GPUs that can be used. ``troubled``: none can, although
    there are some, or the driver does not tell."""

    kind: DeviceKind
    reason: str
    usable: tuple[Device, ...] = ()
    troubled: bool = False


def decide(found: Found) -> AutoDevice:
    """A GPU where one can be used, else the processor."""
    usable = tuple(device for device, fault in found.devices.items() if not fault)
    if usable and not found.lacking:
        names = ", ".join(str(device.called) for device in usable)
        return AutoDevice(kind=DeviceKind.CUDA, reason=f"{names} can be used", usable=usable)
    faulty = [f"{device.called} {fault}" for device, fault in found.devices.items() if fault]
    reason = found.lacking or found.problem or "; ".join(faulty) or "the driver tells of no GPU"
    return AutoDevice(kind=DeviceKind.CPU, reason=reason, troubled=bool(found.devices or found.problem))


def look(watch: DeviceWatch, lacking: str) -> Found:
    """What there is, by the last look at all devices."""
    return Found(
        lacking=lacking,
        devices={device: "; ".join(faults(seen.reading)) for device, seen in watch.looks()},
        problem=watch.problem,
    )


def settled(
    repository: RepositoryConfig,
    watch: DeviceWatch | None = None,
    tell: Callable[[AutoDevice], None] = lambda decided: None,
) -> SettledRepository:
    """``repository`` with a device in the place of "auto". Without a ``watch`` devices are looked for, where a runtime
    can use them: that takes a second. ``tell`` is told where anything of a GPU is here, whatever models say."""
    section = extended(SettledRepository, repository)
    if section.auto_device != AUTO:
        return section
    lacking = cuda_problem()
    if watch is None and not lacking:
        watch = find_devices()
    found = Found(lacking=lacking, devices={}) if watch is None else look(watch, lacking)
    decided = decide(found)
    if found.devices or not lacking:
        tell(decided)
    sound = any(not fault for fault in found.devices.values())
    return replace(
        section,
        auto_device=decided.kind.value,
        gpus=tuple(found.devices),
        usable=decided.usable,
        unused=_unused(lacking) if lacking and sound else "",
    )


def _unused(lacking: str) -> str:
    """With what to do, which a clash says by itself."""
    return lacking if clash("onnx") else f"{lacking}; {cuda_remedy()}"
