"""Typed reading of one message of a text-format tree: every value checked, every leftover field reported.

Rules kept here: a reader asks for fields by name and gets a value in all cases (the default where the file is
wrong), so that reading goes on and all problems are found; a field that was not asked for is a problem. Knows
protobuf's value forms, no particular message.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, TypeVar

from appliance.repository.findings import Findings, Place
from appliance.repository.pbtxt import Field, Message, Scalar, ScalarKind, Value

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
TEXT_BYTES_MAX: Final = 64 << 10
NAME_BYTES_MAX: Final = 4096
"""Of what clients are shown, too, and what names something: as in a package's manifest."""
VALUES_MAX: Final = 1_024
"""Of a list, and entries of a map."""

_TRUE: Final = frozenset({"true", "True", "t", "1"})
_FALSE: Final = frozenset({"false", "False", "f", "0"})
SHOWN_MAX: Final = 40  # bytes of a value in a problem
NO_EFFECT: Final = "is accepted and shown to clients, but has no effect here"
_SIMILAR: Final = 0.6  # above which a known name is suggested

Choice = TypeVar("Choice", bound=Enum)


class Section:
    """One message being read. ``key`` is its path in the file ("" for the whole), ``file`` the file's
    name."""

    def __init__(self, message: Message, *, file: str, key: str, findings: Findings) -> None:
        self._message = message
        self._file = file
        self._key = key
        self._findings = findings
        self._asked: set[str] = set()
        self._fields: dict[str, list[Field]] = {}
        for field in message.fields:
            self._fields.setdefault(field.name, []).append(field)

    def place(self, name: str = "") -> Place:
        """Where a field of this message stands, or would stand."""
        fields = self._fields.get(name)
        at = fields[0] if fields else self._message
        return Place(file=f"{self._file}:{at.line}:{at.column}", key=self._path(name))

    def problem(self, name: str, text: str) -> None:
        """Report a problem at the field ``name`` ("" for the message itself)."""
        self._findings.problem(self.place(name), text)

    def has(self, name: str) -> bool:
        """Whether the field is mentioned at all."""
        self._asked.add(name)
        return name in self._fields

    def integer(self, name: str, *, default: int = 0, minimum: int = 0, maximum: int = INT32_MAX) -> int:
        """A whole number within bounds."""
        value = self._single(name)
        if value is None:
            return default
        number = self._number(self.place(name), value, minimum, maximum)
        return default if number is None else number

    def integers(
        self, name: str, *, minimum: int = 0, maximum: int = INT32_MAX, most: int = VALUES_MAX
    ) -> tuple[int, ...]:
        """A list of whole numbers, each within bounds, and no more than ``most`` of them."""
        found = [
            self._number(self._at(name, value, index), value, minimum, maximum)
            for index, value in enumerate(self._few(name, most))
        ]
        return tuple(number for number in found if number is not None)

    def decimals(self, name: str) -> tuple[float, ...]:
        """A list of numbers."""
        found = []
        for index, value in enumerate(self._few(name, VALUES_MAX)):
            number = _decimal(value)
            if math.isfinite(number):
                found.append(number)
            else:
                self._findings.problem(
                    self._at(name, value, index), f"expected a number, found {_shown(value)}"
                )
        return tuple(found)

    def text(self, name: str, *, longest: int = TEXT_BYTES_MAX) -> str:
        """A string of no more than ``longest`` bytes; "" when it is missing or wrong."""
        value = self._single(name)
        return "" if value is None else self._text(self.place(name), value, longest)

    def only_text(self, name: str) -> str | None:
        """The string of a message that has no other field; None, and one problem, where it is given as another one."""
        other = next(iter(self._fields), name)
        if name in self._fields or other == name:
            return self.text(name)
        self._asked.update(self._fields)
        given = [value for field in self._fields[other] for value in field.values]
        written = "..." if not given or isinstance(given[0], Message) else _written(given[0])
        self.problem(other, f"unknown field '{other}'; say {name}: \"{written}\"")
        return None

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self._single(name)
        if value is None:
            return default
        if isinstance(value, Scalar) and value.kind is not ScalarKind.STRING and value.text in _TRUE | _FALSE:
            return value.text in _TRUE
        self.problem(name, f"expected true or false, found {_shown(value)}")
        return default

    def choice(self, name: str, choices: Mapping[str, Choice]) -> Choice | None:
        """One of the named ``choices``; None when it is missing or wrong."""
        value = self._single(name)
        if value is None:
            return None
        if isinstance(value, Scalar) and value.kind is ScalarKind.NAME and value.text in choices:
            return choices[value.text]
        self.problem(name, f"expected one of {', '.join(choices)}, found {_shown(value)}")
        return None

    def name(self, name: str) -> str:
        """An enum value by its name, unchecked; "" when it is missing."""
        value = self._single(name)
        if value is None:
            return ""
        if isinstance(value, Scalar) and value.kind is ScalarKind.NAME:
            return value.text
        self.problem(name, f"expected a name without quotes, found {_shown(value)}")
        return ""

    def section(self, name: str) -> Section | None:
        """A message, or None when it is missing."""
        value = self._single(name)
        return None if value is None else self._inner(self.place(name), value)

    def sections(self, name: str, *, most: int = VALUES_MAX) -> tuple[Section, ...]:
        """A list of messages, no more than ``most`` of them."""
        found = [
            self._inner(self._at(name, value, index), value)
            for index, value in enumerate(self._few(name, most))
        ]
        return tuple(section for section in found if section is not None)

    def entries(self, name: str) -> tuple[tuple[str, Section], ...]:
        """A map from strings to messages, as (key, section of the value)."""
        return tuple((key, section) for key, section in self._entries(name) if isinstance(key, str))

    def texts(self, name: str) -> tuple[tuple[str, str], ...]:
        """A map from strings to strings."""
        found = []
        for entry in self.sections(name):
            found.append((entry.text("key", longest=NAME_BYTES_MAX), entry.text("value")))
            entry.close()
        return tuple(found)

    def numbered_entries(self, name: str, *, maximum: int) -> tuple[tuple[int, Section], ...]:
        """A map from whole numbers to messages, as (key, section of the value)."""
        return tuple((key, section) for key, section in self._entries(name, maximum) if isinstance(key, int))

    def refuse(self, names: Mapping[str, str]) -> None:
        """Fields that the appliance does not offer, each with what to say when one is there and not empty."""
        for name, reason in names.items():
            if any(not _is_default(value) for value in self._values(name)):
                self.problem(name, reason)

    def ignore(self, names: Iterable[str], reason: str) -> None:
        """Fields that are accepted without effect; each one that is there and not empty becomes a note."""
        for name in names:
            if any(not _is_default(value) for value in self._values(name)):
                self._findings.note(self.place(name), reason)

    def note(self, text: str) -> None:
        """Tell the operator something about this message that stops nothing."""
        self._findings.note(self.place(), text)

    def close(self) -> None:
        """Report every field that was not asked for."""
        for name in self._fields:
            if name not in self._asked:
                near = () if self._findings.full else self._near(name)
                hint = f"; did you mean '{near[0]}'?" if near else ""
                self.problem(name, f"unknown field '{name}'{hint}")

    def _near(self, name: str) -> Sequence[str]:
        return difflib.get_close_matches(name, self._asked, n=1, cutoff=_SIMILAR)

    def _path(self, key: str) -> str:
        return f"{self._key}.{key}" if self._key and key else self._key or key

    def _at(self, name: str, value: Value, index: int) -> Place:
        """Where one value of a repeated field stands."""
        return Place(file=f"{self._file}:{value.line}:{value.column}", key=self._path(f"{name}[{index}]"))

    def _values(self, name: str) -> tuple[Value, ...]:
        self._asked.add(name)
        return tuple(value for field in self._fields.get(name, ()) for value in field.values)

    def _few(self, name: str, most: int) -> tuple[Value, ...]:
        """The values of a repeated field; more than ``most`` are a problem, and only so many are read."""
        values = self._values(name)
        if len(values) > most:
            self.problem(name, f"has {len(values)} values; at most {most} are read")
            return ()
        return values

    def _single(self, name: str) -> Value | None:
        values = self._values(name)
        if len(values) > 1:
            self.problem(name, f"is given {len(values)} times; once is allowed")
        return values[0] if values else None

    def _inner(self, place: Place, value: Value) -> Section | None:
        if isinstance(value, Message):
            return Section(value, file=self._file, key=place.key, findings=self._findings)
        self._findings.problem(place, f"expected '{{ ... }}', found {_shown(value)}")
        return None

    def _number(self, place: Place, value: Value, minimum: int, maximum: int) -> int | None:
        number = _integer(value)
        if number is None:
            self._findings.problem(place, f"expected a whole number, found {_shown(value)}")
        elif not minimum <= number <= maximum:
            # As it is written: Python shows no number of thousands of digits.
            self._findings.problem(
                place, f"{_written(value)} is out of range; {minimum} to {maximum} is allowed"
            )
        else:
            return number
        return None

    def _text(self, place: Place, value: Value, longest: int) -> str:
        if not isinstance(value, Scalar) or value.kind is not ScalarKind.STRING:
            self._findings.problem(place, f"expected a string in quotes, found {_shown(value)}")
            return ""
        if len(value.data) > longest:
            self._findings.problem(place, f"has {len(value.data)} bytes; at most {longest} are allowed")
            return ""
        try:
            return value.data.decode()
        except UnicodeDecodeError:
            self._findings.problem(place, f"{_shown(value)} is not UTF-8")
            return ""

    def _entries(self, name: str, maximum: int | None = None) -> Iterable[tuple[str | int, Section]]:
        """Entries of a map; a key given twice is a problem. ``maximum``: keys are numbers up to it, else
        strings."""
        seen: set[str | int] = set()
        for entry in self.sections(name):
            place = entry.place("key")
            key: str | int = (
                entry.text("key", longest=NAME_BYTES_MAX)
                if maximum is None
                else entry.integer("key", maximum=maximum)
            )
            shown = f'"{key[:SHOWN_MAX]}"' if isinstance(key, str) else str(key)
            if key in seen:
                self._findings.problem(place, f"key {shown} is given twice")
            seen.add(key)
            yield key, entry._map_value(self._path(f"{name}[{shown}]"))

    def _map_value(self, key: str) -> Section:
        """The value of the map entry that this message is; one that is missing counts as empty."""
        value = self._single("value")
        self.close()
        empty = Message(fields=(), line=self._message.line, column=self._message.column)
        inner = None if value is None else self._inner(Place(file=self.place("value").file, key=key), value)
        return inner or Section(empty, file=self._file, key=key, findings=self._findings)


def _integer(value: Value) -> int | None:
    """The whole number a value is, in any of the three bases; None when it is none."""
    if not isinstance(value, Scalar) or value.kind is not ScalarKind.NUMBER:
        return None
    digits = value.text.removeprefix("-").lower()
    if not digits.startswith("0x") and not digits.isdigit():
        return None
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
    try:
        return int(digits, base) * (-1 if value.text.startswith("-") else 1)
    except ValueError:
        return None


def _decimal(value: Value) -> float:
    """The number a value is; not a number when it is none."""
    if not isinstance(value, Scalar) or value.kind is not ScalarKind.NUMBER or "x" in value.text.lower():
        return math.nan
    return float(value.text.lower().rstrip("f"))


def _is_default(value: Value) -> bool:
    """Whether a value says no more than its absence would: false, zero, an empty string."""
    if isinstance(value, Message):
        return False
    if value.kind is ScalarKind.STRING:
        return not value.data
    return value.text in _FALSE or _integer(value) == 0


def _shown(value: Value) -> str:
    quote = '"' if isinstance(value, Scalar) and value.kind is ScalarKind.STRING else "'"
    return f"{quote}{_written(value)}{quote}"


def _written(value: Value) -> str:
    """The beginning of a value, as it stands in the file."""
    if isinstance(value, Message):
        return "{ ... }"
    if value.kind is ScalarKind.STRING:
        return value.data[:SHOWN_MAX].decode(errors="replace")
    return value.text[:SHOWN_MAX]
