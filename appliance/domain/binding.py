"""Bind tables of plain values, such as a TOML file's, to frozen dataclasses by their type hints.

Pure, but for the checks that fields or callers bring along. Reports every problem of a table at once, each with its key
path: unknown keys with the nearest known one, wrong types, values that a field's metadata forbids: ``min``, ``max``,
``choices``, and ``check``, a function from the bound value to texts that say what is wrong with it. ``shape`` says in
words what a nested list must be; ``unit`` and ``help`` are for people. Understands bool, int, float, str, enums,
literals, tuples, string-keyed mappings, optional values and dataclasses.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cache
from typing import (
    Any,
    Final,
    Generic,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from appliance.domain.errors import ConfigInvalid, Problem

T = TypeVar("T")
Check = Callable[[Any], Iterator[str]]
NO_CHECKS: Final[Mapping[str, Check]] = types.MappingProxyType({})
NO_KEYS: Final[Mapping[str, str]] = types.MappingProxyType({})
SHOWN_MAX: Final = 200  # characters of a value in a problem
KEY_MAX: Final = 300  # characters of the path of one
PROBLEMS_MAX: Final = 1_000  # in one table
NUMBER_MAX: Final = (1 << 63) - 1
MOST: Final[Mapping[str, int]] = types.MappingProxyType({"h": 10**6, "s": 10**9, "ms": 10**12})
"""Where a field does not say what is most: a lifetime, which fits into every clock."""
_WORDS: Final[Mapping[type, str]] = types.MappingProxyType(
    {bool: "true or false", int: "an integer", float: "a number", str: "a text"}
)


_hints: Final = cache(get_type_hints)
"""Sections are few and written down; a file may have thousands of lines of one."""


class Unread(Exception):
    """What is asked for could not be read, which was told."""


def as_far(found: Iterator[T]) -> Iterator[T]:
    """What is found before something is asked for that could not be read."""
    with suppress(Unread):
        yield from found


class _Wrong(Exception):
    """A value that cannot be bound; its problems are already noted."""


def bind(
    section: type[T],
    table: Mapping[str, object],
    file: str,
    *,
    checked: bool = True,
    checks: Mapping[str, Check] = NO_CHECKS,
    former: Mapping[str, str] = NO_KEYS,
) -> T:
    """The dataclass ``section`` with the values of ``table``; what the table leaves out keeps its default. ``file``
    is named in the problems. ``checked`` also asks the fields' ``check``, and ``checks``, by the key path of a field,
    what the caller wants to know about its value. ``former``: what to say of keys that are not known any more. Raises
    ConfigInvalid with all problems."""
    binder = _Binder(file, checked, checks, former)
    try:
        bound = binder.section(section, table, "")
    except _Wrong:
        raise ConfigInvalid(binder.problems) from None
    if binder.problems:
        raise ConfigInvalid(binder.problems)
    return cast(T, bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound(Generic[T]):
    """What came of a table: its ``value``, None where there can be none; ``unread`` are the keys of the table whose
    values could not be had, which have their defaults in it; values that the checks call unfit are in it as they are.
    ``rest`` has of the unread ones that are sections what could be had: who asks one for more gets Unread.
    """

    value: T | None
    problems: Sequence[Problem]
    unread: frozenset[str]
    rest: Mapping[str, object]


def bind_what_can_be(
    section: type[T],
    table: Mapping[str, object],
    file: str,
    *,
    checks: Mapping[str, Check] = NO_CHECKS,
    former: Mapping[str, str] = NO_KEYS,
) -> Bound[T]:
    """As ``bind``, for who has more to ask of what is right: problems are given, not raised."""
    binder = _Binder(file, True, checks, former, lenient=True)
    value: object = None
    with suppress(_Wrong):
        value = binder.section(section, table, "")
    return Bound(
        value=cast("T | None", value), problems=tuple(binder.problems), unread=binder.unread, rest=binder.rest
    )


def extended(kind: type[T], section: object) -> T:
    """The dataclass ``kind``, which has fields beyond those of ``section``, with the values of that section."""
    return kind(**{each.name: getattr(section, each.name) for each in fields(cast(Any, section))})


class _Binder:
    """Notes problems while it walks a table: the first PROBLEMS_MAX, and that there are more. ``lenient``: a section is
    made of what could be had of it, unfit values among it."""

    def __init__(
        self,
        file: str,
        checked: bool,
        checks: Mapping[str, Check],
        former: Mapping[str, str],
        *,
        lenient: bool = False,
    ) -> None:
        self._file = file
        self._checked = checked
        self._checks = checks
        self._former = former
        self._lenient = lenient
        self._noted = 0
        self.problems: list[Problem] = []
        self.unread: frozenset[str] = frozenset()
        self.rest: dict[str, object] = {}

    def section(self, section: type, table: Mapping[str, object], path: str) -> object:
        hints = _hints(section)
        known = {field.name: field for field in fields(section)}
        before, missing = self._noted, False
        for key in table:
            if key not in known and self._noted <= PROBLEMS_MAX:
                self._note_unknown(key, table[key], path, known)
        values: dict[str, object] = {}
        for name, field in known.items():
            if name in table:
                values.update(self._field(name, field, hints[name], table[name], path))
            elif not _has_default(field):
                self._note(_join(path, name), f"is missing; give {_wanted(hints[name])}")
                missing = True
            else:
                self._check(field.metadata, field.default, _join(path, name))
        unread = (known.keys() & table.keys()) - values.keys()
        if unread and path and self._lenient:
            rest = self.rest[path] = _rest(section, values, unread)
            told = getattr(section, "contradictions", None)
            if told and (found := list(as_far(told(rest)))):
                self._note(path, "; ".join(found))
        needed = missing or any(not _has_default(known[name]) for name in unread)
        if needed or (unread and path) or (self._noted > before and not self._lenient):
            raise _Wrong
        if not path:
            self.unread = frozenset(unread)
        return self._built(section, values, path)

    def _note_unknown(self, key: str, value: object, path: str, known: Mapping[str, object]) -> None:
        """Note a key that there is not; of a section that was, what became of each of its keys."""
        at = _join(path, key)
        keys = [_join(at, name) for name in value] if isinstance(value, Mapping) else []
        former = [each for each in keys if each in self._former]
        for each in former:
            self._note(each, self._former[each])
        if not former:
            self._note(at, self._former.get(at) or _unknown(key, known))

    def _field(
        self, name: str, field: Field[Any], hint: object, value: object, path: str
    ) -> dict[str, object]:
        key = _join(path, name)
        try:
            bound = self._shaped(field.metadata, hint, value, key)
            self._check_range(field.metadata, bound, key)
        except _Wrong:
            return {}
        self._check(field.metadata, bound, key)
        return {name: bound}

    def _shaped(self, metadata: Mapping[str, Any], hint: object, value: object, key: str) -> object:
        """The value; where the field says its shape in words, they tell more than what is wrong with one element."""
        before = self._noted
        try:
            return self._value(hint, value, key)
        except _Wrong:
            if "shape" not in metadata:
                raise
            self._noted = before
            del self.problems[before:]
            raise self._wrong(key, f"must be {metadata['shape']}, got {_shown(value)}") from None

    def _check(self, metadata: Mapping[str, Any], value: object, key: str) -> None:
        """Note what the field's own check says. A value may be unfit and bound all the same, so that checks of other
        values are still asked."""
        if not self._checked or value is MISSING:
            return
        for check in (metadata.get("check"), self._checks.get(key)):
            for text in check(value) if check else ():
                self._note(key, text)

    def _built(self, section: type, values: Mapping[str, object], path: str) -> object:
        try:
            return section(**values)
        except ValueError as error:
            self.rest[path] = _rest(section, values, frozenset())
            raise self._wrong(path, str(error)) from None

    def _value(self, hint: object, value: object, key: str) -> object:
        origin = get_origin(hint)
        if origin in (Union, types.UnionType):
            return self._optional(hint, value, key)
        if origin is tuple:
            return self._tuple(hint, value, key)
        if origin is Literal:
            return self._choice(get_args(hint), value, key)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return self._mapping(hint, value, key)
        assert isinstance(hint, type), f"{key} has a type hint that configuration cannot hold: {hint}"
        if is_dataclass(hint):
            return self.section(hint, self._table(value, key), key)
        if issubclass(hint, Enum):
            return self._enum(hint, value, key)
        return self._scalar(hint, value, key)

    def _scalar(self, hint: type, value: object, key: str) -> object:
        if hint is float and isinstance(value, int) and not isinstance(value, bool):
            with suppress(OverflowError):  # whole numbers have no end, floating-point ones do
                return float(value)
        if isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
            return value
        raise self._wrong(key, f"must be {_wanted(hint)}, got {_shown(value)}")

    def _optional(self, hint: object, value: object, key: str) -> object:
        (inner,) = [choice for choice in get_args(hint) if choice is not type(None)]
        return self._value(inner, value, key)

    def _enum(self, hint: type[Enum], value: object, key: str) -> Enum:
        by_word = {member.value if isinstance(member.value, str) else member.name: member for member in hint}
        return by_word[str(self._choice(tuple(by_word), value, key))]

    def _choice(self, choices: tuple[object, ...], value: object, key: str) -> object:
        if value not in choices:
            raise self._wrong(key, f"must be one of {', '.join(map(repr, choices))}, got {_shown(value)}")
        return value

    def _tuple(self, hint: object, value: object, key: str) -> tuple[object, ...]:
        if not isinstance(value, (list, tuple)):
            raise self._wrong(key, f"must be {_wanted(hint)}, got {_shown(value)}")
        wanted = get_args(hint)
        if wanted[-1] is Ellipsis:
            wanted = (wanted[0],) * len(value)
        if len(wanted) != len(value):
            raise self._wrong(key, f"must hold {len(wanted)} values, got {len(value)}")
        bound: list[object] = []
        for index, (each, element) in enumerate(zip(wanted, value, strict=True)):
            with suppress(_Wrong):  # the others may be wrong as well
                bound.append(self._value(each, element, f"{key}[{index}]"))
        if len(bound) < len(wanted):
            raise _Wrong
        return tuple(bound)

    def _mapping(self, hint: object, value: object, key: str) -> Mapping[str, object]:
        _, inner = get_args(hint)
        bound: dict[str, object] = {}
        table = self._table(value, key)
        for name, each in table.items():
            with suppress(_Wrong):  # the others may be wrong as well
                bound[name] = self._value(inner, each, _join(key, name))
        if len(bound) < len(table):
            raise _Wrong
        return bound

    def _table(self, value: object, key: str) -> Mapping[str, object]:
        if isinstance(value, Mapping):
            return value
        raise self._wrong(key, f"must be a table, got {_shown(value)}")

    def _check_range(self, metadata: Mapping[str, Any], value: object, key: str) -> None:
        wrong = False
        for each in value if isinstance(value, tuple) else (value,):
            try:
                self._check_one(metadata, each, key)
            except _Wrong:  # the others may be wrong as well
                wrong = True
        if wrong:
            raise _Wrong

    def _check_one(self, metadata: Mapping[str, Any], value: object, key: str) -> None:
        unit = f" {metadata['unit']}" if "unit" in metadata else ""
        if "choices" in metadata:
            self._choice(metadata["choices"], value, key)
        if not isinstance(value, (int, float)):
            return
        if metadata and not abs(value) < math.inf:
            raise self._wrong(key, f"must be a finite number, got {_shown(value)}")
        if "min" in metadata and not value >= metadata["min"]:
            raise self._wrong(key, f"must be at least {metadata['min']}{unit}, got {_shown(value)}")
        usual = NUMBER_MAX if isinstance(value, int) else math.inf
        most = metadata.get("max", MOST.get(str(metadata.get("unit")), usual))
        if not value <= most:
            raise self._wrong(key, f"must be at most {most}{unit}, got {_shown(value)}")

    def _note(self, key: str, text: str) -> None:
        self._noted += 1
        if self._noted <= PROBLEMS_MAX:
            self.problems.append(Problem(file=self._file, key=key[:KEY_MAX], text=text))
        elif self._noted == PROBLEMS_MAX + 1:
            self.problems.append(Problem(file=self._file, key="", text="and more; only the first are told"))

    def _wrong(self, key: str, text: str) -> _Wrong:
        self._note(key, text)
        return _Wrong()


def _rest(section: type, values: Mapping[str, object], unread: Collection[str]) -> object:
    """A value of ``section`` without ``unread``, which get Unread, with what was left out as it is by default."""

    def refuse(_: object, name: str) -> NoReturn:
        raise Unread(name)

    rest: object = object.__new__(
        type(section.__name__, (section,), {"__slots__": (), "__getattr__": refuse})
    )
    for field in fields(section):
        if field.name in values:
            object.__setattr__(rest, field.name, values[field.name])
        elif field.name not in unread and _has_default(field):
            made = field.default if field.default_factory is MISSING else field.default_factory()
            object.__setattr__(rest, field.name, made)
    return rest


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _shown(value: object) -> str:
    """The beginning of a value, as Python writes it; it writes no whole number of thousands of digits."""
    try:
        written = repr(value)
    except ValueError:
        return "a number of too many digits"
    return written if len(written) <= SHOWN_MAX else f"{written[:SHOWN_MAX]}..."


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _unknown(key: str, known: Mapping[str, object]) -> str:
    near = get_close_matches(key, known, n=1)
    if near:
        return f"is not a known key; did you mean '{near[0]}'?"
    return f"is not a known key; known here: {', '.join(known)}"


def _wanted(hint: object) -> str:
    if isinstance(hint, type):
        return _WORDS.get(hint, "a table")
    if get_origin(hint) is tuple:
        inner, *more = get_args(hint)
        return f"a list, each {_wanted(inner)}" if more == [Ellipsis] else f"a list of {1 + len(more)} values"
    return "a value of another type"
