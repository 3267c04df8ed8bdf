"""What a version asks for of the devices of a machine."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from appliance.domain.device import Device, DeviceKind, DeviceName, parse_device

CAPABILITY_PARAMETER: Final = "min_compute_capability"
"""The parameter of a model that says which compute capability (CUDA's) a device has at least: "8.9"."""
UUIDS_PARAMETER: Final = "gpu_uuids"
"""The parameter of a model that names devices by their UUIDs, or the beginnings of these: "GPU-5c,MIG-0f"."""
WISH_PARAMETERS: Final = frozenset((CAPABILITY_PARAMETER, UUIDS_PARAMETER))
UUIDS_MAX: Final = 64
"""As many as GPUs can be named by number."""
SHOWN_MAX: Final = 8
"""Devices, or UUIDs, in one text."""
_CAPABILITY: Final = re.compile(r"([1-9][0-9]?)\.([0-9])|([1-9]|1[0-9])")
"""Without a point it is the first of a generation; 89 is none, but sm_89 said otherwise."""
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
    uuids = _named(said) if key == UUIDS_PARAMETER else ()
    wrong = next((each for each in uuids if not _UUID.fullmatch(each)), None)
    if wrong is not None:
        hint = f" (numbers are for gpus: [ {wrong[:2]} ] in instance_group)" if wrong.isdecimal() else ""
        return (
            f"{key} must be UUIDs of GPUs (GPU-...) or of instances (MIG-...) as nvidia-smi -L prints them, or "
            f"their beginnings, up to {UUIDS_MAX}, with commas between them{hint}, not '{wrong[:40]}'"
        )
    return ""


def _named(said: str) -> tuple[str, ...]:
    """UUIDs as they are named, spaces around commas or not; what is more than may be stays with the last one."""
    return tuple(each.strip(" ") for each in said.split(",", UUIDS_MAX - 1))


def gpu_wish(parameters: Mapping[str, str]) -> DeviceWish:
    """What ``parameters`` ask for of a GPU; what is wrong (``wish_problem``) asks for nothing."""
    found = _CAPABILITY.fullmatch(parameters.get(CAPABILITY_PARAMETER, ""))
    capability = (int(found[1] or found[3]), int(found[2] or 0)) if found else None
    uuids = parameters.get(UUIDS_PARAMETER, "")
    named = () if wish_problem(UUIDS_PARAMETER, uuids) else tuple(dict.fromkeys(_named(uuids)))
    return DeviceWish(DeviceKind.CUDA, capability=capability, uuids=named)


def parse_wish(text: str) -> DeviceWish:
    """What ``text`` asks for: ``cuda`` any GPU, ``cuda:1`` that one. Raises ValueError."""
    named = parse_device(text)
    return DeviceWish(named.kind, (named.index,) if ":" in text else ())


def absence(wish: DeviceWish, there: Sequence[Device]) -> str:
    """What is asked for that none of ``there`` is, all devices of the machine, and what these are. Clients are told it,
    so nothing in it identifies a board but what the wish itself says."""
    asked = ", ".join(_asked(wish, {device.index for device in there}))
    if not there:
        return f"asks for {asked}, and NVML tells of no GPU here; 'notices' of 'appliance status' say why"
    several = wish.ambiguous(there)
    advice = (
        f"several begin with {_few(several)}: give more of it"
        if several
        else "ask for one of those, or for any"
    )
    return f"asks for {asked}, and the driver tells of {_few(list(map(_told, there)))}; {advice}"


def wish_text(wish: DeviceWish) -> str:
    """Where it asks to run, in words."""
    if wish.kind is DeviceKind.CPU:
        return "the processor"
    asked = ", ".join(_asked(wish, ()))
    return f"a GPU: {asked}" if asked else "a GPU"


def capability_text(wish: DeviceWish) -> str:
    """The least capability that is asked for, as a configuration says it; "" for none."""
    return "" if wish.capability is None else _dotted(wish.capability)


def _asked(wish: DeviceWish, there: Collection[int]) -> Iterator[str]:
    """Each thing that is asked for; of numbers those that are not ``there``, where some are not."""
    if wish.indexes:
        absent = [index for index in wish.indexes if index not in there] or wish.indexes
        yield f"{', '.join(f'{wish.kind.value}:{index}' for index in absent)} (instance_group.gpus)"
    if wish.capability is not None:
        yield f"compute capability {_dotted(wish.capability)} or more ({CAPABILITY_PARAMETER})"
    if wish.uuids:
        yield f"UUID {_few(wish.uuids)} ({UUIDS_PARAMETER})"


def _told(device: Device) -> str:
    capability = "unknown" if device.capability is None else _dotted(device.capability)
    return f"{device.called} (compute capability {capability})"


def _dotted(capability: tuple[int, int]) -> str:
    return "{}.{}".format(*capability)


def _few(told: Sequence[str]) -> str:
    """The first of them, and how many there are besides."""
    more = len(told) - SHOWN_MAX
    return ", ".join([*told[:SHOWN_MAX], *([f"and {more} more"] if more > 0 else [])])


ON_CPU: Final = DeviceWish(DeviceKind.CPU)
ON_CUDA: Final = DeviceWish(DeviceKind.CUDA)
