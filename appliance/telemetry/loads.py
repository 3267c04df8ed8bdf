"""How versions were loaded, as records for the fleet: told when it changes, and once a day, so that whoever looks at a
day of telemetry finds it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, isnan
from typing import Final, NamedTuple

from appliance.fleet.records import Loaded
from appliance.telemetry.snapshot import Snapshot, VersionStatus

AGAIN_NS: Final = 24 * 3_600 * 10**9
MEMORY_PART: Final = 8
"""What a version takes in memory is told anew once it has changed by one part in so many."""
MS_NS: Final = 1_000_000


class _Told(NamedTuple):
    record: Loaded
    at_ns: int


class Loads:
    """Remembers what was told and is settled."""

    def __init__(self) -> None:
        self._told: Mapping[tuple[str, int], _Told] = {}

    def take(self, now: Snapshot) -> Iterator[Loaded]:
        """What is to be told now."""
        for version in now.engine.versions:
            if (record := self._due(version, now)) is not None:
                yield record

    def settled(self, now: Snapshot) -> None:
        """What was taken of this snapshot is told."""
        fresh = {(each.name, each.version): _Told(each, now.engine.now_ns) for each in self.take(now)}
        there = {(each.name, each.version) for each in now.engine.versions}
        self._told = {key: told for key, told in {**self._told, **fresh}.items() if key in there}

    def _due(self, version: VersionStatus, now: Snapshot) -> Loaded | None:
        if not version.load_ns and version.golden is None:
            return None
        record = _loaded(version, int(now.wall_s * 1000))
        before = self._told.get((version.name, version.version))
        if before is None or now.engine.now_ns - before.at_ns >= AGAIN_NS:
            return record
        return record if _differs(before.record, record) else None


def _differs(before: Loaded, now: Loaded) -> bool:
    moved = abs(now.memory_bytes - before.memory_bytes) * MEMORY_PART > before.memory_bytes
    return moved or _lasting(before) != _lasting(now)


def _lasting(record: Loaded) -> tuple[object, ...]:
    """What stays as it is between two loads."""
    golden = record.cases, record.failure, record.absolute, record.relative
    return record.device, record.load_ms, record.packed, *golden


def _loaded(version: VersionStatus, at_ms: int) -> Loaded:
    golden = version.golden
    return Loaded(
        at_ms=at_ms,
        name=version.name,
        version=version.version,
        device=version.placed,
        load_ms=version.load_ns // MS_NS,
        memory_bytes=version.memory_bytes,
        cases=golden.cases if golden is not None else 0,
        failure=golden.failure[:1000] if golden is not None else "",
        absolute=_number(golden.absolute) if golden is not None else 0.0,
        relative=_number(golden.relative) if golden is not None else 0.0,
        run_p50_ns=version.run_p50_ns,
        run_p99_ns=version.run_p99_ns,
        packed=version.packed,
    )


def _number(value: float) -> float:
    """The value; what is no number is as far off as can be."""
    return inf if isnan(value) else value
