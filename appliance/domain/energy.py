"""What an inference costs in energy and money, and how both are said. Pure.

What is not known is None, never zero: an inference of which nothing is counted is not free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, log10
from typing import Final, NamedTuple

from appliance.domain.device_reading import VersionEnergy

KWH_J: Final = 3_600_000
MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorEnergy:
    """What versions on the processor used, by NAME/VERSION; ``idle_w`` is what all its packages draw when nothing runs
    (None: not seen yet)."""

    idle_w: float | None
    versions: Mapping[str, VersionEnergy]


class InferenceEnergy(NamedTuple):
    """Of one row: ``joules``, and what a million of them cost, in the currency of the price (None: there is no
    price)."""

    joules: float
    cost_per_million: float | None = None


def inference_energy(used: VersionEnergy | None, kwh_price: float) -> InferenceEnergy | None:
    """What one row took of what a version ``used``; None where that is not known. ``kwh_price`` is what a kWh costs
    (0: not known)."""
    joules = used.per_inference_j if used is not None else None
    if joules is None:
        return None
    return InferenceEnergy(joules, joules * MILLION / KWH_J * kwh_price if kwh_price else None)


def joules_text(joules: float) -> str:
    """For people: 1.25 J, 20.0 mJ, 310 uJ."""
    for unit, scale in (("J", 1.0), ("mJ", 1e3)):
        if joules * scale >= 1:
            return f"{_three_figures(joules * scale)} {unit}"
    return f"{_three_figures(joules * 1e6)} uJ"


def cost_text(cost: float) -> str:
    """For people, without a currency: 12.5, 0.00167."""
    return _three_figures(cost)


def watts_text(watts: float) -> str:
    """For people: 81 W, 6.5 W."""
    return f"{watts:.{0 if watts >= 10 else 1}f} W"


def _three_figures(value: float) -> str:
    """Never as a power of ten, which few read; whole numbers keep all of theirs."""
    if value <= 0:
        return "0"
    return f"{value:.{min(max(2 - floor(log10(value)), 0), 12)}f}"
