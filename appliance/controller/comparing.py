"""How versions do on the devices of a fleet, by what was added up of their telemetry. Blocks: off the event loop.

The work is bounded: spans of one model are read, ROWS_MAX of them at most, and what needs more is refused.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from msgspec import structs
from sqlalchemy import Row

from appliance.controller import tables
from appliance.controller.fleet_store import FleetStore, View
from appliance.controller.people import Unknown
from appliance.controller.standings import SHOWN, Wished, is_current, report_of, wished_in
from appliance.domain.errors import OperatorError
from appliance.fleet import records
from appliance.fleet.comparison import UNFIT, Comparison, Heard, middle_of, over_sites, sites_of
from appliance.fleet.deeds import SPAN_MS, Deeds, Sum, decode_deeds
from appliance.fleet.places import FAILURES, REVOKED
from appliance.fleet.records import Loaded, ModelHistory, RecordInvalid

FIGURES: Final = "serve"
"""The stream that brings what versions did."""
ROWS_MAX: Final = 1_000_000
COLUMNS: Final = (*SHOWN, "inventory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Which version (0: the newest that answered), against which (0: the next lower one that did), of which model
    ("": the same); on the devices of a group, or on one ("": all), since when; ``least``: requests of both versions
    without which a site is not compared."""

    model: str
    version: int = 0
    against_model: str = ""
    against: int = 0
    group: str = ""
    device: str = ""
    since_ms: int = 0
    least: int


class _Done:
    """What versions of one model did on each device, and how they were loaded; ``released`` are those that were
    uploaded here."""

    def __init__(self, rows: View, question: Question, model: str) -> None:
        self.sums: dict[tuple[str, int], Sum] = {}
        self.loads: dict[tuple[str, int], Row[Any]] = {}
        since_ms = question.since_ms - question.since_ms % SPAN_MS
        count = 0
        for row in rows.deeds(model, since_ms, question.group, question.device, ROWS_MAX + 1):
            count += 1
            self.sums.setdefault((row.device, row.version), Sum()).add(decode_deeds(row.deeds))
        if count > ROWS_MAX:
            raise OperatorError(
                f"'{model}' has more than {ROWS_MAX:,} spans of six hours on devices in that time; "
                "ask for one group, or less time"
            )
        for row in rows.loads(model, question.group, question.device):
            self.loads[row.device, row.version] = row
        self.released = {row.version for row in rows.all(tables.releases, "version", model=model)}
        self.requests = Counter[int]()
        for (_, version), found in self.sums.items():
            self.requests[version] += found.requests

    def answered(self, but: int = 0) -> list[int]:
        """Versions with requests, except for one. Where released ones are among them, these alone: one box may tell
        of any number, and all others would be shown that."""
        found = [version for version, count in self.requests.items() if count and version != but]
        return [version for version in found if version in self.released] or found

    def deeds(self, device: str, version: int) -> Deeds | None:
        """None: it told of none."""
        found = self.sums.get((device, version))
        return found.deeds() if found is not None else None


class Comparisons:
    """See the module."""

    def __init__(self, store: FleetStore) -> None:
        self._store = store

    def compare(self, question: Question, now_ms: int) -> Comparison:
        """The answer. Raises Unknown where no device told anything of the model, or has the names
        that were given, and OperatorError."""
        with self._store.look() as rows:
            named = rows.all(tables.devices, *COLUMNS, **_key(question))
            if not named and (question.device or question.group):
                raise _nobody(question)
            devices = [row for row in named if row.state != REVOKED]
            wished, lost = wished_in(rows), rows.lost(FIGURES, question.since_ms)
            mine = _Done(rows, question, question.model)
            other_model = question.against_model or question.model
            theirs = mine if other_model == question.model else _Done(rows, question, other_model)
        version = question.version or _newest(mine)
        if not version:
            raise Unknown(
                f"no device has told of requests for '{question.model}' in that time; "
                "'appliance fleet devices' shows who serves it"
            )
        against = question.against or _before(theirs, version, is_same=theirs is mine)
        if (question.model, version) == (other_model, against):
            raise OperatorError(
                f"'{question.model}/{version}' would be compared with itself; name another version"
            )
        heard = [
            each
            for row in devices
            if (each := _heard(row, (question.model, version), against, mine, theirs, wished)) is not None
        ]
        heard = [structs.replace(each, lost=lost.get(each.device, 0)) for each in heard]
        if not heard:
            raise Unknown(f"no device has told of '{question.model}/{version}', and it is wished on none")
        return _comparison(question, (question.model, version), (other_model, against), heard, mine, now_ms)


def _key(question: Question) -> dict[str, str]:
    named = {"name": question.device, "in_group": question.group}
    return {column: value for column, value in named.items() if value}


def _nobody(question: Question) -> Unknown:
    """What is wrong where no device has the names that were given."""
    if not question.device:
        return Unknown(f"no device is in the group '{question.group}'")
    where = f" in the group '{question.group}'" if question.group else ""
    return Unknown(f"there is no device '{question.device}'{where}")


def _newest(done: _Done) -> int:
    """The newest version that answered something; else that was tried; 0: there is none."""
    tried = {version for _, version in done.loads}
    return max(done.answered(), default=0) or max(tried & done.released or tried, default=0)


def _before(done: _Done, version: int, *, is_same: bool) -> int:
    """The version that is looked at beside: the next lower one, or else the next higher one, that answered something;
    of another model the newest."""
    others = done.answered(but=version if is_same else 0)
    if not is_same:
        return max(others, default=0)
    lower = [each for each in others if each < version]
    return max(lower) if lower else min(others, default=0)


def _heard(
    row: Row[Any], slot: tuple[str, int], against: int, mine: _Done, theirs: _Done, wished: Wished
) -> Heard | None:
    """What is known of a device; None: it has nothing to do with the version."""
    model, version = slot
    key, report = (row.name, version), report_of(row)
    found = next((each for each in report.models if each.name == model), None)
    is_wished = wished(model, row.name, row.in_group) == slot
    serving = found.serving if found is not None else 0
    if not (is_wished or serving == version or key in mine.sums or key in mine.loads):
        return None
    load, other = mine.loads.get(key), theirs.loads.get((row.name, against))
    refuses = found is not None and found.phase in FAILURES and is_current(row, report, row.generation)
    return Heard(
        device=row.name,
        group=row.in_group,
        serving=serving,
        seen_ms=row.seen_ms,
        facts=json.loads(row.inventory),
        new=mine.deeds(row.name, version),
        old=theirs.deeds(row.name, against) if against else None,
        load=_record(load.loaded, Loaded) if load is not None else None,
        old_load=_record(other.loaded, Loaded) if other is not None else None,
        ending=_record(load.ending, ModelHistory) if load is not None else None,
        refusal=(found.phase, found.reason) if found is not None and is_wished and refuses else None,
    )


def _record(data: bytes, kind: type[Any]) -> Any:
    """The record that was kept; None: there is none."""
    try:
        found = records.decode(data) if data else None
    except RecordInvalid:
        return None
    return found if isinstance(found, kind) else None


def _comparison(
    question: Question,
    mine: tuple[str, int],
    theirs: tuple[str, int],
    heard: list[Heard],
    done: _Done,
    now_ms: int,
) -> Comparison:
    sites = sites_of(heard, question.least)
    new, old = over_sites(heard)
    ratios = [each.p99_ratio for each in sites if each.p99_ratio is not None]
    return Comparison(
        model=mine[0],
        version=mine[1],
        against_model=theirs[0],
        against=theirs[1],
        from_ms=question.since_ms - question.since_ms % SPAN_MS,
        until_ms=now_ms,
        group=question.group,
        least=question.least,
        versions={str(version): count for version, count in sorted(done.requests.items())},
        serving=sum(each.serving == mine[1] for each in sites),
        compared=len(ratios),
        unfit=sum(each.ending in UNFIT for each in sites),
        unheard=sum(each.new is None and each.load is None and not each.ending for each in sites),
        new=new,
        old=old,
        p50_ratio=middle_of([each.p50_ratio for each in sites]),
        p99_ratio=middle_of(ratios),
        mean_ratio=middle_of([each.mean_ratio for each in sites]),
        run_p99_ratio=middle_of([each.run_p99_ratio for each in sites]),
        worst_ratio=max(ratios, default=None),
        sites=sites,
    )
