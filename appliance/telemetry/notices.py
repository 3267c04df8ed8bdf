"""What people should see coming: certificates that end soon, a store that is nearly full, a price of nothing. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from appliance.domain.device_reading import DeviceFigures, troubles
from appliance.domain.model import VersionState
from appliance.domain.moment import moment
from appliance.telemetry.snapshot import Snapshot, StoreFigures, VersionStatus

DAY_S: Final = 86_400
SOON_S: Final = 30 * DAY_S
"""Before its end a certificate is told of: long enough to have a new one made at a site without a network."""
FOREIGN: Final = 0.1
"""Of a device's memory other processes may have before that is told."""
NAMED_MAX: Final = 5
"""Of the models that something is told of."""
NEARLY: Final = 0.9
"""Of its quota the store may take before that is told."""


def notices(snapshot: Snapshot) -> Iterator[str]:
    """One sentence for each."""
    for port, end_s in sorted(snapshot.certificates.items()):
        left_s = end_s - snapshot.wall_s
        if left_s < 0:
            yield f"The certificate of {port} ended on {moment(end_s * 1000)}: no client takes it any more."
        elif left_s < SOON_S:
            yield f"The certificate of {port} ends in {int(left_s // DAY_S)} days, on {moment(end_s * 1000)}."
    for each in snapshot.devices:
        for trouble in troubles(each.reading):
            yield f"{each.device.title} {trouble}."
    yield from _of_slowed(snapshot)
    yield from _of_memory(snapshot.devices)
    if snapshot.unused_gpus:
        yield (
            f"Models of KIND_AUTO run on the processor although there is a GPU, as {snapshot.unused_gpus}. Where that "
            'is meant, auto_device = "cpu" in [repository] says so.'
        )
    if snapshot.devices_problem:
        yield from _of_untold_devices(snapshot.devices_problem, snapshot.engine.versions)
    if snapshot.kwh_price and not _counts_energy(snapshot):
        yield (
            "metrics.kwh_price has no effect here, as nothing counts energy: the processor's counters (RAPL) are not "
            "there or may not be read, and no GPU tells of its own. docs/GPU.md says more of both."
        )
    if snapshot.store is not None and snapshot.store.free_bytes:
        yield from _of_store(snapshot.store)


def _of_untold_devices(problem: str, versions: Sequence[VersionStatus]) -> Iterator[str]:
    ask = [each for each in versions if not each.device.is_cpu]
    serve = [each for each in ask if each.state is VersionState.READY]
    what = "they have no budget there, and no fault of it is seen" if serve else "none of them serves"
    if ask:
        yield (
            f"Models ask for a GPU, and nothing tells of one ({problem}): {what} ({_named(serve or ask)}). docs/GPU.md "
            "says what to install."
        )


def _named(versions: Sequence[VersionStatus]) -> str:
    names = [f"{each.name}/{each.version}" for each in versions]
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


def _counts_energy(snapshot: Snapshot) -> bool:
    """Whether joules can be known, now or once something ran."""
    counters = [each.reading.counter_j for each in snapshot.devices]
    return snapshot.processor is not None or any(each is not None for each in counters)


def _of_slowed(snapshot: Snapshot) -> Iterator[str]:
    for each in snapshot.devices:
        if each.slow:
            there = [version for version in snapshot.engine.versions if version.device == each.device.called]
            yield (
                f"{each.device.title} {each.slow}. Its models move to another GPU that they may run on and that has "
                f"room; still there: {_named(there) or 'none'}."
            )


def _of_memory(devices: Sequence[DeviceFigures]) -> Iterator[str]:
    for each in devices:
        memory, others = each.device.memory_bytes, each.others_bytes
        if memory and others is not None and each.budget_bytes is not None and others >= memory * FOREIGN:
            yield (
                f"{each.device.title}: other processes have {_gibibytes(others)} of its memory; "
                f"models may take {_gibibytes(each.budget_bytes)}."
            )


def _of_store(store: StoreFigures) -> Iterator[str]:
    if store.free_bytes <= store.free_floor_bytes:
        yield (
            f"The store's disk has {_gibibytes(store.free_bytes)} left, and installs leave "
            f"{_gibibytes(store.free_floor_bytes)} (store.free_floor_bytes): nothing more can be installed."
        )
    if 0 < store.quota_bytes * NEARLY <= store.taken_bytes:
        yield (
            f"The store takes {_gibibytes(store.taken_bytes)} of the {_gibibytes(store.quota_bytes)} that it may "
            "(store.quota_bytes)."
        )


def _gibibytes(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
