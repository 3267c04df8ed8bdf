"""Strict reading of JSON that a request has: one value, UTF-8, no duplicate keys, bounded nesting.

Pure. Large integers are left to the reader that knows the range they must have.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any, Final

from appliance.domain.errors import InvalidRequest
from appliance.domain.steps import Steps

MAX_NESTING: Final = 100
"""Deepest nesting of arrays and objects that is read."""


def parse_json(text: bytes | bytearray | memoryview) -> Any:
    """The value of ``text``. Raises InvalidRequest saying where and why."""
    with _refusing():
        return _DECODER.decode(str(text, "utf-8"))


def read_json(text: bytes) -> Steps[Any]:
    """What ``parse_json`` gives, in steps where ``text`` is long."""
    if len(text) <= WINDOW:
        return parse_json(text)
    with _refusing():
        return (yield from _Reader(str(text, "utf-8")).document())


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"request is not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise InvalidRequest(f"request is nested deeper than {MAX_NESTING} levels") from None
    except (json.JSONDecodeError, _KeyTwice) as error:
        raise InvalidRequest(f"request is not valid JSON: {error}") from None
    except ValueError:  # the interpreter's only other reason, whose words tell clients of its settings
        digits = sys.get_int_max_str_digits()
        raise InvalidRequest(f"request holds a whole number of more than {digits} digits") from None


def check_nesting(value: object) -> None:
    """Refuse a value nested deeper than MAX_NESTING, or with more in it than MEMBERS_MAX, with InvalidRequest."""
    level, members = [value], 0
    for _ in range(MAX_NESTING):
        members += sum(len(each) for each in level if isinstance(each, (dict, list)))
        if members > MEMBERS_MAX:
            raise InvalidRequest(f"request has more than {MEMBERS_MAX} members outside of tensors")
        level = [inner for outer in level for inner in _children(outer)]
        if not level:
            return
    raise InvalidRequest(f"request is nested deeper than {MAX_NESTING} levels")


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

WINDOW: Final = 32 * 1024
"""Characters of JSON that are read in one step."""
MEMBERS_MAX: Final = 64 * 1024
"""Members of all objects in a long text, themselves included: each costs a hundred times what a number does, and the
largest request needs a tenth of it."""
MEMBERS: Final = 256
"""Members that are read in one step."""

_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_FLAT: Final = rf'(?:[^\[\]{{}}"]++|{_STRING})*+'
_NESTED: Final = reduce(
    lambda inner, _: rf"\[(?:[^\[\]{{}}\"]++|{_STRING}|{inner})*+\]", range(7), rf"\[{_FLAT}\]"
)
_ELEMENTS: Final = re.compile(rf'(?:(?:[^\[\]{{}}",]++|{_STRING}|{_NESTED})++,)++')
"""Whole elements of an array, none of them an object, each with the comma behind it."""
_SPACE: Final = re.compile(r"[ \t\n\r]*+")
_STRUCTURE: Final = re.compile(r'["\[\]{}]')


class _Reader:
    """Reads a long text: objects and arrays member by member, what is short of an array's elements many at a time."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._members = 0

    def document(self) -> Steps[Any]:
        """The value of the text."""
        value, end = yield from self._value(self._skip(0), 0)
        if (end := self._skip(end)) != len(self._text):
            raise self._error("Extra data", end)
        return value

    def _value(self, at: int, depth: int) -> Steps[tuple[Any, int]]:
        begun = self._text[at : at + 1]
        if begun not in ("{", "["):
            return _DECODER.raw_decode(self._text, at)
        if depth >= MAX_NESTING:
            raise RecursionError
        return (yield from (self._object if begun == "{" else self._array)(at + 1, depth + 1))

    def _object(self, at: int, depth: int) -> Steps[tuple[Any, int]]:
        yield from self._member(at)
        members: list[tuple[str, object]] = []
        at = self._skip(at)
        while self._text[at : at + 1] != "}" or members:
            yield from self._member(at)
            if self._text[at : at + 1] != '"':
                raise self._error("Expecting property name enclosed in double quotes", at)
            key, at = _DECODER.raw_decode(self._text, at)
            at = self._skip(at)
            if self._text[at : at + 1] != ":":
                raise self._error("Expecting ':' delimiter", at)
            value, at = yield from self._value(self._skip(at + 1), depth)
            members.append((key, value))
            at = self._skip(at)
            if self._text[at : at + 1] == "}":
                break
            if self._text[at : at + 1] != ",":
                raise self._error("Expecting ',' delimiter", at)
            at = self._skip(at + 1)
        return _unique(members), at + 1

    def _member(self, at: int) -> Steps[None]:
        self._members += 1
        if self._members > MEMBERS_MAX:
            raise self._error(f"More than {MEMBERS_MAX} members of objects", at)
        if self._members % MEMBERS == 0:
            yield

    def _array(self, at: int, depth: int) -> Steps[tuple[Any, int]]:
        text = self._text
        elements: list[Any] = []
        at = self._skip(at)
        while text[at : at + 1] != "]" or elements:
            yield
            end = self._whole(at)
            if end > at:
                elements += self._many(at, end)
                at = self._skip(end + 1)
            value, at = yield from self._value(at, depth)
            elements.append(value)
            at = self._skip(at)
            if text[at : at + 1] == "]":
                break
            if text[at : at + 1] != ",":
                raise self._error("Expecting ',' delimiter", at)
            at = self._skip(at + 1)
        return elements, at + 1

    def _whole(self, at: int) -> int:
        """Where the comma is behind the last whole element within the window; ``at``: there is none."""
        end = at + WINDOW
        if _STRUCTURE.search(self._text, at, end) is None:
            return max(at, self._text.rfind(",", at, end))
        found = _ELEMENTS.match(self._text, at, end)
        return at if found is None else found.end() - 1

    def _many(self, at: int, end: int) -> list[Any]:
        try:
            found: list[Any] = _DECODER.decode(f"[{self._text[at:end]}]")
        except json.JSONDecodeError as error:
            raise self._error(error.msg, at + error.pos - 1) from None
        return found

    def _skip(self, at: int) -> int:
        """The next position from ``at`` that is not white space."""
        space = _SPACE.match(self._text, at)
        return at if space is None else space.end()

    def _error(self, what: str, at: int) -> json.JSONDecodeError:
        return json.JSONDecodeError(what, self._text, at)
