"""Figures of accelerators as Prometheus families. Pure. What a driver does not tell has no sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from appliance.domain.device import CPU
from appliance.domain.device_reading import DeviceFigures, Reading, WholeBoard, faults, troubles
from appliance.domain.energy import inference_energy
from appliance.telemetry.metrics.exposition import Family, family, label_text
from appliance.telemetry.snapshot import Snapshot

_DRAWN: Final[tuple[tuple[str, str, Callable[[Reading | WholeBoard], float | None]], ...]] = (
    ("power_watts", "Power drawn now.", lambda each: each.power_w),
    ("power_limit_watts", "Power it may draw.", lambda each: each.power_limit_w),
    ("energy_joules_total", "Energy since the driver was loaded.", lambda each: each.energy_j),
)
_READ: Final[tuple[tuple[str, str, Callable[[Reading], float | None]], ...]] = (
    ("temperature_celsius", "Temperature of the chip.", lambda each: each.temperature_c),
    ("sm_clock_hertz", "Clock of the processors.", lambda each: _hertz(each.sm_clock_mhz)),
    ("memory_clock_hertz", "Clock of the memory.", lambda each: _hertz(each.memory_clock_mhz)),
    ("utilization_ratio", "Part of the time in which something ran.", lambda each: each.utilization),
    ("memory_used_bytes", "Memory taken, by anyone.", lambda each: each.memory_used_bytes),
    ("memory_free_bytes", "Memory that is free.", lambda each: each.memory_free_bytes),
    (
        "ecc_corrected",
        "Memory errors corrected since the driver was loaded.",
        lambda each: each.ecc_corrected,
    ),
    ("ecc_uncorrected", "The same, not corrected.", lambda each: each.ecc_uncorrected),
    ("remapped_rows", "Rows of memory that were replaced.", lambda each: each.remapped_rows),
    ("pcie_replays", "Transfers over PCIe that were repeated.", lambda each: each.pcie_replays),
)


def device_families(devices: Sequence[DeviceFigures]) -> Iterator[Family]:
    """Those of every device, by its ``device`` (UUID)."""
    yield from _drawn(devices)
    yield _info(devices)
    for name, meaning, of in _READ:
        told = [(each.device.uuid, of(each.reading)) for each in devices]
        samples = [(label_text({"device": uuid}), value) for uuid, value in told if value is not None]
        yield family(f"appliance_device_{name}", meaning, samples)
    yield family(
        "appliance_device_troubles",
        "Reasons why nothing should be trusted to the device; status names them.",
        [
            (label_text({"device": each.device.uuid}), sum(1 for _ in troubles(each.reading)))
            for each in devices
        ],
    )
    for name, meaning, figure in (
        ("budget_bytes", "Memory that models may take.", lambda each: each.budget_bytes),
        ("others_bytes", "Memory that other processes have.", lambda each: each.others_bytes),
        (
            "unsaid_bytes",
            "Memory that workers have and no model says it takes.",
            lambda each: each.unsaid_bytes,
        ),
        (
            "faulty",
            "1 where it takes no models because of a fault.",
            lambda each: int(any(faults(each.reading))),
        ),
        (
            "slowed",
            "1 where its hardware has slowed it for so long that its models move to others that have room.",
            lambda each: int(bool(each.slow)),
        ),
    ):
        shares = [(label_text({"device": each.device.uuid}), figure(each)) for each in devices]
        yield family(
            f"appliance_device_{name}",
            meaning,
            [(labels, size) for labels, size in shares if size is not None],
        )


def _drawn(devices: Sequence[DeviceFigures]) -> Iterator[Family]:
    """What whole GPUs draw: of one with instances it is told once."""
    boards = {board.uuid: board for each in devices if (board := each.reading.board) is not None}
    drawing: dict[str, Reading | WholeBoard] = {
        each.device.uuid: each.reading for each in devices if each.reading.board is None
    }
    for name, meaning, drawn in _DRAWN:
        told = [(uuid, drawn(each)) for uuid, each in (drawing | boards).items()]
        samples = [(label_text({"device": uuid}), value) for uuid, value in told if value is not None]
        yield family(f"appliance_device_{name}", meaning, samples)


def energy_families(snapshot: Snapshot) -> Iterator[Family]:
    """What versions used, by the ``device`` that they ran on: a UUID, or the processor."""
    used = [(each.device.uuid, each.energy) for each in snapshot.devices]
    if snapshot.processor is not None:
        used.append((str(CPU), snapshot.processor.versions))
    models = [
        (
            label_text(
                {
                    "device": device,
                    "model": name.rpartition("/")[0],
                    "version": name.rpartition("/")[2],
                }
            ),
            told,
        )
        for device, versions in used
        for name, told in versions.items()
    ]
    yield family(
        "appliance_model_energy_joules_total",
        "Energy of the device above idle, shared out by the time that batches ran.",
        [(labels, told.joules) for labels, told in models],
    )
    yield family(
        "appliance_model_energy_inferences_total",
        "Rows answered in the windows of the former.",
        [(labels, told.inferences) for labels, told in models],
    )
    rows = [(labels, inference_energy(told, snapshot.kwh_price)) for labels, told in models]
    yield family(
        "appliance_model_cost_per_million_inferences",
        "What the energy of a million rows costs, in the currency of metrics.kwh_price.",
        [
            (labels, each.cost_per_million)
            for labels, each in rows
            if each is not None and each.cost_per_million is not None
        ],
    )


def _info(devices: Sequence[DeviceFigures]) -> Family:
    return family(
        "appliance_device_info",
        "1, by what each device is: name, driver, what models call it, and the GPU that it is an instance of.",
        [
            (
                label_text(
                    {
                        "device": each.device.uuid,
                        "called": str(each.device.called),
                        "name": each.device.name,
                        "driver": each.device.driver,
                        "instance_of": each.device.instance_of,
                    }
                ),
                1,
            )
            for each in devices
        ],
    )


def _hertz(clock_mhz: int | None) -> float | None:
    return None if clock_mhz is None else clock_mhz * 1e6
