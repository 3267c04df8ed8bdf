"""Inference over HTTP with tensors as JSON, both ways, in closed loops of one and of several connections: the native
front end beside the Python one.

The client is one thread of this process over bare sockets; it reads no numbers. The server's CPU time tells what the
client's own cost hides.
"""

import random
import select
import socket
import statistics
import time
from dataclasses import dataclass

from benchmarks.plan import Bench, model_directory, ready_server
from benchmarks.process import cpu_seconds, descendants
from benchmarks.results import Bound, Verdict
from benchmarks.samples import Samples
from benchmarks.servers import Running, Server

SEED = 7
WARM_UP_S = 0.5
ROOM = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpJson:
    """A model with one input ``x`` of FP32, asked with so many ``rows`` of ``width`` elements. The rate of ``subject``
    is to be ``speedup`` times that of ``peer`` at the largest concurrency."""

    model: str
    width: int
    rows: tuple[int, ...]
    concurrencies: tuple[int, ...]
    subject: str
    peer: str
    speedup: float

    def run(self, bench: Bench) -> tuple[Samples, tuple[Verdict, ...]]:
        """Measure and judge."""
        samples = Samples()
        bench.in_turns(
            (self.subject, self.peer), samples, lambda server, number: self._measure(bench, server, samples)
        )
        return samples, tuple(self._verdict(samples, rows) for rows in self.rows)

    def _verdict(self, samples: Samples, rows: int) -> Verdict:
        setting = _setting(rows * self.width, self.concurrencies[-1])
        rates = [samples.median(server, setting, "throughput") for server in (self.subject, self.peer)]
        return Verdict(
            target=f"rate of the native front end over the Python one's, {setting}",
            bound=Bound.AT_LEAST,
            limit=self.speedup,
            unit="x",
            value=rates[0] / rates[1] if rates[0] and rates[1] else None,
        )

    def _measure(self, bench: Bench, server: Server, samples: Samples) -> None:
        with (
            model_directory((self.model,)) as (models, names),
            ready_server(bench, server, models, names) as instance,
        ):
            for rows in self.rows:
                request = json_request(self.model, rows, self.width)
                for concurrency in self.concurrencies:
                    closed_loop(instance, request, concurrency, WARM_UP_S)
                    setting = _setting(rows * self.width, concurrency)
                    processes = descendants(instance.process.pid)
                    with samples.watching_others(instance.process.pid):
                        before_s = cpu_seconds(processes)
                        times_s = closed_loop(instance, request, concurrency, bench.seconds)
                        used_s = cpu_seconds(processes) - before_s
                    rate = len(times_s) / bench.seconds
                    samples.add(server.name, setting, "throughput", "req/s", rate)
                    samples.add(server.name, setting, "p50", "us", statistics.median(times_s) * 1e6)
                    samples.add(server.name, setting, "server CPU", "us", used_s / len(times_s) * 1e6)


def _setting(elements: int, concurrency: int) -> str:
    return f"{elements} elements, c={concurrency}"


def json_request(model: str, rows: int, width: int) -> bytes:
    """An inference whose input and outputs are JSON."""
    chance = random.Random(SEED)
    data = ",".join(f"{chance.gauss(0.0, 1.0):.6f}" for _ in range(rows * width))
    body = f'{{"inputs":[{{"name":"x","datatype":"FP32","shape":[{rows},{width}],"data":[{data}]}}]}}'
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


class _Caller:
    """One connection, with one request under way."""

    def __init__(self, instance: Running, request: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", instance.ports.http), timeout=20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = request
        self._received = b""

    def ask(self) -> None:
        self.sent_s = time.perf_counter()
        self.socket.sendall(self._request)

    def is_answered(self) -> bool:
        """Take what has come. Raises OSError for anything but a good answer."""
        piece = self.socket.recv(ROOM)
        self._received += piece
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not piece or not self._received.startswith(b"HTTP/1.1 200 "[: len(self._received)]):
            raise OSError(f"answered {self._received[:200]!r}")
        if not end or len(body) < int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]):
            return False
        self._received = b""
        return True


def closed_loop(instance: Running, request: bytes, concurrency: int, seconds: float) -> list[float]:
    """How long each request took, in seconds. Raises OSError."""
    callers = [_Caller(instance, request) for _ in range(concurrency)]
    by_descriptor = {caller.socket.fileno(): caller for caller in callers}
    times_s: list[float] = []
    with select.epoll() as poller:
        for descriptor in by_descriptor:
            poller.register(descriptor, select.EPOLLIN)
        end_s = time.perf_counter() + seconds
        for caller in callers:
            caller.ask()
        while time.perf_counter() < end_s:
            for descriptor, _ in poller.poll(1.0):
                caller = by_descriptor[descriptor]
                if caller.is_answered():
                    times_s.append(time.perf_counter() - caller.sent_s)
                    caller.ask()
    for caller in callers:
        caller.socket.close()
    return times_s
