"""A gRPC client connection cut down to what a load generator needs: unary calls of ready-made bytes, answers unread.

A general client spends several times more CPU per call than a good server, and on a small machine takes it from the
server under test. This one writes a call as one precomputed block and reads nothing but the status. It keeps HTTP/2's
rules that a server may rely on: flow control in both directions, stream limits, SETTINGS and PING acknowledged,
RST_STREAM on expiry. The header table is set to size 0, which makes header blocks stateless, so that a status seen
before is found by its bytes. One owner: the event loop it lives on.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
SETTING_TABLE, SETTING_PUSH, SETTING_STREAMS, SETTING_WINDOW, SETTING_FRAME = 1, 2, 3, 4, 5
REFUSED_STREAM, CANCEL = 7, 8
FRAME_HEADER = struct.Struct(">HBBBI")  # length in 16 + 8 bits, type, flags, stream
WINDOW_MAX = 2**31 - 1
RECEIVED_MAX = 2**28
FRAME_MAX_DEFAULT = 16384
STATUS_CANCELLED, STATUS_UNKNOWN, STATUS_INTERNAL, STATUS_UNAVAILABLE = 1, 2, 13, 14

Finished = Callable[[int, int, str], None]


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    """One HTTP/2 frame."""
    return FRAME_HEADER.pack(len(body) >> 8, len(body) & 255, kind, flags, stream) + body


def _literal(name: bytes, value: bytes) -> bytes:
    """A header field without indexing, both strings plain."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def header_block(method: str, authority: str, timeout_us: int) -> bytes:
    """The request headers of a gRPC call; 0 for no timeout. Method and authority shorter than 127 bytes."""
    path = method.encode()
    host = authority.encode()
    block = b"\x83\x86"  # :method POST, :scheme http
    block += b"\x04" + bytes([len(path)]) + path + b"\x01" + bytes([len(host)]) + host
    block += _literal(b"te", b"trailers") + _literal(b"content-type", b"application/grpc")
    return block + (_literal(b"grpc-timeout", b"%du" % timeout_us) if timeout_us else b"")


@dataclass(slots=True, kw_only=True)
class Unsent:
    """What of a message still waits for the peer's windows."""

    offset: int
    window: int


class Connection(asyncio.Protocol):
    """One HTTP/2 connection. `finished(call, status, message)` is called once for each call sent."""

    def __init__(self, payload: bytes, finished: Finished) -> None:
        self._message = b"\x00" + struct.pack(">I", len(payload)) + payload
        self._finished = finished
        self._transport: asyncio.Transport | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls: dict[int, int] = {}
        self._streams: dict[int, int] = {}
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._unsent: dict[int, Unsent] = {}
        self._next_stream = 1
        self._streams_max = WINDOW_MAX
        self._stream_window = 65535
        self._window = 65535
        self._frame_max = FRAME_MAX_DEFAULT
        self._received = 0
        self._buffer = b""
        self._split: tuple[int, bytes] | None = None  # a header block that goes on in the next frame
        self._headers = hpack.Decoder()
        self._headers.header_table_size = 0
        self._statuses: dict[bytes, tuple[int, str]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface; the connection is ready when the peer has taken our settings."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but type
        ours = {SETTING_TABLE: 0, SETTING_PUSH: 0, SETTING_WINDOW: WINDOW_MAX, SETTING_FRAME: 2**20}
        body = b"".join(struct.pack(">HI", key, value) for key, value in ours.items())
        update = struct.pack(">I", WINDOW_MAX - 65535)
        self._write(PREFACE + frame(SETTINGS, 0, 0, body) + frame(WINDOW_UPDATE, 0, 0, update))

    def connection_lost(self, exc: Exception | None) -> None:
        """Everything in flight is over."""
        self._transport = None
        if not self.ready.done():
            self.ready.set_exception(exc or ConnectionError("the server closed the connection"))
        for stream in list(self._calls):
            self._end(stream, STATUS_UNAVAILABLE, "connection lost")
        while self._waiting:
            self._finished(self._waiting.popleft()[0], STATUS_UNAVAILABLE, "connection lost")

    def close(self) -> None:
        """Close the socket."""
        if self._transport is not None:
            self._transport.close()

    def send(self, call: int, block: bytes) -> None:
        """Start a call; `call` comes back to `finished`."""
        if self._transport is None:
            self._finished(call, STATUS_UNAVAILABLE, "not connected")
        elif len(self._calls) >= self._streams_max:
            self._waiting.append((call, block))
        else:
            self._open(call, block)

    def _open(self, call: int, block: bytes) -> None:
        stream, message = self._next_stream, self._message
        self._next_stream += 2
        self._calls[stream] = call
        self._streams[call] = stream
        head = frame(HEADERS, END_HEADERS, stream, block)
        size = len(message)
        if (
            size <= self._frame_max
            and size <= self._window
            and size <= self._stream_window
            and not self._unsent
        ):
            self._window -= size
            self._write(head + frame(DATA, END_STREAM, stream, message))
            return
        self._unsent[stream] = Unsent(offset=0, window=self._stream_window)
        self._write(head)
        self._push()

    def cancel(self, call: int) -> bool:
        """Take back a call that is still open; it is not reported. False when it had already ended."""
        stream = self._streams.pop(call, None)
        if stream is None:
            return False
        del self._calls[stream]
        self._unsent.pop(stream, None)
        self._write(frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL)))
        return True

    def _push(self) -> None:
        """Send as much of the waiting messages as the windows allow, oldest first."""
        for stream, rest in list(self._unsent.items()):
            while self._window > 0 and rest.window > 0 and rest.offset < len(self._message):
                size = min(self._frame_max, self._window, rest.window, len(self._message) - rest.offset)
                piece = self._message[rest.offset : rest.offset + size]
                rest.offset += size
                rest.window -= size
                self._window -= size
                last = rest.offset == len(self._message)
                self._write(frame(DATA, END_STREAM if last else 0, stream, piece))
            if rest.offset == len(self._message):
                del self._unsent[stream]
            if self._window <= 0:
                return

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Take whole frames off the buffer."""
        buffer = self._buffer + data if self._buffer else data
        position, end = 0, len(buffer)
        while end - position >= 9:
            high, low, kind, flags, stream = FRAME_HEADER.unpack_from(buffer, position)
            size = high << 8 | low
            if end - position - 9 < size:
                break
            self._frame(kind, flags, stream, buffer[position + 9 : position + 9 + size])
            position += 9 + size
        self._buffer = buffer[position:]

    def _frame(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind in (HEADERS, CONTINUATION):
            self._on_headers(flags, stream, body)
        elif kind == DATA:
            self._on_data(len(body))
        elif kind == WINDOW_UPDATE:
            self._on_window(stream, struct.unpack(">I", body)[0])
        elif kind == PING and not flags & ACK:
            self._write(frame(PING, ACK, 0, body))
        elif kind == SETTINGS:
            self._on_settings_acknowledged() if flags & ACK else self._on_settings(body)
        elif kind == RST_STREAM:
            code = struct.unpack(">I", body)[0]
            status = {REFUSED_STREAM: STATUS_UNAVAILABLE, CANCEL: STATUS_CANCELLED}.get(code, STATUS_INTERNAL)
            self._end(stream, status, f"stream reset with code {code}")
        elif kind == GOAWAY:
            self._streams_max = 0  # what is in flight may still be answered; nothing new is sent

    def _on_data(self, size: int) -> None:
        self._received += size
        if self._received > RECEIVED_MAX:
            self._write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._received)))
            self._received = 0

    def _on_headers(self, flags: int, stream: int, body: bytes) -> None:
        if flags & (PADDED | PRIORITY):
            raise ConnectionError("padded or prioritised headers are not understood by this client")
        if self._split is not None:
            flags, body = flags | self._split[0], self._split[1] + body
        if not flags & END_HEADERS:
            self._split = (flags & END_STREAM, body)
            return
        self._split = None
        status, message = self._statuses.get(body) or self._decode(body)
        if flags & END_STREAM:
            self._end(stream, status, message)

    def _decode(self, block: bytes) -> tuple[int, str]:
        fields = {str(name): str(value) for name, value in self._headers.decode(block)}
        status = fields.get("grpc-status")
        answer = (int(status) if status is not None else STATUS_UNKNOWN, fields.get("grpc-message", ""))
        if len(self._statuses) < 4096:
            self._statuses[block] = answer
        return answer

    def _on_window(self, stream: int, increment: int) -> None:
        if stream == 0:
            self._window += increment
        elif stream in self._unsent:
            self._unsent[stream].window += increment
        if self._unsent:
            self._push()

    def _on_settings(self, body: bytes) -> None:
        for key, value in struct.iter_unpack(">HI", body):
            if key == SETTING_STREAMS:
                self._streams_max = value
            elif key == SETTING_FRAME:
                self._frame_max = value
            elif key == SETTING_WINDOW:
                for rest in self._unsent.values():
                    rest.window += value - self._stream_window
                self._stream_window = value
        self._write(frame(SETTINGS, ACK, 0, b""))

    def _on_settings_acknowledged(self) -> None:
        """From here on header blocks are stateless; the peer's own settings have come before (it sends them first)."""
        if not self.ready.done():
            self.ready.set_result(None)

    def _end(self, stream: int, status: int, message: str) -> None:
        call = self._calls.pop(stream, None)
        if call is None:
            return  # cancelled before
        del self._streams[call]
        self._unsent.pop(stream, None)
        if self._waiting and len(self._calls) < self._streams_max:
            self._open(*self._waiting.popleft())
        self._finished(call, status, message)
