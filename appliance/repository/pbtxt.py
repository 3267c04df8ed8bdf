"""Protobuf text format to a tree that remembers where each value stands.

Rules kept here: the grammar only - comments, nested messages in braces or angle brackets, lists, adjacent
strings, escapes - and no schema, so that the reader of the tree can report every problem with its line and
column. Nesting is bounded. Extension and Any names in brackets are not read: no model configuration has them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from appliance.domain.errors import ArtefactError

DEPTH_MAX: Final = 32

_BLANK: Final = re.compile(r"(?:[ \t\r\n\f\v]+|#[^\n]*)*+")
_TOKEN: Final = re.compile(
    r"""(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<number>(?:0[xX][0-9a-fA-F]+|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?)(?![A-Za-z0-9_.]))
    |(?P<string>"(?:[^"\\\n]|\\[^\n])*+"|'(?:[^'\\\n]|\\[^\n])*+')
    |(?P<symbol>[{}<>\[\]:,;-])""",
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(
    r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_SIMPLE_ESCAPES: Final[Mapping[str, bytes]] = MappingProxyType(
    {
        "n": b"\n",
        "r": b"\r",
        "t": b"\t",
        "a": b"\a",
        "b": b"\b",
        "f": b"\f",
        "v": b"\v",
        "\\": b"\\",
        "'": b"'",
        '"': b'"',
        "?": b"?",
    }
)


class PbtxtError(ArtefactError):
    """Text that is not protobuf text format; ``line`` and ``column`` count from 1."""

    def __init__(self, text: str, line: int, column: int) -> None:
        super().__init__(text)
        self.line = line
        self.column = column


class ScalarKind(Enum):
    """How a value is written."""

    NUMBER = "a number"
    NAME = "a name"
    STRING = "a string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """A value without fields. ``text`` is a number or name as written, with its sign; ``data`` the bytes of a
    string."""

    kind: ScalarKind
    text: str
    data: bytes
    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Fields in the order of the file; a repeated field may be there several times."""

    fields: tuple[Field, ...]
    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One mention of a field: a single value, or those of a list (perhaps none). In the text, without its mark of
    byte order, it takes the characters from ``start`` up to ``end``, a separator after it not included."""

    name: str
    values: tuple[Value, ...]
    line: int
    column: int
    start: int
    end: int


Value = Scalar | Message


def parse(source: bytes) -> Message:
    """The tree of a file in text format; raises PbtxtError at the first place where it is none."""
    try:
        text = source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = source[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        raise PbtxtError("is not UTF-8 text", line, column) from error
    return _Parser(text).document()


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


class _Places:
    """Offsets to lines and columns."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def of(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1


class _Parser:
    """Recursive descent over the tokens, one ahead."""

    def __init__(self, text: str) -> None:
        self._places = _Places(text)
        self._tokens = self._scan(text)
        self._next = next(self._tokens)
        self._end = 0  # of the token taken last

    def _scan(self, text: str) -> Iterator[_Token]:
        position = 0
        while True:
            blank = _BLANK.match(text, position)
            position = blank.end() if blank else position
            if position == len(text):
                break
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._error(f"unexpected {_shown(text, position)}", position)
            yield _Token(match.lastgroup or "", match.group(), position)
            position = match.end()
        yield _Token("end", "the end of the file", position)

    def _error(self, text: str, offset: int) -> PbtxtError:
        return PbtxtError(text, *self._places.of(offset))

    def _unexpected(self, expected: str) -> PbtxtError:
        token = self._next
        found = token.text if token.kind == "end" else f"'{token.text[:40]}'"
        return self._error(f"expected {expected}, found {found}", token.start)

    def _take(self) -> _Token:
        token = self._next
        if token.kind != "end":
            self._next = next(self._tokens)
            self._end = token.start + len(token.text)
        return token

    def _accept(self, *symbols: str) -> str:
        """The next token when it is one of ``symbols``, else nothing."""
        if self._next.kind == "symbol" and self._next.text in symbols:
            return self._take().text
        return ""

    def document(self) -> Message:
        """All fields up to the end of the file."""
        fields = self._fields(0)
        if self._next.kind != "end":
            raise self._unexpected("a field name")
        return Message(fields=fields, line=1, column=1)

    def _fields(self, depth: int) -> tuple[Field, ...]:
        fields = []
        while self._next.kind == "name":
            name = self._take()
            line, column = self._places.of(name.start)
            values = self._field_values(name.text, depth)
            fields.append(
                Field(
                    name=name.text, values=values, line=line, column=column, start=name.start, end=self._end
                )
            )
            self._accept(",", ";")
        return tuple(fields)

    def _field_values(self, name: str, depth: int) -> tuple[Value, ...]:
        colon = self._accept(":")
        if self._accept("["):
            return tuple(self._list(depth))
        if not colon and not self._opens_message():
            raise self._unexpected(f"':' or '{{' after '{name}'")
        return (self._value(depth),)

    def _list(self, depth: int) -> Iterator[Value]:
        if self._accept("]"):
            return
        while True:
            yield self._value(depth)
            if self._accept("]"):
                return
            if not self._accept(","):
                raise self._unexpected("',' or ']'")

    def _opens_message(self) -> bool:
        return self._next.kind == "symbol" and self._next.text in "{<"

    def _value(self, depth: int) -> Value:
        return self._message(depth + 1) if self._opens_message() else self._scalar()

    def _message(self, depth: int) -> Message:
        if depth > DEPTH_MAX:
            raise self._error(f"messages are nested more than {DEPTH_MAX} deep", self._next.start)
        opening = self._take()
        line, column = self._places.of(opening.start)
        fields = self._fields(depth)
        closing = "}" if opening.text == "{" else ">"
        if not self._accept(closing):
            raise self._unexpected(f"a field name or the '{closing}' for the '{opening.text}' of line {line}")
        return Message(fields=fields, line=line, column=column)

    def _scalar(self) -> Scalar:
        start = self._next.start
        line, column = self._places.of(start)
        if self._next.kind == "string":
            data = b"".join(self._strings())
            return Scalar(kind=ScalarKind.STRING, text="", data=data, line=line, column=column)
        sign = self._accept("-")
        if self._next.kind not in ("number", "name"):
            raise self._unexpected("a value")
        kind = ScalarKind.NUMBER if self._next.kind == "number" else ScalarKind.NAME
        return Scalar(kind=kind, text=sign + self._take().text, data=b"", line=line, column=column)

    def _strings(self) -> Iterator[bytes]:
        """Adjacent strings are one."""
        while self._next.kind == "string":
            token = self._take()
            yield self._unescape(token)

    def _unescape(self, token: _Token) -> bytes:
        body = token.text[1:-1]
        parts: list[bytes] = []
        position = 0
        for match in _ESCAPE.finditer(body):
            parts.append(body[position : match.start()].encode())
            parts.append(self._escaped(match, token.start + 1 + match.start()))
            position = match.end()
        parts.append(body[position:].encode())
        return b"".join(parts)

    def _escaped(self, match: re.Match[str], offset: int) -> bytes:
        octal, hexadecimal, short, long, simple = match.groups()
        if octal:
            code = int(octal, 8)
            if code > 0xFF:
                raise self._error(f"'{match.group()}' is more than one byte", offset)
            return bytes((code,))
        if hexadecimal:
            return bytes((int(hexadecimal, 16),))
        if short or long:
            return self._character(int(short or long, 16), offset)
        found = _SIMPLE_ESCAPES.get(simple)
        if found is None:
            raise self._error(f"unknown escape '{match.group()}' in a string", offset)
        return found

    def _character(self, code: int, offset: int) -> bytes:
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise self._error(f"U+{code:04X} is not a character", offset)
        return chr(code).encode()


def _shown(text: str, position: int) -> str:
    if text[position] in "\"'":
        return "string that does not end on its line"
    return f"'{text[position]}'" if text[position].isprintable() else f"character U+{ord(text[position]):04X}"
