"""A front end whose events the test itself handles, on the test's own thread; clients are real and run on theirs."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from edge_appliance_native import CALL, GONE, MESSAGE, SENT, STREAM, UNARY, NativeServer, Tls

ECHO, TALK = "/test.Service/Echo", "/test.Service/Talk"
PATIENCE_S = 20.0
LIMITS = {
    "message_bytes": 64 << 20,
    "metadata_bytes": 16 << 10,
    "streams_per_connection": 1000,
    "connections": 100,
    "connections_per_peer": 100,
    "bytes_in_flight": 256 << 20,
    "keepalive_ms": 60_000,
    "keepalive_timeout_ms": 20_000,
    "connection_age_ms": 0,
    "handshake_ms": 20_000,
    "idle_body_ms": 20_000,
    "write_stall_ms": 20_000,
    "resets_per_connection": 10_000,
    "pings_per_connection": 10_000,
    "control_frames_per_connection": 10_000,
}
Event = tuple[Any, ...]


def listening(
    family: socket.AddressFamily = socket.AF_INET, address: tuple[str, int] | str = ("127.0.0.1", 0)
) -> socket.socket:
    """A socket as a front end wants it."""
    listener = socket.socket(family)
    if family != socket.AF_UNIX:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(128)
    listener.setblocking(False)
    return listener


class Host:
    """A front end with a unary method (index 0) and a stream (index 1)."""

    def __init__(self, *listeners: socket.socket, tls: Tls | None = None, **limits: int) -> None:
        listeners = listeners or (listening(),)
        self.addresses = [listener.getsockname() for listener in listeners]
        self.server = NativeServer(
            listeners=[listener.detach() for listener in listeners],
            methods=[(ECHO, UNARY), (TALK, STREAM)],
            limits=LIMITS | limits,
            tls=tls,
        )
        self._events: deque[Event] = deque()
        self._channels: list[grpc.Channel] = []
        self._done = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __enter__(self) -> Host:
        self.server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for channel in self._channels:
            channel.close()
        self.server.close()
        os.close(self._done)

    @property
    def port(self) -> int:
        return int(self.addresses[0][1])

    def channel(
        self, target: str = "", credentials: grpc.ChannelCredentials | None = None, **options: object
    ) -> grpc.Channel:
        """A new connection of grpcio's; it shares none."""
        target = target or f"127.0.0.1:{self.port}"
        arguments = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        arguments += [(f"grpc.{key}", value) for key, value in options.items()]  # type: ignore[misc]
        if credentials:
            channel = grpc.secure_channel(target, credentials, arguments)
        else:
            channel = grpc.insecure_channel(target, arguments)
        self._channels.append(channel)
        return channel

    def event(self, patience_s: float = PATIENCE_S) -> Event:
        """The next event."""
        if not self._events:
            assert wait([self.server.fileno()], patience_s), "no event came"
            self._events.extend(self.server.poll())
        return self._events.popleft()

    def expect(self, kind: int) -> Event:
        """The next event, which must be of this kind."""
        event = self.event()
        assert event[0] == kind, event
        return event

    def quiet(self) -> bool:
        """Whether no event waits."""
        self._events.extend(self.server.poll())
        return not self._events

    def echo(self, event: Event) -> None:
        """What an echoing server does with an event; streams end when the client's side ends."""
        front_end = self.server
        match event:
            case (kind, call, 0, message, *_) if kind == CALL:
                front_end.reply(call, message if isinstance(message, bytes) else [memoryview(message)])
            case (kind, call, 1, *_) if kind == CALL:
                front_end.read(call)
            case (kind, call, None, *_) if kind == MESSAGE:
                front_end.finish(call, 0)
            case (kind, call, message, *_) if kind == MESSAGE:
                front_end.send(call, [memoryview(message)])
            case (kind, call) if kind == SENT:
                front_end.read(call)
            case (kind, _):
                assert kind == GONE

    def echo_until(self, futures: Sequence[Any]) -> None:
        """Echo until these calls of clients are done."""
        for future in futures:
            future.add_done_callback(lambda _: os.eventfd_write(self._done, 1))
        deadline = time.monotonic() + PATIENCE_S
        left = len(futures)
        while left:
            assert time.monotonic() < deadline, f"{left} of {len(futures)} clients were not answered"
            ready = wait([self.server.fileno(), self._done], PATIENCE_S)
            if self._done in ready:
                left -= os.eventfd_read(self._done)
            self._events.extend(self.server.poll())
            while self._events:
                self.echo(self._events.popleft())

    def is_counted(self, name: str, wanted: int | Callable[[int], bool]) -> bool:
        """Wait for the front end's thread to count so far."""
        holds = wanted if callable(wanted) else lambda count: count == wanted
        deadline = time.monotonic() + PATIENCE_S
        while not holds(self.server.statistics()[name]):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True


def start(channel: grpc.Channel, message: bytes, path: str = ECHO, **options: Any) -> Any:
    """A unary call under way."""
    unary: Any = channel.unary_unary  # its stub wants serialisers, which bytes do without
    return unary(path).future(message, **({"timeout": PATIENCE_S} | options))


def unix_listener(folder: Path) -> socket.socket:
    """A listening Unix socket."""
    return listening(socket.AF_UNIX, str(folder / "grpc"))
