"""What the boxes of a fleet are made of: how many say the same, and which. A box says so when it is enrolled, and with
its records at each start and change. Blocks: off the event loop."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from appliance.controller import tables
from appliance.controller.fleet_store import FleetStore
from appliance.controller.schemas import Fact, FactValue
from appliance.fleet.inventory import BOOT
from appliance.fleet.places import REVOKED

VALUES_MAX: Final = 100
"""Values of one fact in an answer about all facts: those that most boxes have."""


class Facts:
    """See the module."""

    def __init__(self, store: FleetStore) -> None:
        self._store = store

    def counts(self, group: str) -> list[Fact]:
        """All facts by name, each with how many devices of the group, or of all (""), have which value."""
        found = self._by_fact(group)
        return [_fact(name, found[name], VALUES_MAX, named=False) for name in sorted(found)]

    def holders(self, name: str, group: str) -> list[Fact]:
        """The fact with all its values and the devices that have each; nothing where no device has told of it."""
        values = self._by_fact(group).get(name)
        return [_fact(name, values, len(values), named=True)] if values else []

    def _by_fact(self, group: str) -> Mapping[str, Mapping[str, list[str]]]:
        """The names of devices by fact and value."""
        key = {"in_group": group} if group else {}
        with self._store.look() as rows:
            found = rows.all(tables.devices, "name", "state", "inventory", **key)
        facts: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for row in found:
            if row.state == REVOKED:
                continue
            for name, value in json.loads(row.inventory).items():
                if name != BOOT:
                    facts[name][value].append(row.name)
        return facts


def _fact(name: str, values: Mapping[str, Sequence[str]], most: int, *, named: bool) -> Fact:
    by_count = sorted(values.items(), key=lambda each: (-len(each[1]), each[0]))
    told = [
        FactValue(value, len(devices), tuple(sorted(devices)) if named else ())
        for value, devices in by_count[:most]
    ]
    return Fact(name, sum(map(len, values.values())), len(values), tuple(told))
