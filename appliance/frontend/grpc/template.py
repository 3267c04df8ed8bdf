"""Recognise messages that differ from an earlier one only in their id and their tensors' bytes.

Clients send the same head over and over. A template remembers the pieces of such a message, so that the next one is
known by comparing bytes, in a few slices, instead of being walked field by field: a third of the time. Whatever does
not match exactly is walked, so a template decides nothing but speed.
"""

from __future__ import annotations

from typing import NamedTuple

from appliance.frontend.grpc.envelope import ID_TAG, RAW_TAG, Envelope, EnvelopeLimits, scan

_NAME_TAG = 1 << 3 | 2
_VERSION_TAG = 2 << 3 | 2
_TEMPLATES_MAX = 4096
_HEAD_BYTES_MAX = 4096


class _Template(NamedTuple):
    """``middle`` is what lies between the id and the bytes of the first raw tensor; ``rest`` are the further raw
    tensors: what precedes each, and its size. ``length`` is that of everything after the id."""

    head: bytes
    middle: bytes
    first_size: int
    rest: tuple[tuple[bytes, int], ...]
    length: int


class EnvelopeReader:
    """Reads envelopes and remembers their templates by model name and version. Owned by one front end."""

    def __init__(self, limits: EnvelopeLimits) -> None:
        self._limits = limits
        self._templates: dict[bytes, _Template] = {}

    def read(self, message: bytes | memoryview) -> Envelope:
        """Take ``message`` apart like ``scan``, with the same errors. Templates know ``bytes`` only: a message that a
        transport keeps in memory of its own is large, so that walking its few fields costs nothing beside it."""
        if isinstance(message, memoryview):
            return scan(message, self._limits)
        try:
            opening = _opening_length(message)
            template = self._templates[message[:opening]]
            position = opening
            request_id = b""
            if message[position] == ID_TAG:
                size = message[position + 1]
                if size > 127:
                    return self._learn(message)
                position += 2
                request_id = message[position : position + size]
                position += size
        except (KeyError, IndexError):
            return self._learn(message)
        if len(message) - position != template.length or not message.startswith(template.middle, position):
            return self._learn(message)
        return self._fill(template, message, position + len(template.middle), request_id)

    def _fill(self, template: _Template, message: bytes, position: int, request_id: bytes) -> Envelope:
        view = memoryview(message)
        stop = position + template.first_size
        if not template.rest:
            return Envelope(template.head, request_id, (view[position:stop],))
        raw = [view[position:stop]]
        for before, size in template.rest:
            if not message.startswith(before, stop):
                return self._learn(message)
            position = stop + len(before)
            stop = position + size
            raw.append(view[position:stop])
        return Envelope(template.head, request_id, tuple(raw))

    def _learn(self, message: bytes) -> Envelope:
        envelope = scan(message, self._limits)
        opening = _plain_opening(envelope)
        template = _template_of(message, envelope, len(opening)) if opening else None
        if template is not None:
            if len(self._templates) >= _TEMPLATES_MAX:
                self._templates.clear()
            self._templates[opening] = template
        return envelope


def _opening_length(message: bytes) -> int:
    """Bytes of the model's name and version at the beginning; IndexError when there is nothing after them."""
    if message[0] != _NAME_TAG:
        raise IndexError
    length = 2 + message[1]
    if message[length] == _VERSION_TAG:
        length += 2 + message[length + 1]
    return length


def _plain_opening(envelope: Envelope) -> bytes:
    """Name and version at the beginning of the head when their lengths take one byte each, else nothing."""
    head = envelope.head
    try:
        length = _opening_length(head)
        plain = head[1] < 128 and (head[2 + head[1]] != _VERSION_TAG or head[3 + head[1]] < 128)
    except IndexError:
        return b""
    return head[:length] if plain and length <= len(head) else b""


def _template_of(message: bytes, envelope: Envelope, opening: int) -> _Template | None:
    """The template of a message that has the common form: name, version (``opening`` bytes), id, the rest of the
    head, raw tensors."""
    head, raw, id_at = envelope.head, envelope.raw, envelope.id_at
    if not raw or len(head) > _HEAD_BYTES_MAX or not message.startswith(head[:opening]):
        return None
    id_bytes = 0 if id_at < 0 else 2 + len(envelope.request_id)
    if id_at not in (-1, opening) or id_bytes > 129 or len(head) + id_bytes != envelope.raw_at:
        return None
    headers = [_raw_header(len(tensor)) for tensor in raw]
    middle = head[opening:] + headers[0]
    rest = tuple((header, len(tensor)) for header, tensor in zip(headers[1:], raw[1:], strict=True))
    length = len(middle) + len(raw[0]) + sum(len(header) + size for header, size in rest)
    if len(message) != opening + id_bytes + length:
        return None
    return _Template(head, middle, len(raw[0]), rest, length)


def _raw_header(size: int) -> bytes:
    """Tag and length of a raw tensor, as encoders write them."""
    header = bytearray((RAW_TAG,))
    while size > 127:
        header.append(size & 127 | 128)
        size >>= 7
    header.append(size)
    return bytes(header)
