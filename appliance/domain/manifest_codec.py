"""A manifest as canonical bytes, and back.

JSON in UTF-8 with keys in order of their code points, no blanks, no escapes but those that JSON demands; values are
objects, lists, texts, integers of 64 bits, true and false. What is absent is left out and is never null. A real number
would travel as the text that Python's ``repr`` gives. One manifest has one form: bytes that are not what ``encode``
gives for what they say are refused, so that a digest names a manifest and not a spelling of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

from appliance.domain.binding import bind
from appliance.domain.errors import ConfigInvalid, PackageInvalid, Problem
from appliance.domain.manifest import FILES_MAX, FORMAT, PORTS_MAX, TENSORS_MAX, Manifest, manifest_problems
from appliance.domain.tensor import Datatype

MANIFEST_BYTES_MAX: Final = 8 << 20
FILE: Final = "manifest.json"
_SHOWN: Final = 100
_COUNTS: Final = (
    ("files", FILES_MAX),
    ("tensors", TENSORS_MAX),
    ("inputs", PORTS_MAX),
    ("outputs", PORTS_MAX),
)


def encode(manifest: Manifest) -> bytes:
    """The canonical bytes; raises PackageInvalid with everything that keeps it from being a manifest."""
    if problems := _gathered(manifest_problems(manifest)):
        raise PackageInvalid(problems)
    data = _canonical(_plain(manifest))
    if len(data) > MANIFEST_BYTES_MAX:
        raise PackageInvalid([_problem("", f"has {len(data)} bytes; the limit is {MANIFEST_BYTES_MAX}")])
    return data


def decode(data: bytes) -> Manifest:
    """The manifest that ``data`` is; raises PackageInvalid with everything that is wrong with it."""
    table = _table(data)
    try:
        manifest = bind(Manifest, table, FILE, checked=False)
    except ConfigInvalid as error:
        raise PackageInvalid(error.problems[:_SHOWN]) from None
    if problems := _gathered(manifest_problems(manifest)):
        raise PackageInvalid(problems)
    again = _canonical(_plain(manifest))
    if again != data:
        at = next(
            (i for i, pair in enumerate(zip(again, data, strict=False)) if pair[0] != pair[1]), len(again)
        )
        raise PackageInvalid([_problem("", f"is not in canonical form, from byte {at} on")])
    return manifest


def _table(data: bytes) -> Mapping[str, object]:
    """The JSON object, its format and counts looked at before anything is made of it."""
    if len(data) > MANIFEST_BYTES_MAX:
        raise PackageInvalid([_problem("", f"has {len(data)} bytes; the limit is {MANIFEST_BYTES_MAX}")])
    try:
        table = json.loads(data.decode())
    except (ValueError, RecursionError) as error:  # ValueError: not UTF-8, not JSON, endless digits
        raise PackageInvalid([_problem("", f"is not JSON: {str(error)[:200]}")]) from None
    if not isinstance(table, dict):
        raise PackageInvalid([_problem("", "is not a JSON object")])
    said = table.get("format")
    if said != FORMAT or isinstance(said, bool):
        text = f"is {str(said)[:20]!r}; this appliance knows format {FORMAT}, update it for newer ones"
        raise PackageInvalid([_problem("format", text)])
    for key, limit in _COUNTS:
        entries = table.get(key)
        if isinstance(entries, list) and len(entries) > limit:
            raise PackageInvalid([_problem(key, f"has {len(entries)} entries; the limit is {limit}")])
    return table


def _plain(value: object) -> Any:
    if is_dataclass(value):
        named = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {name: _plain(inner) for name, inner in named if inner is not None}
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, Datatype):
        return value.wire
    return value


def _canonical(plain: object) -> bytes:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _gathered(found: Iterable[tuple[str, str]]) -> list[Problem]:
    """At most _SHOWN of them: a hostile manifest can break a rule at every entry."""
    return [_problem(key, text) for key, text in _first(found)]


def _first(found: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for index, each in enumerate(found):
        if index == _SHOWN:
            yield "", f"has more than {_SHOWN} problems; these are the first"
            return
        yield each


def _problem(key: str, text: str) -> Problem:
    return Problem(file=FILE, key=key, text=text)
