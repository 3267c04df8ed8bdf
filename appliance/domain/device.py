"""A device that models run on, in words: what it is called, what it is, how it is, what ails it.

What a driver does not tell is None, never zero: who adds figures up must be able to leave it out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
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


FATAL_XIDS: Final = frozenset({48, 64, 74, 79, 95, 119, 120, 140})
"""Errors after which NVIDIA asks for a reset: double-bit ECC, a row that could not be remapped, NVLink, fallen off the
bus, uncontained ECC, the GPU's own processor (GSP) silent or in error, unrecovered ECC."""
THROTTLED: Final = ("hardware slowdown", "hardware thermal slowdown", "power brake")
"""Reasons of low clocks that are trouble; a power cap and software's own thermal limit are everyday."""


class MigTrouble(Enum):
    """Why a GPU, or an instance of it (MIG), is not the device any more that was found at the start."""

    EMPTY = "empty"
    """MIG is on, and there is no instance: the GPU as a whole runs no models then."""
    SWITCHED = "switched"
    """MIG was switched on or off since."""
    REMOVED = "removed"
    """The instance was destroyed."""


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
        return f"Device {self.index} ({self.name}, {self.uuid})"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """How a device stands to versions: what they may take of its memory together, why it takes none of them ("": it
    does), whether what it holds is gone with it, and why others are better for them ("": they are not)."""

    device: Device
    budget_bytes: int
    fault: str = ""
    gone: bool = False
    slow: str = ""


CAPABILITY_PARAMETER: Final = "min_compute_capability"
"""The parameter of a model that says which compute capability (CUDA's) a device has at least: "8.9"."""
UUIDS_PARAMETER: Final = "gpu_uuids"
"""The parameter of a model that names devices by their UUIDs, or the beginnings of these: "GPU-5c,MIG-0f"."""
WISH_PARAMETERS: Final = frozenset((CAPABILITY_PARAMETER, UUIDS_PARAMETER))
UUIDS_MAX: Final = 64
"""As many as GPUs can be named by number."""
_CAPABILITY: Final = re.compile(r"([1-9][0-9]?)\.([0-9])")
_UUID: Final = re.compile(r"(GPU|MIG)-[0-9a-f][0-9a-f-]{0,35}")


@dataclass(frozen=True, slots=True)
class DeviceWish:
    """What a version asks for: a kind, and which of those, all of it at once: ``indexes`` and ``uuids`` name any of
    them (none named: any), ``capability`` is the least. A UUID may be the beginning of one."""

    kind: DeviceKind
    indexes: tuple[int, ...] = ()
    capability: tuple[int, int] | None = None
    uuids: tuple[str, ...] = ()

    @property
    def first(self) -> DeviceName:
        """The device that it gets where nothing is known of any."""
        return DeviceName(self.kind, min(self.indexes, default=0))

    @property
    def by_number(self) -> DeviceWish:
        """What of it can be told of devices of which nothing but the number is known."""
        return DeviceWish(self.kind, self.indexes)

    def allows(self, device: Device) -> bool:
        """Whether the version may run there; not where what it asks for is not known of the device."""
        return (
            device.kind is self.kind
            and (not self.indexes or device.index in self.indexes)
            and (not self.uuids or device.uuid.startswith(self.uuids))
            and (self.capability is None or self.capability <= (device.capability or (0, 0)))
        )

    def among(self, devices: Sequence[Device]) -> tuple[Device, ...]:
        """Those of ``devices``, which are all of this machine, that the version may run on; none, where it names a
        number that is not there, or a beginning of several UUIDs."""
        absent = set(self.indexes) - {device.index for device in devices}
        return () if absent or self.ambiguous(devices) else tuple(filter(self.allows, devices))

    def ambiguous(self, devices: Sequence[Device]) -> tuple[str, ...]:
        """Those of its UUIDs with which more than one of ``devices`` begins."""
        return tuple(
            each for each in self.uuids if sum(device.uuid.startswith(each) for device in devices) > 1
        )

    def __str__(self) -> str:
        """``cpu``, ``cuda``, or ``cuda:0,2``."""
        return f"{self.kind.value}:{','.join(map(str, self.indexes))}" if self.indexes else self.kind.value


def wish_problem(key: str, said: str) -> str:
    """What is wrong with ``said`` as the value of ``key``, one of WISH_PARAMETERS; "" when nothing is."""
    if key == CAPABILITY_PARAMETER and not _CAPABILITY.fullmatch(said):
        return f"{key} must be a compute capability such as 8.9, not '{said[:40]}'"
    uuids = said.split(",", UUIDS_MAX - 1) if key == UUIDS_PARAMETER else []
    wrong = next((each for each in uuids if not _UUID.fullmatch(each)), None)
    if wrong is not None:
        return (
            f"{key} must be UUIDs of GPUs (GPU-...) or of instances (MIG-...) as nvidia-smi -L prints them, or "
            f"their beginnings, up to {UUIDS_MAX}, with commas between them and nothing else, not '{wrong[:40]}'"
        )
    return ""


def gpu_wish(parameters: Mapping[str, str]) -> DeviceWish:
    """What ``parameters`` ask for of a GPU; what is wrong (``wish_problem``) asks for nothing."""
    found = _CAPABILITY.fullmatch(parameters.get(CAPABILITY_PARAMETER, ""))
    capability = (int(found[1]), int(found[2])) if found else None
    uuids = parameters.get(UUIDS_PARAMETER, "")
    named = () if wish_problem(UUIDS_PARAMETER, uuids) else tuple(dict.fromkeys(uuids.split(",")))
    return DeviceWish(DeviceKind.CUDA, capability=capability, uuids=named)


def parse_wish(text: str) -> DeviceWish:
    """What ``text`` asks for: ``cuda`` any GPU, ``cuda:1`` that one. Raises ValueError."""
    named = parse_device(text)
    return DeviceWish(named.kind, (named.index,) if ":" in text else ())


ON_CPU: Final = DeviceWish(DeviceKind.CPU)
ON_CUDA: Final = DeviceWish(DeviceKind.CUDA)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeBoard:
    """What the driver tells of a GPU with instances as a whole, and of none of these; ``uuid`` is the GPU's."""

    uuid: str
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A device at one moment. ``energy_j`` counts since the driver was loaded; ``throttle`` are the reasons of clocks
    below what was asked; ``xids`` the driver's errors, the newest last, ``processes`` bytes by process. ``lost``: the
    driver cannot reach it; ``silent``: the driver does not come back from asking it; ``driver_changed``: it is not the
    driver any more whose library this process has loaded; ``mig_trouble``: it is not the device any more that was
    found. An instance has memory and processes of its own, no power and no energy, which are the ``board``'s; all else
    is what its GPU tells."""

    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    utilization: float | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    remapped_rows: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    pcie_replays: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    throttle: tuple[str, ...] | None = None
    processes: Mapping[int, int] | None = None
    xids: tuple[int, ...] = ()
    lost: bool = False
    silent: bool = False
    driver_changed: bool = False
    mig_trouble: MigTrouble | None = None
    board: WholeBoard | None = None

    @property
    def counter_j(self) -> float | None:
        """The counter of energy that begins anew with the driver, whosever it is."""
        return self.energy_j if self.board is None else self.board.energy_j


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionEnergy:
    """What one model version used of a device: ``joules`` above idle, the rows answered in the same windows, and how
    long these were together."""

    joules: float
    inferences: int
    window_s: float

    @property
    def per_inference_j(self) -> float | None:
        """Joules of one row; None before the first."""
        return self.joules / self.inferences if self.inferences else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFigures:
    """A device with its last reading. ``idle_w`` is what it draws when nothing runs (None: not seen yet); ``energy`` is
    by version, ``NAME/VERSION``; ``budget_bytes`` is what versions may take of its memory, ``others_bytes`` what other
    processes have, ``unsaid_bytes`` what the appliance's own have and no version says it takes (None: that is not
    known). ``slow``: see DeviceState."""

    device: Device
    reading: Reading
    idle_w: float | None = None
    energy: Mapping[str, VersionEnergy] = field(default_factory=lambda: MappingProxyType({}))
    budget_bytes: int | None = None
    others_bytes: int | None = None
    unsaid_bytes: int | None = None
    slow: str = ""


_MIG_TROUBLES: Final = MappingProxyType(
    {
        MigTrouble.EMPTY: "has MIG on and no instance for models; make one (nvidia-smi mig -cgi PROFILE -C)",
        MigTrouble.SWITCHED: "is not what it was, as MIG was switched on or off",
        MigTrouble.REMOVED: "is gone, as its MIG instance was destroyed",
    }
)


def faults(reading: Reading) -> Iterator[str]:
    """Why nothing is to be trusted to the device; one sentence's end for each."""
    if reading.mig_trouble is not None:
        yield f"{_MIG_TROUBLES[reading.mig_trouble]}; start the appliance anew"
    if reading.lost:
        yield "is lost: the driver cannot reach it any more; power the machine off and on"
    if reading.silent:
        yield "does not answer: the driver has not come back from asking it; power the machine off and on"
    if reading.ecc_uncorrected:
        yield f"had {reading.ecc_uncorrected} uncorrected memory errors since the driver was loaded; reset it"
    if reading.remap_failed:
        yield "could not remap a broken row of its memory; replace it"
    fatal = dict.fromkeys(xid for xid in reading.xids if xid in FATAL_XIDS)
    if fatal:
        yield f"reported Xid {', '.join(map(str, fatal))}; reset it, and replace it when that comes back"


def is_gone(reading: Reading) -> bool:
    """Whether what the device held is gone with it."""
    return reading.lost or reading.silent or reading.mig_trouble is not None


def throttled(reasons: Sequence[str]) -> tuple[str, ...]:
    """Those of the reasons for low clocks that are trouble."""
    return tuple(reason for reason in reasons if reason in THROTTLED)


def troubles(reading: Reading) -> Iterator[str]:
    """All that ails the device: its faults, and what is to be seen to."""
    yield from faults(reading)
    if reading.remap_pending and not reading.remap_failed:
        yield "has a row of memory to remap, which its next reset does"
    if reasons := throttled(reading.throttle or ()):
        yield f"runs slowly because of {', '.join(reasons)}; look at its cooling and its power"
    if reading.driver_changed:
        yield "is not told of any more: its driver was changed under the appliance; start the appliance anew"
