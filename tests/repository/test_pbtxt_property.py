"""Whatever protobuf's own printer writes for a model configuration, our parser reads back as the same message."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message as ProtoMessage

from appliance.frontend.grpc.wire_pb import model_config_pb2
from appliance.repository.pbtxt import Message, Scalar, Value, parse

ODD_TEXTS = (
    "",
    "plain",
    "two words",
    "ä\N{GRINNING FACE}",
    "'\"\\",
    "tab\tline\nend\r",
    "# {[<,;:>]}",
    "\x01\x7f",
)


def _random_text(chance: random.Random) -> str:
    return chance.choice(ODD_TEXTS) + "".join(
        map(chr, chance.choices(range(1, 0x250), k=chance.randrange(4)))
    )


def _random_scalar(field: FieldDescriptor, chance: random.Random) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return _random_text(chance)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return chance.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        assert field.enum_type
        return chance.choice(field.enum_type.values).number
    bits = 31 if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 63
    signed = kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
    return chance.getrandbits(chance.randrange(1, bits + 1)) * (chance.choice((1, -1)) if signed else 1)


def _fill(message: Any, chance: random.Random) -> None:
    """Set about half of the fields of ``message``, all the way down."""
    for field in message.DESCRIPTOR.fields:
        if chance.random() < 0.5:
            continue
        if field.message_type and field.message_type.GetOptions().map_entry:
            _fill_map(getattr(message, field.name), field.message_type, chance)
        elif field.is_repeated and field.message_type:
            for _ in range(chance.randrange(3)):
                _fill(getattr(message, field.name).add(), chance)
        elif field.is_repeated:
            getattr(message, field.name).extend(
                _random_scalar(field, chance) for _ in range(chance.randrange(4))
            )
        elif field.message_type:
            getattr(message, field.name).SetInParent()
            _fill(getattr(message, field.name), chance)
        else:
            setattr(message, field.name, _random_scalar(field, chance))


def _fill_map(entries: Any, entry: Descriptor, chance: random.Random) -> None:
    key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
    for _ in range(chance.randrange(3)):
        name = _random_scalar(key, chance)
        if value.message_type:
            _fill(entries[name], chance)
        else:
            entries[name] = _random_scalar(value, chance)


def _rebuild(target: Any, tree: Message) -> None:
    """Put what our parser read into an empty message."""
    for field in tree.fields:
        descriptor = target.DESCRIPTOR.fields_by_name[field.name]
        if descriptor.message_type and descriptor.message_type.GetOptions().map_entry:
            for value in field.values:
                assert isinstance(value, Message)
                _rebuild_entry(getattr(target, field.name), descriptor.message_type, value)
        elif descriptor.message_type:
            for value in field.values:
                assert isinstance(value, Message)
                inner = getattr(target, field.name)
                if descriptor.is_repeated:
                    _rebuild(inner.add(), value)
                else:
                    inner.SetInParent()
                    _rebuild(inner, value)
        elif descriptor.is_repeated:
            getattr(target, field.name).extend(_scalars(descriptor, field.values))
        else:
            (single,) = _scalars(descriptor, field.values)
            setattr(target, field.name, single)


def _rebuild_entry(entries: Any, descriptor: Descriptor, tree: Message) -> None:
    """A map entry; the printer leaves out a key or value that is empty."""
    found = {field.name: field.values for field in tree.fields}
    key_field, value_field = descriptor.fields_by_name["key"], descriptor.fields_by_name["value"]
    (key,) = _scalars(key_field, found.get("key", ())) or [key_field.default_value]
    values = found.get("value", ())
    if not value_field.message_type:
        (entries[key],) = _scalars(value_field, values) or [value_field.default_value]
        return
    entries[key].SetInParent()
    for value in values:
        assert isinstance(value, Message)
        _rebuild(entries[key], value)


def _scalars(descriptor: FieldDescriptor, values: Iterable[Value]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        assert isinstance(value, Scalar)
        if descriptor.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            found.append(value.data.decode())
        elif descriptor.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            found.append({"true": True, "false": False}[value.text])
        elif descriptor.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
            assert descriptor.enum_type
            found.append(descriptor.enum_type.values_by_name[value.text].number)
        elif descriptor.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
            found.append(float(value.text))
        else:
            found.append(int(value.text))
    return found


def _printed(message: ProtoMessage, chance: random.Random) -> str:
    return text_format.MessageToString(
        message,
        as_utf8=chance.random() < 0.5,
        as_one_line=chance.random() < 0.3,
        use_short_repeated_primitives=chance.random() < 0.5,
        pointy_brackets=chance.random() < 0.3,
        use_index_order=chance.random() < 0.5,
    )


@pytest.mark.parametrize("seed", range(200))
def test_what_protobuf_prints_is_read_back(seed: int) -> None:
    chance = random.Random(seed)
    original = model_config_pb2.ModelConfig()
    _fill(original, chance)
    text = _printed(original, chance)
    rebuilt = model_config_pb2.ModelConfig()
    _rebuild(rebuilt, parse(text.encode()))
    assert rebuilt == original
