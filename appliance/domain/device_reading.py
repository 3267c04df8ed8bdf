"""How a device is: what its driver tells of it at one moment, what ails it, and how it stands to versions.

What a driver does not tell is None, never zero: who adds figures up must be able to leave it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from appliance.domain.device import Device

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
class DeviceState:
    """How a device stands to versions: what they may take of its memory together, why it takes none of them ("": it
    does), whether what it holds is gone with it, and why others are better for them ("": they are not)."""

    device: Device
    budget_bytes: int
    fault: str = ""
    gone: bool = False
    slow: str = ""


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
    if fatal := _fatal(reading):
        yield f"reported Xid {fatal}; reset it, and replace it when that comes back"


def fault_words(reading: Reading) -> str:
    """The same in a few words, for a line that has other things to say; "" where there is none."""
    errors, fatal = reading.ecc_uncorrected, _fatal(reading)
    words = {
        "MIG": reading.mig_trouble is not None,
        "lost": reading.lost,
        "no answer": reading.silent,
        f"{errors} memory error{'s' * (errors != 1)}": bool(errors),
        "broken row of memory": bool(reading.remap_failed),
        f"Xid {fatal}": bool(fatal),
    }
    return ", ".join(each for each, there in words.items() if there)


def _fatal(reading: Reading) -> str:
    """The driver's errors after which nothing is to be trusted to the device, each once."""
    return ", ".join(map(str, dict.fromkeys(xid for xid in reading.xids if xid in FATAL_XIDS)))


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
