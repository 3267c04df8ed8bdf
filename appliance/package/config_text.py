"""A model's ``config.pbtxt`` as it goes into a package: the same text, but for its name and the name of its graph.

Everything else, comments included, stays as it was written. Pure.
"""

from __future__ import annotations

import re
from typing import Final

from appliance.errors import ArtefactError
from appliance.repository.pbtxt import Field, Message, parse

_VALUE: Final = re.compile(
    r"""\s*:\s*(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')(?!\s*["'])(?:[ \t]*[,;])?"""
)


def packed_config(source: bytes | None, name: str, graph_file: str) -> bytes:
    """The configuration ``source`` (None: there is none) of a model called ``name`` whose file is ``graph_file``.
    Raises ArtefactError."""
    said = {"name": name, "default_model_filename": graph_file}
    lines = "".join(f'{key}: "{value}"\n' for key, value in said.items())
    if source is None:
        return lines.encode()
    text = source.decode("utf-8-sig")
    missing = ""
    for key, value in said.items():
        field = _field(parse(text.encode()), key)
        if field is None:
            missing += f'{key}: "{value}"\n'
            continue
        start = _offset(text, field.line, field.column)
        match = _VALUE.match(text, start + len(key))
        if match is None:
            raise ArtefactError(
                f"line {field.line}: give '{key}' as one plain text, so that it can be changed"
            )
        text = f'{text[:start]}{key}: "{value}"{text[match.end() :]}'
    return (missing + text).encode()


def _field(tree: Message, key: str) -> Field | None:
    return next((field for field in tree.fields if field.name == key), None)


def _offset(text: str, line: int, column: int) -> int:
    """Where a place that counts from 1 is in the text."""
    start = 0
    for _ in range(line - 1):
        start = text.index("\n", start) + 1
    return start + column - 1
