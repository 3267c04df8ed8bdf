"""What versions do, added up as the telemetry of a device comes: in the transaction that keeps the records, so each
counts once, whenever it comes and however often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from appliance.controller import tables
from appliance.fleet.deeds import Clock, Deeds, Key, added, decode_deeds, encode_deeds, told_in

MODELS_AT_ONCE: Final = 500
"""Names in one statement."""
VERSIONS_MAX: Final = 256
"""Versions of one model that a device may tell of, in one span or by their loads: who asks how a model does reads those
of all devices, and one of them may make them up."""


class Rows(Protocol):
    """What is in the database, within a transaction, as ``fleet_store.Rows`` has it."""

    def one(self, table: Any, **key: Any) -> Any:
        """The row with this key."""

    def all(self, table: Any, *columns: str, **key: Any) -> Sequence[Any]:
        """The rows with these values."""

    def remove(self, table: Any, **key: Any) -> int:
        """Remove rows."""

    def put_all(self, table: Any, values: Sequence[Mapping[str, Any]]) -> None:
        """Put many."""


def add_up(rows: Rows, device: str, records: Sequence[bytes], came_ms: int, row_bytes: int) -> int:
    """Add what the ``records``, which are new, say to what is kept of the device; gives by how many bytes that grew,
    each row counted with ``row_bytes``."""
    known = rows.one(tables.devices, name=device)
    enrolled_ms, ahead_ms = (known.created_ms, known.clock_ahead_ms) if known is not None else (0, 0)
    told = told_in(records, Clock(came_ms, enrolled_ms, ahead_ms))
    grown = _keep_deeds(rows, device, told.deeds, row_bytes)
    for column, said in (("loaded", told.loads), ("ending", told.endings)):
        grown += _keep_loads(rows, device, said, column, came_ms, row_bytes)
    return grown


def _keep_deeds(rows: Rows, device: str, deeds: dict[Key, Deeds], row_bytes: int) -> int:
    if not deeds:
        return 0
    spans = tuple({key.span_ms for key in deeds})
    found = _of_models(rows, tables.deeds, device, {key.model for key in deeds}, at_ms=spans)
    there = {Key(row.model, row.version, row.at_ms): row.deeds for row in found}
    versions = Counter((key.model, key.span_ms) for key in there)
    grown, values = 0, list[dict[str, Any]]()
    for key, more in deeds.items():
        before = there.get(key)
        if before is None:
            versions[key.model, key.span_ms] += 1
            if versions[key.model, key.span_ms] > VERSIONS_MAX:
                continue
        data = encode_deeds(added([decode_deeds(before), more]) if before is not None else more)
        grown += len(data) - (len(before) if before is not None else -row_bytes)
        row = {"device": device, "model": key.model, "at_ms": key.span_ms, "version": key.version}
        values.append({**row, "deeds": data})
    if values:
        rows.put_all(tables.deeds, values)
    return grown


def _keep_loads(
    rows: Rows, device: str, said: dict[tuple[str, int], bytes], column: str, came_ms: int, row_bytes: int
) -> int:
    """Of more versions of a model than may be, those go that were told of longest ago."""
    if not said:
        return 0
    news = dict[str, dict[int, bytes]]()
    for (model, version), record in said.items():
        news.setdefault(model, {})[version] = record
    known = dict[str, dict[int, Any]]()
    for row in sorted(_of_models(rows, tables.loads, device, news), key=lambda row: row.at_ms):
        known.setdefault(row.model, {})[row.version] = row
    grown, values = 0, list[dict[str, Any]]()
    for model, told in news.items():
        kept, before = dict(list(told.items())[-VERSIONS_MAX:]), known.get(model, {})
        others = [row for version, row in before.items() if version not in kept]
        gone = others[: max(len(others) + len(kept) - VERSIONS_MAX, 0)]
        if gone:
            versions = tuple(row.version for row in gone)
            rows.remove(tables.loads, device=device, model=model, version=versions)
            grown -= sum(row_bytes + len(row.loaded) + len(row.ending) for row in gone)
        for version, record in kept.items():
            old = before.get(version)
            grown += len(record) - (len(getattr(old, column)) if old is not None else -row_bytes)
            key = {"device": device, "model": model, "version": version}
            values.append({**key, "at_ms": came_ms, column: record})
    rows.put_all(tables.loads, values)
    return grown


def _of_models(rows: Rows, table: Any, device: str, models: Iterable[str], **key: Any) -> Iterator[Any]:
    """The rows of a device that are of the models."""
    names = sorted(models)
    for start in range(0, len(names), MODELS_AT_ONCE):
        yield from rows.all(table, device=device, model=tuple(names[start : start + MODELS_AT_ONCE]), **key)
