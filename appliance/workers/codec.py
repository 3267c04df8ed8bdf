"""Values to plain msgpack arrays and strictly back, driven by their type annotations.

A dataclass or named tuple is the array of its fields, an enum its member's name, a mapping a map. Nothing is guessed: a
field that is missing, too many, of another type or out of place raises MessageInvalid. No pickle, no type names on the
wire, so a peer can only make values of the types it is asked for.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from appliance.domain.errors import WorkerError

Decoder = Callable[[object], Any]
_SCALARS = (bool, int, float, str)


class MessageInvalid(WorkerError):
    """A message between processes that is not what the protocol allows; its sender cannot be trusted."""


def to_plain(value: object) -> object:
    """What msgpack packs in place of ``value``: the ``default`` hook of a packer. TypeError for a foreign type."""
    if isinstance(value, Enum):
        return value._name_
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(getattr(value, field.name) for field in dataclasses.fields(value))
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no place in a message")


def decoder_for(annotation: Any) -> Decoder:
    """A function that turns a plain value into ``annotation``'s type or raises MessageInvalid.

    Knows bool, int, float, str, enums, dataclasses, named tuples, ``tuple[X, ...]``, ``tuple[X, Y]``, mappings and
    unions of at most one type with None. Raises TypeError for any other annotation.
    """
    if annotation in _SCALARS:
        return _scalar(annotation)
    origin = typing.get_origin(annotation)
    if origin is tuple:
        return _tuple(typing.get_args(annotation))
    if origin in (typing.Union, types.UnionType):
        return _optional(typing.get_args(annotation))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(typing.get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _enum(annotation)
    if isinstance(annotation, type):
        return _record(annotation)
    raise TypeError(f"{annotation!r} has no place in a message")


def _wrong(expected: str, value: object) -> MessageInvalid:
    """Names the type alone: a peer chooses the value, and showing it may cost as much as the peer likes."""
    return MessageInvalid(f"expected {expected}, got a {type(value).__name__}")


def _scalar(kind: type) -> Decoder:
    def decode(value: object) -> object:
        if type(value) is not kind:
            raise _wrong(kind.__name__, value)
        return value

    return decode


def _enum(kind: type[Enum]) -> Decoder:
    members = dict(kind.__members__)

    def decode(value: object) -> Enum:
        if type(value) is not str or value not in members:
            raise _wrong(f"a member of {kind.__name__}", value)
        return members[value]

    return decode


def _optional(choices: tuple[Any, ...]) -> Decoder:
    present = [choice for choice in choices if choice is not types.NoneType]
    if len(present) != 1 or len(choices) != 2:
        raise TypeError(f"a union of {choices!r} has no place in a message")
    decode_present = decoder_for(present[0])

    def decode(value: object) -> object:
        return None if value is None else decode_present(value)

    return decode


def _tuple(members: tuple[Any, ...]) -> Decoder:
    if len(members) == 2 and members[1] is Ellipsis:
        return _uniform_tuple(members[0])
    decoders = tuple(decoder_for(member) for member in members)

    def decode(value: object) -> tuple[object, ...]:
        if type(value) is not tuple or len(value) != len(decoders):
            raise _wrong(f"an array of {len(decoders)}", value)
        return tuple(decode_member(member) for decode_member, member in zip(decoders, value, strict=True))

    return decode


def _uniform_tuple(member: Any) -> Decoder:
    if member in _SCALARS:
        return _scalars(member)
    decode_member = decoder_for(member)

    def decode(value: object) -> tuple[object, ...]:
        if type(value) is not tuple:
            raise _wrong("an array", value)
        return tuple([decode_member(item) for item in value])

    return decode


def _scalars(kind: type) -> Decoder:
    """As _uniform_tuple, without a call for each: shapes and sizes come with every request."""
    only = frozenset((kind,))

    def decode(value: object) -> tuple[object, ...]:
        if type(value) is not tuple or not only.issuperset(map(type, value)):
            raise _wrong(f"an array of {kind.__name__}", value)
        return value

    return decode


def _mapping(members: tuple[Any, ...]) -> Decoder:
    decode_key, decode_value = decoder_for(members[0]), decoder_for(members[1])

    def decode(value: object) -> dict[object, object]:
        if type(value) is not dict:
            raise _wrong("a map", value)
        return {decode_key(key): decode_value(item) for key, item in value.items()}

    return decode


def _record(kind: type) -> Decoder:
    """Decoder of a dataclass or named tuple: its fields in order."""
    hints = typing.get_type_hints(kind)
    names = _field_names(kind)
    decoders = tuple(decoder_for(hints[name]) for name in names)

    def decode(value: object) -> object:
        if type(value) is not tuple or len(value) != len(decoders):
            raise _wrong(f"the {len(decoders)} fields of {kind.__name__}", value)
        fields = [decode_field(field) for decode_field, field in zip(decoders, value, strict=True)]
        return kind(**dict(zip(names, fields, strict=True)))

    return decode if dataclasses.is_dataclass(kind) else _named_tuple(kind, decoders)


def _named_tuple(kind: Any, decoders: tuple[Decoder, ...]) -> Decoder:
    """As _record, without keywords: these are made for every request."""
    make, count, name = kind._make, len(decoders), kind.__name__

    def decode(value: object) -> object:
        if type(value) is not tuple or len(value) != count:
            raise _wrong(f"the {count} fields of {name}", value)
        return make([decode_field(field) for decode_field, field in zip(decoders, value)])  # noqa: B905

    return decode


def _field_names(kind: type) -> tuple[str, ...]:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    names: tuple[str, ...] | None = getattr(kind, "_fields", None)
    if names is None:
        raise TypeError(f"{kind.__name__} has no place in a message")
    return names
