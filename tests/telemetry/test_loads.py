"""How a version was loaded is told once, again when it is another thing, and once a day."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest

from appliance.fleet.records import Loaded, decode, encode
from appliance.telemetry.loads import AGAIN_NS, Loads
from appliance.telemetry.meter import VersionMeter
from appliance.telemetry.snapshot import GoldenStatus, Snapshot
from tests.telemetry.test_minutes import snapshot

MIB = 1 << 20


def seen(at_s: float = 60.0, **what: object) -> Snapshot:
    """A snapshot of one version that is loaded, of which ``what`` is so."""
    found = snapshot([VersionMeter("m", 2)], at_s)
    said = {"load_ns": 7_000_000, "memory_bytes": 64 * MIB, **what}
    version = replace(found.engine.versions[0], **said)  # type: ignore[arg-type]
    return replace(found, engine=replace(found.engine, versions=(version,)))


def told(loads: Loads, now: Snapshot) -> list[Loaded]:
    found = list(loads.take(now))
    loads.settled(now)
    return found


def test_it_is_told_once_and_again_when_it_is_another_thing() -> None:
    loads, golden = Loads(), GoldenStatus(4, "", 0.5, 0.25)
    (first,) = told(loads, seen(golden=golden))
    assert (first.name, first.version, first.device, first.load_ms) == ("m", 2, "cpu", 7)
    assert (first.memory_bytes, first.cases, first.absolute, first.relative) == (64 * MIB, 4, 0.5, 0.25)
    assert told(loads, seen(120, golden=golden, memory_bytes=66 * MIB)) == []
    assert [each.memory_bytes for each in told(loads, seen(180, golden=golden, memory_bytes=80 * MIB))] == [
        80 * MIB
    ]
    assert [each.load_ms for each in told(loads, seen(240, load_ns=9_000_000, memory_bytes=80 * MIB))] == [9]


def test_what_could_not_be_kept_is_told_again() -> None:
    loads = Loads()
    assert list(loads.take(seen())) == list(loads.take(seen()))


def test_once_a_day_it_is_told_although_it_is_the_same() -> None:
    loads, day_s = Loads(), AGAIN_NS / 10**9
    told(loads, seen(60))
    assert told(loads, seen(59 + day_s)) == []
    assert len(told(loads, seen(61 + day_s))) == 1


def test_a_version_that_was_not_loaded_tells_nothing_unless_it_broke_a_promise() -> None:
    assert told(Loads(), seen(load_ns=0)) == []
    (broken,) = told(Loads(), seen(load_ns=0, golden=GoldenStatus(4, "too far off", nan, 2.0)))
    assert (broken.failure, broken.absolute) == ("too far off", inf)
    assert decode(encode(broken)) == broken


@pytest.mark.parametrize("field", [0.0, 1e300])
def test_differences_are_told_as_they_are(field: float) -> None:
    (found,) = told(Loads(), seen(golden=GoldenStatus(1, "", field, field)))
    assert (found.absolute, found.relative) == (field, field)
