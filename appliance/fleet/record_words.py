"""A record of a device in words, for a person who reads many of them."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
from msgspec import structs

from appliance.fleet import records

OF_ALL: Final = frozenset({"schema", "at_ms"})


def record_text(record: Any) -> str:
    """The kind, and what is not nothing in it; ``record`` is as JSON has it. One that is of no known kind stays as it
    is."""
    try:
        said = records.decode(msgspec.msgpack.encode(record))
    except records.RecordInvalid:
        return json.dumps(record)
    fields: dict[str, object]
    match said:
        case records.Event():
            told = ", ".join(f"{key}={value}" for key, value in said.fields.items())
            return f"{said.what}: {told}" if told else said.what
        case records.Minute():
            fields = {f"{each.name}/{each.version}": sum(each.outcomes) for each in said.versions}
        case _:
            names = (each.name for each in structs.fields(said) if each.name not in OF_ALL)
            fields = {name: getattr(said, name) for name in names}
    told = ", ".join(f"{name}={value}" for name, value in fields.items() if value)
    return f"{record[0]}: {told}" if told else str(record[0])
