"""Rollouts as they stand in the database, and what each of their changes does to wishes: all of it in the transaction
of the change, so that a kill leaves a rollout before it or after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import Row

from appliance.controller import tables
from appliance.controller.fleet_store import FleetStore, Rows, View
from appliance.controller.publishing import Publisher
from appliance.controller.schemas import Wish
from appliance.controller.standings import SHOWN, report_of
from appliance.controller.wishing import group_wishes, put_wish, read_wish
from appliance.fleet.arrival import Mark, Stay, Wished, arrival_of, together
from appliance.fleet.rollout import OPEN, Look, Rollout, State, Wishes, halted, other_wish, some_of
from appliance.fleet.told import Device

Before = Mapping[str, Wish | None]
"""What was wished for each group."""
ENDED_MAX: Final = 100
"""Rollouts that are over and kept."""
MARKS_AT_ONCE: Final = 500
"""Devices in one transaction: boxes wait for it."""


class Kept(NamedTuple):
    """A rollout, what was wished of its groups before, and its ``text`` in the database, which shows whether it has
    changed."""

    rollout: Rollout
    before: Before
    text: str


def rollouts_in(rows: View, **key: Any) -> list[Kept]:
    """Those that have ``key``, the oldest first."""
    return [_read(row) for row in rows.all(tables.rollouts, **key)]


def still(rows: View, kept: Kept) -> bool:
    """Whether nobody changed it meanwhile."""
    row = rows.one(tables.rollouts, number=kept.rollout.number)
    return row is not None and row.rollout == kept.text


def _read(row: Row[Any]) -> Kept:
    rollout = msgspec.json.decode(row.rollout, type=Rollout)
    return Kept(rollout, msgspec.json.decode(row.before, type=dict[str, Wish | None]), row.rollout)


def wish_of(rollout: Rollout) -> Wish:
    """What is wished in each of its groups."""
    return Wish(rollout.version, interface_change=rollout.interface_change, downgrade=rollout.downgrade)


def scopes_of(groups: Iterable[str]) -> list[str]:
    """For whom wishes of the groups are."""
    return [f"group/{group}" for group in groups]


def before_in(rows: View, model: str, groups: Sequence[str]) -> dict[str, Wish | None]:
    """What is wished of the model for each group now."""
    found = group_wishes(rows, model, groups)
    return {group: read_wish(found.get(group)) for group in groups}


def wished_otherwise(rows: View, kept: Kept) -> str:
    """Who wished meanwhile for another version in one of its groups, in words; "": nobody."""
    groups = [group for wave in kept.rollout.waves for group in wave.groups]
    found = group_wishes(rows, kept.rollout.model, groups).items()
    now = {group: Wishes(_version(read_wish(row)), row.by_whom) for group, row in found}
    before = {group: Wishes(_version(wish)) for group, wish in kept.before.items()}
    return other_wish(kept.rollout, now, before)


def _version(wish: Wish | None) -> int | None:
    return None if wish is None else wish.version


def change(rows: Rows, kept: Kept, after: Rollout, wish: Sequence[str], who: str, now_ms: int) -> Rollout:
    """Have it as it is ``after``, and what that wishes: the version for the groups ``wish``, or where it is taken back
    what was before, and say so. ``who`` does so, and the wishes are the rollout's. It is returned as it is kept. Raises
    NoRelease."""
    before, maker = dict(kept.before), f"rollout {after.number}"
    for group, now in before_in(rows, after.model, wish).items():
        if group not in kept.rollout.groups:
            before[group] = now
        if now != wish_of(after):
            put_wish(rows, f"group/{group}", after.model, wish_of(after), maker, now_ms)
    if after.state is State.BACK:
        keep = _take_back(rows, after, before, maker, now_ms)
        said_too = f"; wished the version before, and keep it: {some_of(keep)}" if keep else ""
        after = msgspec.structs.replace(after, reason=after.reason + said_too)
    if after.state not in OPEN:
        rows.remove(tables.rollout_devices, rollout=after.number)
    text = msgspec.json.encode(after).decode()
    said = msgspec.json.encode(before).decode()
    rows.put(
        tables.rollouts, number=after.number, model=after.model, state=after.state, rollout=text, before=said
    )
    if what := _what(kept.rollout, after):
        rows.note(
            now_ms, who, what, number=after.number, model=after.model, version=after.version,
            wave=len(after.begun), reason=after.reason, back=after.back, failed=[each.device for each in after.failed],
            waves=[wave.groups for wave in after.waves if not kept.rollout.begun], **_limits(after),
        )  # fmt: skip
    return after


def halt_strayed(rows: Rows, model: str, who: str, now_ms: int) -> list[str]:
    """Halt those of the model that run, and in a group of which ``who`` has wished for another version now; which these
    are, in words."""
    halts = []
    for kept in rollouts_in(rows, model=model, state=State.RUNNING):
        if reason := wished_otherwise(rows, kept):
            change(rows, kept, halted(kept.rollout, reason, now_ms), (), who, now_ms)
            halts.append(kept.rollout.what)
    return halts


def _take_back(rows: Rows, rollout: Rollout, before: Before, maker: str, now_ms: int) -> list[str]:
    """Wish again for what was, as an order, wherever the version is wished still; gives the groups in which it was
    wished before, and is. One that a box has no more is fetched again: it is older, and clients may have to talk to it
    as they did."""
    keep = []
    for group, now in before_in(rows, rollout.model, rollout.groups).items():
        was = before.get(group)
        if now is None or now.version != rollout.version:
            continue
        if was is not None and was.version == rollout.version:
            keep.append(group)
            continue
        if was is not None:
            change = was.interface_change or rollout.interface_change
            was = msgspec.structs.replace(was, order=True, downgrade=True, interface_change=change)
        put_wish(rows, f"group/{group}", rollout.model, was, maker, now_ms)
    return keep


def _what(before: Rollout, after: Rollout) -> str:
    """What happened, for the audit log; "": nothing but that devices were looked at."""
    begun = len(after.begun) - len(before.begun)
    if after.state is not State.RUNNING:
        return f"rollout-{after.state.replace(' ', '-')}"
    if before.state is not State.RUNNING or _limits(before) != _limits(after):
        return "rollout-resumed"
    if begun:
        return "rollout-wave" if before.begun else "rollout"
    return ""


def _limits(rollout: Rollout) -> dict[str, int]:
    return {"stay_s": rollout.stay_s, "share": rollout.share, "allow": rollout.allow}


def forget_old(rows: Rows) -> None:
    """Remove those that are over, but for the newest."""
    over = [row.number for row in rows.all(tables.rollouts, "number", "state") if row.state not in OPEN]
    for number in over[:-ENDED_MAX]:
        rows.remove(tables.rollouts, number=number)


def looks_at(rows: View, publisher: Publisher, rollout: Rollout) -> list[Look]:
    """Where the devices of each wave that began are."""
    known = rows.all(tables.rollout_devices, rollout=rollout.number)
    marks = {row.device: Mark(row.seen_ms, row.told, row.generation) for row in known}
    since = {row.device: row.since_ms for row in known if row.since_ms}
    devices: dict[str, list[Device]] = {}
    for device in _devices(rows, publisher, rollout):
        devices.setdefault(device["group"], []).append(device)
    looks = []
    for wave in rollout.begun:
        wished = [Wished(model=rollout.model, version=rollout.version, group=group) for group in wave.groups]
        arrival = together([arrival_of(each, devices.get(each.group, ()), marks) for each in wished])
        stay = Stay(rollout.stay_s, since)
        stay.look(arrival)
        looks.append(Look(arrival, stay))
    return looks


def _devices(rows: View, publisher: Publisher, rollout: Rollout) -> Iterator[Device]:
    """The devices of its groups, as the API tells of them, and of each no more than the model."""
    key = {"in_group": rollout.groups}
    own = {row.scope: row for row in rows.all(tables.wishes, model=rollout.model)}
    behind = publisher.behind(rows, key)
    for row in rows.all(tables.devices, *SHOWN, **key):
        report, wish = report_of(row), read_wish(own.get(f"device/{row.name}"))
        yield Device(
            name=row.name,
            group=row.in_group,
            state=row.state,
            seen_ms=row.seen_ms,
            generation=row.generation + (row.name in behind),
            told_generation=row.told_generation,
            models=[
                {
                    "name": each.name, "wanted": each.wanted, "serving": each.serving, "phase": each.phase,
                    "reason": each.reason or each.code, "missing_bytes": each.missing_bytes, "managed": each.managed,
                }
                for each in report.models
                if each.name == rollout.model
            ],
            problems=list(report.problems),
            wishes={rollout.model: {"version": wish.version}} if wish is not None else {},
        )  # fmt: skip


def begin_anew(rows: Rows, rollout: Rollout, strayed: Sequence[str]) -> None:
    """Have its devices stay anew, as nobody looked at them while it was halted; and what those of the groups
    ``strayed`` said of the wish before counts for nothing."""
    key = {"rollout": rollout.number}
    rows.change(tables.rollout_devices, key, since_ms=0)
    names = [row.name for row in rows.all(tables.devices, "name", in_group=tuple(strayed))]
    for start in range(0, len(names), MARKS_AT_ONCE):
        rows.remove(tables.rollout_devices, **key, device=tuple(names[start : start + MARKS_AT_ONCE]))


def forget_stays(store: FleetStore) -> None:
    """Forget the devices that say that they serve: they count from when they say so again."""
    with store.look() as rows:
        serving = [row for row in rows.all(tables.rollout_devices) if row.since_ms]
    for start in range(0, len(serving), MARKS_AT_ONCE):
        with store.transaction() as rows:
            for row in serving[start : start + MARKS_AT_ONCE]:
                rows.remove(tables.rollout_devices, rollout=row.rollout, device=row.device)


def remember(store: FleetStore, kept: Kept, looks: Sequence[Look]) -> None:
    """Have in the database how its devices were looked at first, and since when they serve: what is new of it."""
    number = kept.rollout.number
    found = {
        name: (*mark, look.stay.since_ms.get(name, 0))
        for look in looks
        for name, mark in look.arrival.marks.items()
    }
    with store.look() as rows:
        known = {row.device: tuple(row)[2:] for row in rows.all(tables.rollout_devices, rollout=number)}
    fresh = [
        dict(zip(("rollout", "device", *Mark._fields, "since_ms"), (number, name, *said), strict=True))
        for name, said in found.items()
        if known.get(name) != said
    ]
    gone = sorted(known.keys() - found.keys())
    for start in range(0, max(len(fresh), len(gone)), MARKS_AT_ONCE):
        with store.transaction() as rows:
            if not still(rows, kept):
                return
            if some := fresh[start : start + MARKS_AT_ONCE]:
                rows.put_all(tables.rollout_devices, some)
            if some_gone := tuple(gone[start : start + MARKS_AT_ONCE]):
                rows.remove(tables.rollout_devices, rollout=number, device=some_gone)
