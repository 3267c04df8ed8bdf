"""A model's ``config.pbtxt`` with other values in it: the same text, comments included, but for what is to be changed.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from appliance.domain.interface import ALLOWED_PARAMETER
from appliance.repository.pbtxt import Field, Message, ScalarKind, parse

_SEPARATOR: Final = re.compile(r"[ \t]*[,;]?[ \t]*")


ALLOWANCE: Final = f'parameters {{ key: "{ALLOWED_PARAMETER}" value {{ string_value: "true" }} }}\n'.encode()


def packed_config(
    source: bytes | None, name: str, graph_file: str, *, interface_change: bool = False
) -> bytes:
    """The configuration ``source`` (None: there is none) of a model called ``name`` whose file is ``graph_file``,
    without ``version_policy``: a package is one version; with an ``interface_change`` it says that clients change
    along, unless it speaks of that already. Raises PbtxtError."""
    values = {"default_model_filename": graph_file, "name": name}
    config = changed_config(source or b"", values, without=("version_policy",))
    said = ALLOWED_PARAMETER.encode() in config
    return config if said or not interface_change else ALLOWANCE + config


def place_in_source(source: bytes, packed: bytes, line: int, column: int) -> tuple[int, int] | None:
    """Line and column where ``source`` has what ``packed``, which was made of it, has there; None for what was put in.
    Raises PbtxtError."""
    fields = parse(packed).fields
    index = sum((each.line, each.column) <= (line, column) for each in fields) - 1
    if index < 0:
        return None
    field = fields[index]
    later = sum(each.name == field.name for each in fields[index + 1 :])
    same = [each for each in parse(source).fields if each.name == field.name]
    if later >= len(same):
        return None
    origin = same[-1 - later]  # counted from the end: what is put in comes first
    return origin.line + line - field.line, column + (origin.column - field.column) * (line == field.line)


def changed_config(
    source: bytes,
    values: Mapping[str, str],
    *,
    without: Collection[str] = (),
    inner: Mapping[tuple[str, str], str] | None = None,
) -> bytes:
    """``source`` with the texts ``values`` in its fields of these names (put first where they are missing), the fields
    ``without`` taken out, and the texts in fields anywhere in it replaced by ``inner``, whose keys are the field's name
    and its text. Raises PbtxtError."""
    tree = parse(source)
    text = source.decode("utf-8-sig")
    changes: list[tuple[int, int, str]] = []
    for field in tree.fields:
        if field.name in values:
            changes.append((field.start, field.end, f'{field.name}: "{values[field.name]}"'))
        elif field.name in without:
            separator = _SEPARATOR.match(text, field.end)
            changes.append((field.start, separator.end() if separator else field.end, ""))
        else:
            changes += _replaced(field, inner or {})
    for start, end, new in reversed(changes):
        text = text[:start] + new + text[end:]
    present = {field.name for field in tree.fields}
    missing = "".join(f'{key}: "{value}"\n' for key, value in values.items() if key not in present)
    return (missing + text).encode()


def _replaced(field: Field, inner: Mapping[tuple[str, str], str]) -> list[tuple[int, int, str]]:
    """The changes within one field: of the text that is its value, or of fields inside."""
    found: list[tuple[int, int, str]] = []
    for value in field.values:
        if isinstance(value, Message):
            for each in value.fields:
                found += _replaced(each, inner)
        elif value.kind is ScalarKind.STRING:
            new = inner.get((field.name, value.data.decode(errors="replace")))
            if new is not None:
                found.append((field.start, field.end, f'{field.name}: "{new}"'))
    return found
