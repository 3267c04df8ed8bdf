"""Thousands of connections that nobody uses: what they cost in memory, and what the others feel of them.

As many to another server are the control: so many sockets also make work for a machine that has nothing to do with the
server, such as for who looks through all of them now and then.
"""

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.clients import LoadFailed, Offer
from benchmarks.http2 import ACK, FRAME_HEADER, PREFACE, SETTINGS, frame
from benchmarks.loading import record_load
from benchmarks.models import model_file
from benchmarks.plan import Bench, model_directory, ready_server
from benchmarks.process import memory
from benchmarks.results import Bound, Verdict
from benchmarks.samples import Samples
from benchmarks.servers import Running, ServerFailed

SETTLE_S = 1.0
CONNECT_TIMEOUT_S = 10.0
NO_LINGER = struct.pack("ii", 1, 0)  # closes with a reset, which leaves no port waiting
WITHOUT, ELSEWHERE, WITH = (
    "without idle connections",
    "with idle connections to another server",
    "with idle connections",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleConnections:
    """`connections` of them beside an open loop of `rate`, at the subject and, as a control, at `other`."""

    model: str
    subject: str
    other: str
    connections: int
    rate: float
    memory_mb: float
    p99_ratio: float

    def run(self, bench: Bench) -> tuple[Samples, tuple[Verdict, ...]]:
        """One start; a round measures without them, with them elsewhere, and with them."""
        samples = Samples()
        for server in bench.available((self.subject,), samples):
            try:
                with (
                    model_directory((self.model,)) as (models, names),
                    ready_server(bench, server, models, names) as instance,
                    contextlib.ExitStack() as stack,
                ):
                    others = [
                        stack.enter_context(ready_server(bench, other, models, names))
                        for other in bench.available((self.other,), samples)
                    ]
                    for number in range(bench.rounds):
                        bench.say(f"round {number + 1} of {bench.rounds}")
                        self._measure(bench, instance, others, number, samples)
            except (ServerFailed, LoadFailed, OSError) as problem:
                samples.errors.append(f"{server.name}: {problem}")
        return samples, self._verdicts(samples)

    def _measure(
        self, bench: Bench, instance: Running, others: list[Running], number: int, samples: Samples
    ) -> None:
        payload = bench.writer.infer(self.model, model_file(self.model))
        offer = Offer(rate=self.rate, seconds=bench.seconds, seed=number + 1)
        record_load(instance, WITHOUT, payload, offer, samples, native=True)
        for other in others:
            with idle(other.ports.grpc, self.connections):
                time.sleep(SETTLE_S)
                record_load(instance, ELSEWHERE, payload, offer, samples, native=True)
            time.sleep(SETTLE_S)
        before = memory([instance.process.pid]).rss
        with idle(instance.ports.grpc, self.connections):
            time.sleep(SETTLE_S)
            grown = memory([instance.process.pid]).rss - before
            record_load(instance, WITH, payload, offer, samples, native=True)
        time.sleep(SETTLE_S)
        if number == 0:  # memory that is kept for later connections shows only once
            samples.add(instance.server.name, WITH, "growth of the daemon's RSS", "MB", grown / 1e6)

    def _verdicts(self, samples: Samples) -> tuple[Verdict, ...]:
        def tail(base: str) -> float | None:
            """The p99 with them over that of another setting."""
            below, above = (samples.median(self.subject, setting, "p99") for setting in (base, WITH))
            return above / below if above is not None and below else None

        return (
            Verdict(
                target=f"growth of the daemon's RSS with {self.connections:,} idle connections",
                bound=Bound.AT_MOST,
                limit=self.memory_mb,
                unit="MB",
                value=samples.median(self.subject, WITH, "growth of the daemon's RSS"),
            ),
            Verdict(
                target=f"p99 at {self.rate:g} requests per second, with them over without",
                bound=Bound.AT_MOST,
                limit=self.p99_ratio,
                unit="x",
                value=tail(WITHOUT),
            ),
            Verdict(
                target=f"p99 at {self.rate:g} requests per second, with them over as many elsewhere",
                bound=Bound.AT_MOST,
                limit=self.p99_ratio,
                unit="x",
                value=tail(ELSEWHERE),
            ),
        )


@contextlib.contextmanager
def idle(port: int, count: int) -> Iterator[None]:
    """Hold `count` HTTP/2 connections open that have finished their handshake. For less than a keep-alive time: nobody
    answers pings."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), CONNECT_TIMEOUT_S))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
            connection.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
            _await_settings(connection)
            connection.sendall(frame(SETTINGS, ACK, 0, b""))
        yield


def _await_settings(connection: socket.socket) -> None:
    """Until the server has said its settings."""
    received = b""
    while True:
        more = connection.recv(65536)
        if not more:
            raise OSError("the server closes idle connections")
        received += more
        while len(received) >= FRAME_HEADER.size:
            high, low, kind, flags, _ = FRAME_HEADER.unpack_from(received)
            whole = FRAME_HEADER.size + (high << 8 | low)
            if len(received) < whole:
                break
            if kind == SETTINGS and not flags & ACK:
                return
            received = received[whole:]
