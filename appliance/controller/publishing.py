"""Each device's document and the metadata that vouches for it, made when it is asked for and something had changed.

A device that knows newer versions than there are here was told them by a controller whose memory this one has not: a
backup was restored. It is given nothing then, until a person has the counters raised beyond what devices told.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

import msgspec
from sqlalchemy import Row

from appliance.controller import tables
from appliance.controller.authority import utc
from appliance.controller.desired import Question, VersionOf, desired
from appliance.controller.fleet_store import Rows, View
from appliance.controller.online_keys import OnlineKeys
from appliance.controller.releases import wished_version
from appliance.controller.schemas import Wish
from appliance.controller.signing import DeviceMetadata, is_due, sign_document, sign_timestamp
from appliance.fleet.documents import DesiredState
from appliance.fleet.messages import Poll
from appliance.fleet.metadata import Counters
from appliance.fleet.places import ACTIVE, CONFLICT

AT_ONCE: Final = 16
"""Devices in one transaction, where many are given documents. Boxes wait for it, and each takes a write to the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What a device is to have, made for the ``revision`` of what is wanted; ``is_new``: it has to be kept."""

    metadata: DeviceMetadata
    revision: int
    is_new: bool


class Publisher:
    """See the module."""

    def __init__(self, keys: OnlineKeys) -> None:
        self._keys = keys

    def current(self, rows: Rows, device: Row[Any], poll: Poll, now_ms: int) -> DeviceMetadata | None:
        """The metadata as it is to be now; None where the device is to have none."""
        if device.state == CONFLICT:
            return None
        ahead = (
            poll.targets > device.generation,
            poll.snapshot > device.snapshot_version,
            poll.timestamp > device.timestamp_version,
        )
        if any(ahead):
            rows.change(tables.devices, {"name": device.name}, state=CONFLICT)
            rows.note(now_ms, f"device {device.name}", "conflict", told=poll.targets, here=device.generation)
            return None
        return self.publish(rows, device, now_ms)

    def publish(self, rows: Rows, device: Row[Any], now_ms: int) -> DeviceMetadata:
        """The metadata, signed anew where something changed or the timestamp is due."""
        due = self.due(rows, device, now_ms)
        keep(rows, device, due)
        return due.metadata

    def due(self, rows: View, device: Row[Any], now_ms: int, version_of: VersionOf | None = None) -> Due:
        """The same, to be kept before anybody is told of it. ``version_of`` is as in ``wanted``."""
        revision = rows.number("revision")
        before = _kept(device)
        metadata = before
        if before is None or device.revision != revision:
            state = self.wanted(rows, device, version_of)
            if not Question(state).is_in(device.document):
                counters = before.counters if before else _counters(device)
                state = msgspec.structs.replace(state, generation=counters.targets + 1, issued_ms=now_ms)
                metadata = sign_document(self._keys, state, counters, utc(now_ms))
        assert metadata is not None
        if metadata is before and is_due(metadata.timestamp, utc(now_ms)):
            metadata = sign_timestamp(self._keys, metadata, utc(now_ms))
        return Due(metadata=metadata, revision=revision, is_new=metadata is not before)

    def behind(self, rows: View, key: Mapping[str, Any]) -> frozenset[str]:
        """The names of devices that have ``key`` and of which another thing is wanted than their documents say: each
        gets the next generation when it asks next. What is wanted of a group is found once, and each release."""
        own = {row.scope for table in (tables.wishes, tables.settings) for row in rows.all(table, "scope")}
        questions: dict[str, Question] = {}
        version_of = cache(partial(wished_version, rows))
        found = set()
        for device in rows.behind(ACTIVE, rows.number("revision"), key):
            scope = f"device/{device.name}"
            scope = scope if scope in own else f"group/{device.in_group}"
            if scope not in questions:
                questions[scope] = Question(self.wanted(rows, device, version_of))
            if not questions[scope].is_in(device.document):
                found.add(device.name)
        return frozenset(found)

    def wanted(self, rows: View, device: Row[Any], version_of: VersionOf | None = None) -> DesiredState:
        """What the device should run: what is wished for it goes before what is for its group. ``version_of`` gives
        releases that who asks for many devices has found already."""
        wishes: dict[str, Wish] = {}
        settings: dict[str, Any] = {}
        for scope in (f"group/{device.in_group}", f"device/{device.name}"):
            for row in rows.all(tables.wishes, scope=scope):
                wishes[row.model] = msgspec.json.decode(row.wish, type=Wish)
            for row in rows.all(tables.settings, scope=scope):
                value = json.loads(row.value)
                settings[row.name] = tuple(value) if isinstance(value, list) else value
        return desired(device.name, wishes, settings, version_of or partial(wished_version, rows))

    def resume(self, rows: Rows, device: Row[Any], now_ms: int) -> None:
        """Have versions beyond those that the device told, and give it what is wanted here."""
        rows.change(
            tables.devices,
            {"name": device.name},
            state="active",
            revision=-1,
            generation=max(device.generation, device.told_generation),
            snapshot_version=max(device.snapshot_version, device.told_snapshot),
            timestamp_version=max(device.timestamp_version, device.told_timestamp),
            document=b"",
        )
        fresh = rows.one(tables.devices, name=device.name)
        assert fresh is not None
        self.publish(rows, fresh, now_ms)


def _counters(device: Row[Any]) -> Counters:
    return Counters(
        timestamp=device.timestamp_version, snapshot=device.snapshot_version, targets=device.generation
    )


def _kept(device: Row[Any]) -> DeviceMetadata | None:
    """What was signed last; None: nothing that holds."""
    if not device.document:
        return None
    return DeviceMetadata(
        counters=_counters(device),
        targets=device.targets,
        snapshot=device.snapshot,
        timestamp=device.timestamp,
        document=device.document,
    )


def keep(rows: Rows, device: Row[Any], due: Due) -> None:
    """Have what is due of the device, as it is now, in the database."""
    counters, metadata, changed = due.metadata.counters, due.metadata, dict[str, Any]()
    if due.is_new:
        changed = {
            "timestamp_version": counters.timestamp,
            "snapshot_version": counters.snapshot,
            "generation": counters.targets,
            "timestamp": metadata.timestamp,
            "snapshot": metadata.snapshot,
            "targets": metadata.targets,
            "document": metadata.document,
        }
    if due.is_new or device.revision != due.revision:
        rows.change(tables.devices, {"name": device.name}, revision=due.revision, **changed)
