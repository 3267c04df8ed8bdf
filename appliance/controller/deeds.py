"""What versions do, added up as the telemetry of a device comes: in the transaction that keeps the records, so each
counts once, whenever it comes and however often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from appliance.controller import tables
from appliance.fleet.deeds import Clock, Deeds, Key, added, decode_deeds, encode_deeds, told_in

MODELS_AT_ONCE: Final = 500
"""Names in one statement."""


class Rows(Protocol):
    """What is in the database, within a transaction, as ``fleet_store.Rows`` has it."""

    def one(self, table: Any, **key: Any) -> Any:
        """The row with this key."""

    def all(self, table: Any, *columns: str, **key: Any) -> Sequence[Any]:
        """The rows with these values."""

    def put(self, table: Any, **values: Any) -> None:
        """Put a row."""

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
    spans, models = tuple({key.span_ms for key in deeds}), sorted({key.model for key in deeds})
    there: dict[Key, bytes] = {}
    for start in range(0, len(models), MODELS_AT_ONCE):
        some = tuple(models[start : start + MODELS_AT_ONCE])
        found = rows.all(tables.deeds, device=device, model=some, at_ms=spans)
        there.update((Key(row.model, row.version, row.at_ms), row.deeds) for row in found)
    grown, values = 0, list[dict[str, Any]]()
    for key, more in deeds.items():
        before = there.get(key)
        data = encode_deeds(added([decode_deeds(before), more]) if before is not None else more)
        grown += len(data) - (len(before) if before is not None else -row_bytes)
        row = {"device": device, "model": key.model, "at_ms": key.span_ms, "version": key.version}
        values.append({**row, "deeds": data})
    rows.put_all(tables.deeds, values)
    return grown


def _keep_loads(
    rows: Rows, device: str, said: dict[tuple[str, int], bytes], column: str, came_ms: int, row_bytes: int
) -> int:
    grown = 0
    for (model, version), record in said.items():
        key = {"device": device, "model": model, "version": version}
        before = rows.one(tables.loads, **key)
        grown += len(record) - (len(getattr(before, column)) if before is not None else -row_bytes)
        rows.put(tables.loads, **key, at_ms=came_ms, **{column: record})
    return grown
