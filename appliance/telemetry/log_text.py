"""Texts of a line: what others said is cut where it is long, and set so that one line stays one line."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

MAX_TEXT: Final = 2_000


def bounded(_logger: object, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Cut texts that callers made long."""
    for key, value in fields.items():
        if isinstance(value, str) and len(value) > MAX_TEXT:
            fields[key] = f"{value[:MAX_TEXT]}... ({len(value)} characters)"
    return fields


def printable(_logger: object, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Keep one line one line: a name that a caller chose must not forge another. Tracebacks keep theirs, set in, since
    what was raised may tell of such names, too."""
    for key, value in fields.items():
        if isinstance(value, str) and not value.isprintable():
            lines = value.split("\n") if key == "exception" else [value]
            fields[key] = "\n    ".join(each if each.isprintable() else _escaped(each) for each in lines)
    return fields


def _escaped(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii")
