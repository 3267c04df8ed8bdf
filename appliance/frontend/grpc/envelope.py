"""Take a serialised ModelInferRequest apart without copying its tensors.

Only the top level is walked: the id (field 3), the raw tensors (field 7) as views of the message, and everything else
as the *head*, in its order, for protobuf to decode and for templates to be recognised by. Any order of fields, repeated
and unknown fields, groups and overlong varints are read as protobuf reads them. Work is bounded by the number of fields
and by the size of the head, because two bytes of message can cost protobuf a hundred bytes of memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from appliance.domain.errors import InvalidRequest

ID_TAG = 3 << 3 | 2
RAW_TAG = 7 << 3 | 2
_HEAD_TAGS = frozenset(field << 3 | 2 for field in (1, 2, 4, 5, 6))
_TENSOR_TAGS = frozenset(field << 3 | 2 for field in (5, 6))
_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)
_MAX_GROUP_DEPTH = 98
_MAX_LENGTH = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeLimits:
    """Bounds of one message: inputs (or raw tensors, or requested outputs), of which no model has more (see PORTS_MAX
    of packages), and bytes outside of raw tensors: reading those holds up other requests, so that large tensors belong
    into raw_input_contents."""

    tensors_max: int = 1024
    head_bytes_max: int = 4 << 20

    @property
    def fields_max(self) -> int:
        """Top-level fields a message within the bounds can need, with room for parameters and unknown fields."""
        return 3 * self.tensors_max + 1024


class Envelope(NamedTuple):
    """A message taken apart. ``raw`` are views of the message: it lives as long as they do."""

    head: bytes
    request_id: bytes
    raw: tuple[memoryview, ...]


def scan(message: bytes | memoryview, limits: EnvelopeLimits) -> Envelope:
    """Take ``message`` apart; raises InvalidRequest when it is no protobuf message or exceeds the limits. The head is
    not looked into, and the (last) id is not yet known to be UTF-8."""
    end, position, head_start, fields = len(message), 0, 0, 0
    head: list[bytes | memoryview] = []
    request_id = b""
    raw: list[memoryview] = []
    view = memoryview(message)
    while position < end:
        fields += 1
        if fields > limits.fields_max:
            raise InvalidRequest(f"request has more than {limits.fields_max} fields")
        start = position
        tag, position = (
            _varint(message, position) if message[position] > 127 else (message[position], position + 1)
        )
        if tag != RAW_TAG and tag != ID_TAG and tag not in _HEAD_TAGS:
            position = _skip_unknown(message, position, tag, limits.fields_max)
            continue
        length, position = _length(message, position)
        stop = position + length
        if stop > end:
            malformed("a field ends after the message")
        if tag in (RAW_TAG, ID_TAG):
            if head_start < start:
                head.append(message[head_start:start])
            head_start = stop
            if tag == RAW_TAG:
                raw.append(view[position:stop])
            else:
                request_id_text(request_id)
                request_id = bytes(message[position:stop])
        position = stop
    if head_start < end:
        head.append(message[head_start:])
    return _within_limits(Envelope(b"".join(head), request_id, tuple(raw)), limits)


def check_nested_fields(head: bytes, limits: EnvelopeLimits) -> None:
    """Refuse a head whose inputs and outputs have more fields than they can need: each parameter among them costs far
    more than its bytes. Raises InvalidRequest."""
    fields_left = 8 * limits.fields_max
    position = 0
    while position < len(head):
        tag, position = _varint(head, position)
        if tag not in _TENSOR_TAGS:
            position = _skip_unknown(head, position, tag, limits.fields_max)
            continue
        length, position = _length(head, position)
        end = position + length
        while position < end:
            fields_left -= 1
            if fields_left < 0:
                raise InvalidRequest(
                    f"inputs and outputs have more than {8 * limits.fields_max} fields together"
                )
            tag, position = _varint(head, position)
            position = _skip_unknown(head, position, tag, limits.fields_max)


def request_id_text(request_id: bytes) -> str:
    """The id as text; raises InvalidRequest when it is not UTF-8."""
    try:
        return request_id.decode()
    except UnicodeDecodeError as error:
        malformed(f"the id is not UTF-8 ({error.reason} at byte {error.start})")


def malformed(reason: object) -> NoReturn:
    """Refuse a message that protobuf cannot read."""
    raise InvalidRequest(f"the message is not a ModelInferRequest in protobuf encoding: {reason}")


def _within_limits(envelope: Envelope, limits: EnvelopeLimits) -> Envelope:
    if len(envelope.raw) > limits.tensors_max:
        raise InvalidRequest(
            f"request has {len(envelope.raw)} raw tensors; at most {limits.tensors_max} are accepted"
        )
    if len(envelope.head) > limits.head_bytes_max:
        raise InvalidRequest(
            f"request has {len(envelope.head)} bytes outside of raw_input_contents; at most "
            f"{limits.head_bytes_max} are accepted: send large tensors raw"
        )
    return envelope


def _length(message: bytes | memoryview, position: int) -> tuple[int, int]:
    if position < len(message) and message[position] < 128:
        return message[position], position + 1
    length, position = _varint(message, position)
    if length > _MAX_LENGTH:
        malformed("a field's length is out of range")
    return length, position


def _varint(message: bytes | memoryview, position: int) -> tuple[int, int]:
    """The varint at ``position`` and where it ends; at most ten bytes, as protobuf has it."""
    value = shift = 0
    while shift < 70:
        if position >= len(message):
            malformed("it ends inside a number")
        byte = message[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    else:
        malformed("a number is longer than ten bytes")
    return value, position


def _skip_unknown(message: bytes | memoryview, position: int, tag: int, fields_left: int) -> int:
    """Where the unknown field with ``tag`` ends. Nested groups count against ``fields_left`` like fields."""
    open_groups: list[int] = []
    while True:
        position = _skip_value(message, position, tag, open_groups)
        if not open_groups:
            return position
        fields_left -= 1
        if fields_left < 0 or len(open_groups) > _MAX_GROUP_DEPTH:
            malformed("its groups are nested too deep or are too long")
        tag, position = _varint(message, position)


def _skip_value(message: bytes | memoryview, position: int, tag: int, open_groups: list[int]) -> int:
    field, kind = tag >> 3, tag & 7
    if tag >= 1 << 32 or (field == 0 and not open_groups):  # inside groups protobuf lets zero pass
        malformed("a field number is out of range")
    if kind == _VARINT:
        return _varint(message, position)[1]
    if kind == _GROUP:
        open_groups.append(field)
        return position
    if kind == _GROUP_END:
        if not open_groups or open_groups.pop() != field:
            malformed("a group ends that was not begun")
        return position
    if kind == _FIXED64:
        position += 8
    elif kind == _FIXED32:
        position += 4
    elif kind == _BYTES:
        length, position = _length(message, position)
        position += length
    else:
        malformed("a field has an unknown wire type")
    if position > len(message):
        malformed("a field ends after the message")
    return position
