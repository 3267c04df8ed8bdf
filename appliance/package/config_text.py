"""A model's ``config.pbtxt`` with other values in it: the same text, comments included, but for what is to be changed.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from appliance.repository.pbtxt import Message, Scalar, ScalarKind, parse

_SEPARATOR: Final = re.compile(r"[ \t]*[,;]?[ \t]*")


def packed_config(source: bytes | None, name: str, graph_file: str) -> bytes:
    """The configuration ``source`` (None: there is none) of a model called ``name`` whose file is ``graph_file``,
    without ``version_policy``: a package is one version. Raises PbtxtError."""
    values = {"default_model_filename": graph_file, "name": name}
    return changed_config(source or b"", values, without=("version_policy",))


def changed_config(
    source: bytes,
    values: Mapping[str, str],
    *,
    without: Collection[str] = (),
    texts: Mapping[str, str] | None = None,
) -> bytes:
    """``source`` with the texts ``values`` in its fields of these names (put first where they are missing), the fields
    ``without`` taken out, and texts anywhere in it that are keys of ``texts`` replaced. Raises PbtxtError."""
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
            changes += _replaced(field.values, field.start, field.end, text, texts or {})
    for start, end, new in reversed(changes):
        text = text[:start] + new + text[end:]
    present = {field.name for field in tree.fields}
    missing = "".join(f'{key}: "{value}"\n' for key, value in values.items() if key not in present)
    return (missing + text).encode()


def _replaced(
    values: Collection[Scalar | Message], start: int, end: int, text: str, texts: Mapping[str, str]
) -> list[tuple[int, int, str]]:
    """The changes within one field: texts that are its value, or the value of a field inside."""
    found: list[tuple[int, int, str]] = []
    for value in values:
        if isinstance(value, Message):
            for field in value.fields:
                found += _replaced(field.values, field.start, field.end, text, texts)
        elif value.kind is ScalarKind.STRING and (new := texts.get(value.data.decode(errors="replace"))):
            name = re.match(r"\w+", text[start:end])
            found.append((start, end, f'{name.group() if name else ""}: "{new}"'))
    return found
