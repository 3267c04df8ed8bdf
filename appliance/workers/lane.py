"""The lane: the way to one worker, over a stream socket, from either side.

On the stream each message follows its length as a little-endian uint32, bounded before memory is taken.

The daemon's side never blocks: what the socket does not take waits in a bounded buffer until it is writable again. The
worker's side blocks, for it has nothing else to do. Both sides are strict: what the peer says is decoded completely or
refused with MessageInvalid.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from contextlib import suppress
from typing import Final, Protocol, cast

from appliance.domain.errors import WorkerError
from appliance.workers.codec import MessageInvalid
from appliance.workers.messages import (
    FROM_WORKER,
    TO_WORKER,
    FromWorker,
    Message,
    ToWorker,
    bytes_max,
    decode,
    encode,
    new_packer,
)

RECEIVE_BYTES: Final = 64 << 10
MAX_UNSENT_BYTES: Final = 64 << 20

_LENGTH = struct.Struct("<I")


class LaneClosed(WorkerError):
    """The other side is gone."""


class LaneBlocked(WorkerError):
    """The worker reads nothing while more and more is said to it."""


class WorkerLane(Protocol):
    """The worker's side."""

    def take(self) -> ToWorker:
        """Wait for the next message. Raises LaneClosed when the daemon is gone."""

    def poll(self) -> ToWorker | None:
        """The next message, if it is there and nothing goes first."""

    def complete(self, message: FromWorker) -> None:
        """Answer. Raises LaneClosed when the daemon is gone."""


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
        self._bytes_max = bytes_max(allowed)
        self._partial = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete now. Raises MessageInvalid for nonsense, and as soon as a length exceeds
        what messages of these kinds may have."""
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
        return length > self._bytes_max or len(self._partial) >= _LENGTH.size + length

    def _cut(self, data: bytes) -> list[Message]:
        messages: list[Message] = []
        position, end = 0, len(data)
        while position + _LENGTH.size <= end:
            (length,) = _LENGTH.unpack_from(data, position)
            if length > self._bytes_max:
                raise MessageInvalid(f"a message of {length} bytes exceeds the limit of {self._bytes_max}")
            stop = position + _LENGTH.size + length
            if stop > end:
                break
            payload = data[position + _LENGTH.size : stop]
            messages.append(decode(payload, self._allowed))
            position = stop
        if position < end:
            self._partial += data[position:]
        return messages


class DaemonLane:
    """The daemon's side, over one end of a stream socket pair. Owner: the event loop's thread."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._reader = FrameReader(FROM_WORKER)
        self._writer = FrameWriter()
        self._waiting = bytearray()

    def fileno(self) -> int:
        """Descriptor to watch."""
        return self._socket.fileno()

    @property
    def unsent(self) -> bool:
        """Whether the descriptor should be watched for writing too."""
        return bool(self._waiting)

    def send(self, message: ToWorker) -> None:
        """Send at once what the socket takes and keep the rest. Raises LaneClosed, LaneBlocked when too much is waiting
        to be read by the worker, or MessageInvalid when this alone is too much."""
        frame = self._writer.frame(message)
        if self._waiting:
            self._keep(frame)
            return
        sent = self._write(frame)
        if sent < len(frame):
            self._keep(frame[sent:])

    def flush(self) -> None:
        """Send what waits, as far as the worker's side takes it. Raises LaneClosed."""
        while self._waiting:
            sent = self._write(self._waiting)
            if not sent:
                return
            del self._waiting[:sent]

    def receive(self) -> list[FromWorker] | None:
        """What was said since the last call, as much as is read at once and as far as it is complete; None when nothing
        was. Raises LaneClosed after the last word of a worker that is gone, MessageInvalid for nonsense."""
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except ConnectionError as problem:
            raise LaneClosed("the worker is gone") from problem
        if not data:
            raise LaneClosed("the worker is gone")
        return cast(list[FromWorker], self._reader.feed(data))

    def close(self) -> None:
        """Close the socket; the worker then leaves."""
        self._socket.close()

    def _write(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except (ConnectionError, BrokenPipeError) as problem:
            raise LaneClosed("the worker is gone") from problem

    def _keep(self, data: bytes) -> None:
        if len(self._waiting) + len(data) > MAX_UNSENT_BYTES:
            raise LaneBlocked(f"{len(self._waiting)} bytes wait for a worker that does not read")
        self._waiting += data


class SocketWorkerLane:
    """WorkerLane over the other end."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(True)
        self._socket = end
        self._reader = FrameReader(TO_WORKER)
        self._writer = FrameWriter()
        self._messages: deque[ToWorker] = deque()

    def take(self) -> ToWorker:
        """The next message, read from the socket when none is left from the last read."""
        while not self._messages:
            self._read(0)
        return self._messages.popleft()

    def poll(self) -> ToWorker | None:
        """See WorkerLane."""
        if not self._messages:
            with suppress(BlockingIOError):
                self._read(socket.MSG_DONTWAIT)
        return self._messages.popleft() if self._messages else None

    def _read(self, flags: int) -> None:
        try:
            data = self._socket.recv(RECEIVE_BYTES, flags)
        except ConnectionError as problem:
            raise LaneClosed("the daemon is gone") from problem
        if not data:
            raise LaneClosed("the daemon is gone")
        self._messages.extend(cast(list[ToWorker], self._reader.feed(data)))

    def complete(self, message: FromWorker) -> None:
        """Send all of it."""
        try:
            self._socket.sendall(self._writer.frame(message))
        except ConnectionError as problem:
            raise LaneClosed("the daemon is gone") from problem


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """A connected pair for one lane: the daemon's end and the worker's."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
