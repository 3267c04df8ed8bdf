"""The figures of a controller as Prometheus families: pure renderings of what was counted.

Names of groups and models come from people, and are as many as they like, so that each family has a bound: beyond it
what is left is one line, in ``OTHERS``. No line is of a device: who an alarm is about says ``appliance fleet devices``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from appliance.controller.standings import Standings
from appliance.controller.traffic import Traffic
from appliance.fleet.places import QUIET_S, Census, Standing, Whereabouts, census
from appliance.telemetry.metrics.exposition import Family, family, label_text, singles, split

GROUPS_MAX: Final = 1000
VERSIONS_MAX: Final = 500
OTHERS: Final = "(others)"
NO_GROUP: Final = "(none)"
"""Neither can be a name."""
SILENT_S: Final = (600, 3600, QUIET_S)


def fleet_families(standings: Standings, now_ms: int) -> Iterator[Family]:
    """How the devices stand, by their groups."""
    groups = [
        (label_text({"group": name}), census(found, now_ms, SILENT_S))
        for name, found in _bounded(standings.groups).items()
    ]
    yield family(
        "appliance_fleet_devices",
        "Devices, by where they are on the way to what is wished.",
        [
            (f"{labels},{label_text({'place': each})}", found.places.get(each, 0))
            for labels, found in groups
            for each in Whereabouts
        ],
    )
    yield family(
        "appliance_fleet_failed_devices",
        "Devices that say that a version failed there or was refused.",
        [(labels, found.failed) for labels, found in groups],
    )
    yield family(
        "appliance_fleet_silent_devices",
        "Devices that were heard from, and not for longer than so many seconds.",
        [each for labels, found in groups for each in _silent(labels, found)],
    )
    yield family(
        "appliance_fleet_never_heard_devices",
        "Devices that were enrolled and never asked.",
        [(labels, found.never) for labels, found in groups],
    )
    yield family(
        "appliance_fleet_oldest_contact_timestamp_seconds",
        "When the device was heard from that was longest ago, in seconds since 1970.",
        [(labels, found.oldest_ms / 1000) for labels, found in groups if found.oldest_ms],
    )
    yield _failed_versions(standings)


def _silent(labels: str, found: Census) -> Iterator[tuple[str, float]]:
    for bound_s, count in zip(SILENT_S, found.silent, strict=True):
        yield f"{labels},{label_text({'seconds': str(bound_s)})}", count


def _bounded(groups: Mapping[str, list[Standing]]) -> dict[str, list[Standing]]:
    """The groups with the most devices by their names, and all others as one."""
    order = sorted(groups, key=lambda name: (-len(groups[name]), name))
    found = {name or NO_GROUP: groups[name] for name in sorted(order[:GROUPS_MAX])}
    if rest := [each for name in order[GROUPS_MAX:] for each in groups[name]]:
        found[OTHERS] = rest
    return found


def _failed_versions(standings: Standings) -> Family:
    order = sorted(standings.failed.items(), key=lambda each: (-each[1], each[0]))
    lines: list[tuple[str, float]] = [
        (label_text({"model": model, "version": str(version)}), count)
        for (model, version), count in order[:VERSIONS_MAX]
    ]
    if rest := sum(count for _, count in order[VERSIONS_MAX:]):
        lines.append((label_text({"model": OTHERS, "version": ""}), rest))
    return family(
        "appliance_fleet_version_failed_devices",
        "Devices that say that the version that is wished there failed or was refused; versions without are left out.",
        lines,
    )


def rollout_families(states: Mapping[str, int]) -> Iterator[Family]:
    """Rollouts in waves, by what they are at; nothing where there are none."""
    if states:
        yield split(
            "appliance_fleet_rollouts", "Rollouts that are kept, by what they are at.", "state", states
        )


def controller_families(expiries: Mapping[str, float], free_bytes: int, traffic: Traffic) -> Iterator[Family]:
    """The controller itself; ``expiries`` are in seconds since 1970."""
    yield split(
        "appliance_controller_expires_timestamp_seconds",
        "When the authority's and the server's certificate and the root expire, in seconds since 1970.",
        "of",
        expiries,
    )
    yield from singles(
        [("appliance_controller_free_bytes", "Bytes that are free on the controller's disk.", free_bytes)]
    )
    yield family(
        "appliance_controller_requests_total",
        "Requests of boxes, by what they asked and the code of the refusal.",
        [
            (label_text({"request": kind, "outcome": outcome}), count)
            for (kind, outcome), count in sorted(traffic.requests.items())
        ],
    )
    yield split(
        "appliance_controller_telemetry_records_total",
        "Records in batches of telemetry.",
        "outcome",
        traffic.telemetry,
    )
