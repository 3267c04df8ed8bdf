"""An HTTP/2 client that says exactly what a test wants, and nothing by itself: frames by hand, headers by hpack."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import NamedTuple

import hpack

from native.tests.host import ECHO, PATIENCE_S

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0,
    1,
    2,
    3,
    4,
    6,
    7,
    8,
    9,
)
ACK = END_STREAM = 1
END_HEADERS = 4
CANCEL, ENHANCE_YOUR_CALM = 8, 11
Headers = list[tuple[str, str]]


class Frame(NamedTuple):
    """One frame from the front end."""

    kind: int
    flags: int
    stream: int
    payload: bytes


def framed(message: bytes, flag: int = 0) -> bytes:
    """A message with its prefix."""
    return struct.pack(">BI", flag, len(message)) + message


def request(path: str = ECHO, method: str = "POST", **headers: str) -> Headers:
    """The headers of a call; more by keyword, with underscores for hyphens, and an empty value to leave one out."""
    wanted = {"te": "trailers", "content-type": "application/grpc"}
    wanted |= {key.replace("_", "-"): value for key, value in headers.items()}
    fixed = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "test")]
    return fixed + [(key, value) for key, value in wanted.items() if value]


class RawClient:
    """One connection. It acknowledges nothing unless told to."""

    def __init__(self, address: tuple[str, int], settings: bytes = b"", preface: bytes = PREFACE) -> None:
        self.socket = socket.create_connection(address, PATIENCE_S)
        self._buffer = b""
        self._encoder, self._decoder = hpack.Encoder(), hpack.Decoder()
        begin = preface + (self.frame(SETTINGS, 0, 0, settings) if preface == PREFACE else b"")
        with contextlib.suppress(OSError):  # a front end may close at once, which `receive` tells
            self.socket.sendall(begin)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @staticmethod
    def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
        return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload

    def send(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        self.socket.sendall(self.frame(kind, flags, stream, payload))

    def head(self, stream: int, headers: Headers | None = None, flags: int = 0) -> bytes:
        """A HEADERS frame, to be sent in order."""
        return self.frame(HEADERS, END_HEADERS | flags, stream, self._encoder.encode(headers or request()))

    def call(self, stream: int, body: bytes, headers: Headers | None = None, flags: int = END_STREAM) -> None:
        """A call with its body in one frame."""
        self.socket.sendall(self.head(stream, headers) + self.frame(DATA, flags, stream, body))

    def begin(self, rest: bytes) -> None:
        """What a connection begins with and ``rest`` in one piece, where ``preface`` left that out: nobody can come in
        between."""
        self.socket.sendall(PREFACE + self.frame(SETTINGS, 0, 0) + rest)

    def widen(self) -> None:
        """Take the front end's settings and its first window, so that more than 64 KiB may be sent."""
        self.receive_kind(SETTINGS)
        self.send(SETTINGS, ACK, 0)
        assert self.receive_kind(WINDOW_UPDATE).stream == 0

    def receive(self) -> Frame | None:
        """The next frame; None when the connection has ended."""
        head = self._take(9)
        if head is None:
            return None
        length, kind, flags, stream = int.from_bytes(head[:3]), head[3], head[4], int.from_bytes(head[5:])
        payload = self._take(length)
        return None if payload is None else Frame(kind, flags, stream, payload)

    def receive_kind(self, kind: int) -> Frame:
        """The next frame of this kind."""
        while frame := self.receive():
            if frame.kind == kind:
                return frame
        raise AssertionError(f"the connection ended before a frame of type {kind} came")

    def end(self) -> int | None:
        """The reason of the last GOAWAY, after the connection has ended."""
        reason = None
        while frame := self.receive():
            if frame.kind == GOAWAY:
                reason = int.from_bytes(frame.payload[4:8])
        return reason

    def answer(self, stream: int) -> tuple[dict[str, str], bytes]:
        """All headers and trailers of a stream, and its data."""
        headers: dict[str, str] = {}
        data = b""
        while frame := self.receive():
            if frame.kind == HEADERS:
                found = {str(key): str(value) for key, value in self._decoder.decode(frame.payload)}
                headers |= found if frame.stream == stream else {}
            if frame.stream != stream:
                continue
            if frame.kind == DATA:
                data += frame.payload
            assert frame.kind != RST_STREAM, f"reset: {frame.payload!r}"
            if frame.kind in {HEADERS, DATA} and frame.flags & END_STREAM:
                return headers, data
        raise AssertionError("the connection ended within the answer")

    def _take(self, length: int) -> bytes | None:
        while len(self._buffer) < length:
            try:
                received = self.socket.recv(1 << 16)
            except (ConnectionResetError, BrokenPipeError):
                return None
            if not received:
                return None
            self._buffer += received
        taken, self._buffer = self._buffer[:length], self._buffer[length:]
        return taken
