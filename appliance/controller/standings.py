"""How devices stand, by what they reported and what is wanted of them now: read in one place, so that who is shown the
devices and who counts them are told the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from sqlalchemy import Row

from appliance.controller import tables
from appliance.controller.fleet_store import View
from appliance.controller.publishing import Publisher
from appliance.controller.schemas import Wish
from appliance.fleet.messages import MessageInvalid, Report, decode
from appliance.fleet.places import FAILURES, REVOKED, Standing

EMPTY: Final = Report(device="none")
SHOWN: Final = ("name", "in_group", "state", "seen_ms", "generation", "told_generation", "report")
"""Columns of a device that people are shown: those that it is given are many times as large."""
Version = tuple[str, int]
"""A model, and its number."""
Wished = Callable[[str, str, str], Version | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standings:
    """Devices by their groups; and the versions that are wished and that devices which know the wish say have failed,
    with how many say so."""

    groups: Mapping[str, list[Standing]]
    failed: Mapping[Version, int]


def report_of(row: Row[Any]) -> Report:
    """What a device reported last."""
    try:
        return decode(row.report, Report) if row.report else EMPTY
    except MessageInvalid:
        return EMPTY


def is_current(row: Row[Any], report: Report, generation: int) -> bool:
    """Whether the device speaks of what is wanted now, which is of that ``generation``."""
    return bool(report.generation == row.told_generation == generation)


def standings(rows: View, publisher: Publisher, key: Mapping[str, Any]) -> Standings:
    """How those that have ``key`` stand."""
    groups, failed = dict[str, list[Standing]](), Counter[Version]()
    found, behind = rows.all(tables.devices, *SHOWN, **key), publisher.behind(rows, key)
    wished: Wished | None = None
    for row in found:
        report = report_of(row)
        current = is_current(row, report, row.generation + (row.name in behind))
        phases = {each.phase for each in report.models}
        standing = Standing(row.state, current and report.converged, phases, row.seen_ms)
        groups.setdefault(row.in_group, []).append(standing)
        if current and row.state != REVOKED and not FAILURES.isdisjoint(phases):
            wished = wished or wished_in(rows)
            names = {each.name for each in report.models if each.phase in FAILURES}
            failed.update(filter(None, (wished(name, row.name, row.in_group) for name in names)))
    return Standings(groups=groups, failed=failed)


def wished_in(rows: View) -> Wished:
    """Gives what is wished of a model for a device in a group; None: nothing is."""
    found = {
        (row.scope, row.model): (row.model, msgspec.json.decode(row.wish, type=Wish).version)
        for row in rows.all(tables.wishes, "scope", "model", "wish")
    }

    def wished(model: str, device: str, group: str) -> Version | None:
        return found.get((f"device/{device}", model)) or found.get((f"group/{group}", model))

    return wished
