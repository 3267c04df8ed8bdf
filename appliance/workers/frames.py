"""Messages on a byte stream: each follows its length as a little-endian uint32, bounded before memory is taken."""

from __future__ import annotations

import struct

from appliance.workers.batch_codec import KnownResults
from appliance.workers.messages import (
    MAX_MESSAGE_BYTES,
    Message,
    MessageInvalid,
    decode,
    encode,
    new_packer,
)

_LENGTH = struct.Struct("<I")


class FrameWriter:
    """Messages into a byte stream. Owned by the one writer of the stream."""

    def __init__(self) -> None:
        self._packer = new_packer()

    def frame(self, message: Message) -> bytes:
        """The message with its length in front."""
        packed = encode(message, self._packer)
        return _LENGTH.pack(len(packed)) + packed


class FrameReader:
    """Messages out of a byte stream. Owned by the one reader of the stream."""

    def __init__(self, allowed: frozenset[type]) -> None:
        self._allowed = allowed
        self._known = KnownResults()
        self._partial = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete now. Raises MessageInvalid for nonsense, and as soon as a length exceeds
        MAX_MESSAGE_BYTES."""
        if self._partial:
            self._partial += data
            if not self._has_frame():
                return []
            data = bytes(self._partial)
            self._partial.clear()
        return self._cut(data)

    def _has_frame(self) -> bool:
        if len(self._partial) < _LENGTH.size:
            return False
        length: int = _LENGTH.unpack_from(self._partial)[0]
        return length > MAX_MESSAGE_BYTES or len(self._partial) >= _LENGTH.size + length

    def _cut(self, data: bytes) -> list[Message]:
        messages: list[Message] = []
        position, end = 0, len(data)
        while position + _LENGTH.size <= end:
            (length,) = _LENGTH.unpack_from(data, position)
            if length > MAX_MESSAGE_BYTES:
                raise MessageInvalid(f"a message of {length} bytes exceeds the limit of {MAX_MESSAGE_BYTES}")
            stop = position + _LENGTH.size + length
            if stop > end:
                break
            payload = data[position + _LENGTH.size : stop]
            messages.append(decode(payload, self._allowed, self._known))
            position = stop
        if position < end:
            self._partial += data[position:]
        return messages
