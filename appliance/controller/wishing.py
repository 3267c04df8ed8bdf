"""Wishes as they stand in the database, and what has to be there before one is made: the version, and ways to it from
what boxes have. One place for who wishes by hand and for rollouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Row

from appliance.controller import tables
from appliance.controller.fleet_store import FleetStore, Rows, View
from appliance.controller.releases import Releases, release
from appliance.controller.schemas import Wish
from appliance.controller.standings import report_of
from appliance.fleet.places import REVOKED

BASES_MAX: Final = 8
"""Versions of a model on one device from which there are ways, beside the one that serves: each is built, and a device
may say what it likes."""


def versions_of(wish: Wish | None) -> list[int]:
    """All that have to be released for it."""
    if wish is None:
        return []
    trial = [wish.trial.version] if wish.trial else []
    return [each for each in (wish.version, *trial, *wish.prefetch) if each]


def read_wish(row: Row[Any] | None) -> Wish | None:
    """What a row says; None: there is none."""
    return None if row is None else msgspec.json.decode(row.wish, type=Wish)


def group_wishes(rows: View, model: str, groups: Iterable[str]) -> dict[str, Row[Any]]:
    """The rows of what is wished of the model for the groups, as far as something is."""
    scopes = {f"group/{group}": group for group in groups}
    return {scopes[row.scope]: row for row in rows.all(tables.wishes, model=model) if row.scope in scopes}


def check_released(rows: View, model: str, wish: Wish | None) -> None:
    """Raise NoRelease unless all that it takes is there."""
    for version in versions_of(wish):
        release(rows, model, version)


def bases_on(devices: Sequence[Row[Any]], model: str) -> set[int]:
    """The versions of the model that the devices have, the newest of each, as they reported last."""
    found = set[int]()
    for row in devices:
        said = next((each for each in report_of(row).models if each.name == model), None)
        if said is not None and row.state != REVOKED:
            found |= {*sorted(set(said.installed))[-BASES_MAX:], said.serving} - {0}
    return found


def make_ready(
    store: FleetStore,
    releases: Releases,
    model: str,
    wish: Wish | None,
    key: Mapping[str, Any],
    scopes: Sequence[str],
) -> None:
    """Have ways to what the wish takes, from what devices that have ``key`` have, and are wished in the ``scopes``.
    Raises NoRelease."""  # fmt: skip
    with store.look() as rows:
        check_released(rows, model, wish)
        bases = bases_on(rows.all(tables.devices, "state", "report", **key), model)
        before = rows.all(tables.wishes, "wish", model=model, scope=tuple(scopes))
    bases |= {each for row in before for each in versions_of(read_wish(row))}
    for version in versions_of(wish):
        releases.prepare(model, version, sorted(bases))


def put_wish(rows: Rows, scope: str, model: str, wish: Wish | None, who: str, now_ms: int) -> bool:
    """Have the wish, or none, from the next poll of each device on; whether there was one. Nothing is done where there
    was none and shall be none. Raises NoRelease."""
    check_released(rows, model, wish)
    there = rows.one(tables.wishes, scope=scope, model=model)
    if wish is None and there is None:
        return False
    if wish is None:
        rows.remove(tables.wishes, scope=scope, model=model)
    else:
        text = msgspec.json.encode(wish).decode()
        rows.put(tables.wishes, scope=scope, model=model, wish=text, by_whom=who, at_ms=now_ms)
    rows.count_up("revision")
    said = msgspec.to_builtins(wish) if wish is not None else None
    rows.note(now_ms, who, "want", scope=scope, model=model, wish=said)
    return there is not None
