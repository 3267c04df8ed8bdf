"""Strict reading of JSON that came from outside: one value, UTF-8, no duplicate keys, bounded nesting.

Pure. Large integers are left to the reader that knows the range they must have.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from appliance.domain.errors import InvalidRequest

MAX_NESTING: Final = 100
"""Deepest nesting of arrays and objects that is read."""


def parse_json(text: bytes | bytearray | memoryview, what: str) -> Any:
    """The value of ``text``; ``what`` names it in errors. Raises InvalidRequest saying where and why."""
    try:
        return _DECODER.decode(str(text, "utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{what} is not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise InvalidRequest(f"{what} is nested deeper than {MAX_NESTING} levels") from None
    except (json.JSONDecodeError, _KeyTwice) as error:
        raise InvalidRequest(f"{what} is not valid JSON: {error}") from None
    except ValueError:  # the interpreter's only other reason, whose words tell clients of its settings
        digits = sys.get_int_max_str_digits()
        raise InvalidRequest(f"{what} holds a whole number of more than {digits} digits") from None


def check_nesting(value: object, what: str) -> None:
    """Refuse a value nested deeper than MAX_NESTING with InvalidRequest."""
    level = [value]
    for _ in range(MAX_NESTING):
        level = [inner for outer in level for inner in _children(outer)]
        if not level:
            return
    raise InvalidRequest(f"{what} is nested deeper than {MAX_NESTING} levels")


def _children(value: object) -> list[object]:
    if isinstance(value, dict):
        return [inner for inner in value.values() if isinstance(inner, (dict, list))]
    if isinstance(value, list):
        return [inner for inner in value if isinstance(inner, (dict, list))]
    return []


class _KeyTwice(ValueError):
    """An object names a key twice."""


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _KeyTwice(f"key {twice!r} appears twice in one object")
    return document


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique)
