"""A release is taken back: boxes cannot get it any more, and what it takes at the controller becomes free.

Only one that nobody needs. Its number goes on meaning what it meant: the same package may come again, another one not.
Ways from it to other versions stay: boxes that have it go on getting those by the difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from sqlalchemy import Row

from appliance.controller import tables
from appliance.controller.blobs import BlobStore
from appliance.controller.fleet_store import FleetStore, View
from appliance.controller.leftovers import named_by
from appliance.controller.releases import release
from appliance.controller.rollout_rows import rollouts_in
from appliance.controller.schemas import Wish, Withdrawn
from appliance.controller.standings import report_of
from appliance.controller.wishing import versions_of
from appliance.domain.errors import OperatorError
from appliance.fleet.messages import ModelReport
from appliance.fleet.places import REVOKED
from appliance.fleet.rollout import OPEN

TOLD: Final = 8
"""Of those who need it, so many are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """A device, and what it said of the model when it reported last; ``digest`` is of that report."""

    name: str
    group: str
    digest: str
    models: tuple[ModelReport, ...]


def withdraw(
    store: FleetStore, blobs: BlobStore, model: str, version: int, who: str, now_ms: int
) -> Withdrawn:
    """Take the release back. Raises NoRelease, and OperatorError where somebody needs it."""
    key = {"model": model, "version": version}
    # Most are refused, and boxes need not wait for that, nor while reports are read.
    with store.look() as view:
        known = {each.name: each for each in _stands(view, model, {})}
        _unneeded(view, model, version, known)
    with store.transaction() as rows:
        found = _unneeded(rows, model, version, known)
        own = named_by([found], rows.all(tables.transfers, **key))
        rows.remove(tables.transfers, **key)
        rows.change(tables.releases, key, package="")
        rows.note(now_ms, who, "withdrawn", **key, manifest=found.manifest)
        left = named_by(rows.all(tables.releases), rows.all(tables.transfers))
    return Withdrawn(model, version, sum(blobs.size(each) or 0 for each in own - left))


def _unneeded(rows: View, model: str, version: int, known: Mapping[str, Stand]) -> Row[Any]:
    """The release. Raises NoRelease, and OperatorError where somebody needs it."""
    found = release(rows, model, version)
    if needed := list(dict.fromkeys(_uses(rows, found, known))):  # a box may say it a thousand times
        more = f", and {len(needed) - TOLD} more" if len(needed) > TOLD else ""
        raise OperatorError(
            f"{model}/{version} is needed: {', '.join(needed[:TOLD])}{more}; wish for another version there, or "
            f"take the wish back ('appliance fleet want {model} --withdraw --group NAME'), and revoke devices that "
            "are gone"
        )
    return found


def _uses(rows: View, found: Row[Any], known: Mapping[str, Stand]) -> Iterator[str]:
    wishes = {
        row.scope: msgspec.json.decode(row.wish, type=Wish)
        for row in rows.all(tables.wishes, model=found.model)
    }
    ways = rows.all(tables.transfers, model=found.model, base=found.manifest)
    yield from _rollouts(rows, found)
    yield from uses(found, wishes, _stands(rows, found.model, known), {int(way.version) for way in ways})


def _rollouts(rows: View, found: Row[Any]) -> Iterator[str]:
    """Rollouts that may wish for it yet, in words."""
    for kept in rollouts_in(rows, model=found.model):
        number, before = kept.rollout.number, kept.before.values()
        if kept.rollout.state in OPEN and found.version == kept.rollout.version:
            yield f"rollout {number} is to bring it"
        elif kept.rollout.state in OPEN and any(found.version in versions_of(wish) for wish in before):
            yield f"rollout {number} may go back to it"


def _stands(rows: View, model: str, known: Mapping[str, Stand]) -> list[Stand]:
    """Devices that were not revoked. Those that are as they are ``known`` are not read again."""
    told = rows.all(tables.devices, "name", "in_group", "state", "report_digest")
    reports = {row.name: row for row in rows.all(tables.devices, "name", "report")} if not known else {}
    found = []
    for row in told:
        if row.state == REVOKED:
            continue
        before = known.get(row.name)
        if before is None or (before.group, before.digest) != (row.in_group, row.report_digest):
            report = report_of(reports.get(row.name) or rows.all(tables.devices, "report", name=row.name)[0])
            models = tuple(each for each in report.models if each.name == model)
            before = Stand(name=row.name, group=row.in_group, digest=row.report_digest, models=models)
        found.append(before)
    return found


def uses(
    found: Row[Any], wishes: Mapping[str, Wish], devices: Sequence[Stand], leads_to: set[int]
) -> Iterator[str]:
    """Who needs the release ``found``, in words: who wishes for it, with groups that have no device marked, boxes that
    run it or were to when they told last, and those that are on the way from it to one of the versions ``leads_to``.
    ``wishes`` are for its model, by scope. Pure."""
    groups = {f"group/{device.group}" for device in devices}
    for scope, wish in sorted(wishes.items()):
        if found.version in versions_of(wish):
            nobody = " (no device is in it)" if scope.startswith("group/") and scope not in groups else ""
            yield f"{scope.replace('/', ' ')} wishes for it{nobody}"
    for device in devices:
        asked = wishes.get(f"device/{device.name}") or wishes.get(f"group/{device.group}")
        for each in device.models:
            coming = [to for to in versions_of(asked) if to in leads_to and to not in each.installed]
            if found.version in (each.serving, each.wanted):
                yield f"{device.name} {'serves' if found.version == each.serving else 'was to run'} it"
            elif found.version in each.installed and coming:
                yield f"{device.name} gets {found.model}/{coming[0]} from it"
