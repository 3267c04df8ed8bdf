"""A device that models run on, in words: what it is called, and what it is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final


class DeviceKind(Enum):
    """What a device is."""

    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class DeviceName:
    """One device of this machine: ``index`` is how the driver counts those of its kind. Of processors there is one."""

    kind: DeviceKind
    index: int = 0

    def __post_init__(self) -> None:
        assert self.index >= 0, "devices are counted from nothing"
        assert not (self.index and self.is_cpu), "there is one processor"

    @property
    def is_cpu(self) -> bool:
        """Whether it is the processor."""
        return self.kind is DeviceKind.CPU

    def __str__(self) -> str:
        """``cpu``, or ``cuda:1``."""
        return self.kind.value if self.is_cpu else f"{self.kind.value}:{self.index}"


def parse_device(text: str) -> DeviceName:
    """The device that ``text`` names; ``cuda`` alone is the first one. Raises ValueError."""
    word, colon, index = text.partition(":")
    kinds = [each.value for each in DeviceKind]
    counted = index.isascii() and index.isdecimal() and len(index) < DIGITS_MAX
    if word not in kinds or (colon and (not counted or word == DeviceKind.CPU.value)):
        raise ValueError(
            f"'{text[:40]}' is no device; expected one of {', '.join(kinds)}, cuda:0, cuda:1 and so on"
        )
    return DeviceName(DeviceKind(word), int(index or 0))


DIGITS_MAX: Final = 10
CPU: Final = DeviceName(DeviceKind.CPU)


def cuda(index: int) -> DeviceName:
    """The GPU of that number."""
    return DeviceName(DeviceKind.CUDA, index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """``index`` is how models name it: GPUs in the driver's order, each instance (MIG) counted in the place of its GPU.
    ``uuid`` stays with the board, or with the instance; ``capability`` is CUDA's. ``near`` are the processors that are
    nearest to it. ``mig``: MIG is on. ``instance_of`` is the UUID of the GPU that an instance is part of, "" for a
    whole one."""

    kind: DeviceKind
    index: int
    uuid: str
    name: str
    driver: str
    memory_bytes: int | None = None
    capability: tuple[int, int] | None = None
    near: tuple[int, ...] | None = None
    mig: bool | None = None
    instance_of: str = ""

    @property
    def called(self) -> DeviceName:
        """Its name."""
        return DeviceName(self.kind, self.index)

    @property
    def title(self) -> str:
        """What people tell it by."""
        return f"{self.called} ({self.name}, {self.uuid})"


def visible(devices: Sequence[Device]) -> dict[DeviceName, str]:
    """By which UUID each of ``devices`` is named to CUDA. Where a GPU has MIG on, CUDA shows a process one instance at
    most, and maybe no other GPU, unless it is told which; elsewhere it counts as the driver does, and none is named."""
    if not any(each.mig for each in devices):
        return {}
    return {each.called: each.uuid for each in devices}


def neighbours(devices: Sequence[Device], allowed: Collection[int]) -> dict[DeviceName, tuple[int, ...]]:
    """The processors to which work for each of ``devices`` is best bound, of those that are ``allowed``: the memory of
    others is further away. A device is left out where there is nothing to choose, or nothing is known."""
    near = {each.called: tuple(sorted(set(each.near or ()) & set(allowed))) for each in devices}
    return {device: cpus for device, cpus in near.items() if 0 < len(cpus) < len(set(allowed))}
