"""A configuration tree as text: TOML with every key, its unit and what it is for, or JSON. Pure.

What it writes as TOML can be read back and gives the same tree.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from enum import Enum
from typing import Any


def as_toml(section: object) -> str:
    """The tree as commented TOML."""
    return "\n".join(_section(section, "")).strip() + "\n"


def as_plain(value: Any) -> Any:
    """The tree as plain values for JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [as_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {key: as_plain(each) for key, each in value.items()}
    return value


def _section(section: Any, path: str) -> Iterator[str]:
    """Plain keys first: TOML reads keys after a table's heading into that table."""
    tables = []
    for field in fields(section):
        value = getattr(section, field.name)
        if is_dataclass(value) or isinstance(value, Mapping):
            tables.append((field, value))
        elif value is not None:
            yield from _comment(field)
            yield f"{field.name} = {_toml(value)}"
    for field, value in tables:
        yield from _table(field, value, f"{path}.{field.name}" if path else field.name)


def _table(field: Field[Any], value: Any, path: str) -> Iterator[str]:
    yield ""
    yield from _comment(field)
    yield f"[{path}]"
    if is_dataclass(value):
        yield from _section(value, path)
        return
    for key, each in value.items():
        if is_dataclass(each):
            yield from _named(each, f"{path}.{json.dumps(key, ensure_ascii=False)}")
        else:
            yield f"{json.dumps(key, ensure_ascii=False)} = {_toml(each)}"


def _named(section: Any, path: str) -> Iterator[str]:
    """One of several sections that have names of their own: what its keys mean was said before them."""
    yield from ("", f"[{path}]")
    yield from (f"{field.name} = {_toml(getattr(section, field.name))}" for field in fields(section))


def _toml(value: Any) -> str:
    """JSON spells numbers, texts, truth values and lists as TOML does."""
    return json.dumps(as_plain(value), ensure_ascii=False)


def _comment(field: Field[Any]) -> Iterator[str]:
    notes = [str(field.metadata["help"])] if "help" in field.metadata else []
    if "unit" in field.metadata and not field.name.endswith(f"_{field.metadata['unit']}"):
        notes.append(f"in {field.metadata['unit']}")
    notes += _bounds(field)
    if notes:
        yield f"# {'; '.join(notes)}"


def _bounds(field: Field[Any]) -> list[str]:
    if isinstance(field.default, Enum):
        return [f"one of {', '.join(str(choice.value) for choice in type(field.default))}"]
    if "choices" in field.metadata:
        return [f"one of {', '.join(map(str, field.metadata['choices']))}"]
    low, high = field.metadata.get("min"), field.metadata.get("max")
    if low is not None and high is not None:
        return [f"{low} to {high}"]
    return [f"at least {low}"] if low else ([f"at most {high}"] if high is not None else [])
