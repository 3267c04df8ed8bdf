"""Writes settings as TOML."""

from __future__ import annotations

DOCUMENTATION = r"""
name: to_toml
short_description: Write a dictionary as TOML
version_added: 0.1.0
description:
  - Strings, integers, floats, booleans, lists of them and tables in tables; other values are refused with their place.
  - Keys keep their order, but for tables, which come after the values of theirs.
positional: _input
options:
  _input:
    description: Settings by name.
    type: dict
    required: true
author:
  - Edge appliance maintainers (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Write a configuration
  ansible.builtin.copy:
    content: "{{ {'grpc': {'addresses': ['0.0.0.0:8001']}} | edge.appliance.to_toml }}"
    dest: /etc/appliance/appliance.toml
    mode: "0644"
"""

RETURN = r"""
_value:
  description: The text.
  type: str
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(settings: Mapping[str, Any]) -> str:
    """Write ``settings`` as TOML.

    Raises:
        AnsibleFilterError: a value that TOML does not have; it names all of them
    """
    if not isinstance(settings, Mapping):
        raise AnsibleFilterError(f"to_toml: settings are a dictionary, not {type(settings).__name__}")
    wrong: list[str] = []
    text = "\n".join(_table((), settings, wrong))
    if wrong:
        raise AnsibleFilterError("to_toml: " + "; ".join(wrong))
    return text + "\n"


def _table(place: tuple[str, ...], settings: Mapping[str, Any], wrong: list[str]) -> Iterator[str]:
    tables = {key: value for key, value in settings.items() if isinstance(value, Mapping)}
    values = {key: value for key, value in settings.items() if key not in tables}
    if place and (values or not tables):
        yield f"\n[{'.'.join(map(_key, place))}]"
    for key, value in values.items():
        yield f"{_key(key)} = {_value((*place, key), value, wrong)}"
    for key, value in tables.items():
        yield from _table((*place, str(key)), value, wrong)


def _key(key: object) -> str:
    name = str(key)
    return name if BARE.fullmatch(name) else _text(name)


def _value(place: tuple[str, ...], value: object, wrong: list[str]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float) and math.isfinite(value):
        return repr(float(value))
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return "[" + ", ".join(_value(place, each, wrong) for each in value) + "]"
    wrong.append(f"{'.'.join(map(str, place))}: TOML has no {type(value).__name__} like {value!r}")
    return ""


def _text(value: str) -> str:
    """A basic string: JSON's, but for DEL, which TOML wants escaped."""
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


class FilterModule:
    """What Ansible loads."""

    def filters(self) -> dict[str, Any]:
        """The filters by name."""
        return {"to_toml": to_toml}
