"""One load on a running server, recorded: rate, latencies, CPU per request of the server and of the generator."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from benchmarks.clients import LoadReport, Offer, run_load
from benchmarks.load import INFER
from benchmarks.process import cpu_seconds
from benchmarks.samples import Samples
from benchmarks.servers import Running

SERVER_CPU = "server CPU per request"


def answer_bytes(instance: Running, payload: bytes) -> int:
    """The length of a good answer."""
    with instance.channel() as channel:
        return len(channel.unary_unary(INFER, None, None)(payload, timeout=10.0, wait_for_ready=True))


def record_load(
    instance: Running,
    setting: str,
    payload: bytes,
    offer: Offer,
    samples: Samples,
    *,
    native: bool,
    may_fail: bool = False,
    beside: tuple[Running, ...] = (),
) -> LoadReport:
    """Offer the load and record what came of it; calls that fail are an error unless they may. The native generator
    also holds every good answer against the length of a first one. `beside`: servers that take part of the load."""
    if native:
        length = answer_bytes(instance, payload)
        offer = replace(offer, expect_bytes=length, authority=instance.launch.authority)
    servers = (instance, *beside)
    with (
        samples.watching_others(*(server.process.pid for server in servers)),
        _spending(servers, offer.warm_up_s if native else 0.0) as spent,
    ):
        report = run_load(instance.target, payload, offer, native=native)
    name = instance.server.name
    if report.unanswered or (report.failed and not may_fail):
        problem = f"{report.unanswered} never ended; failed: {dict(report.messages)}"
        samples.errors.append(f"{name} {setting}: calls failed: {problem}")
    calls = max(report.calls, 1)
    measured = max(_counted(report), 1) if native else calls
    samples.add(name, setting, "throughput", "req/s", report.throughput)
    samples.add(name, setting, "p50", "us", report.ok["p50"])
    samples.add(name, setting, "p99", "us", report.ok["p99"])
    samples.add(name, setting, SERVER_CPU, "us", spent[0] / measured * 1e6)
    samples.add(name, setting, "generator CPU per request", "us", report.cpu_s / calls * 1e6)
    return report


@contextmanager
def _spending(servers: tuple[Running, ...], warm_up_s: float) -> Iterator[list[float]]:
    """CPU seconds of the servers during the block, behind a warm-up. The native generator begins at once; Python's
    takes a while to, and nobody knows when its warm-up ends."""
    marks: list[float] = []
    before = _spent(servers)
    timer = threading.Timer(warm_up_s, lambda: marks.append(_spent(servers)))
    timer.start()
    try:
        yield marks
    finally:
        timer.join()
        marks[:] = [_spent(servers) - (marks[0] if marks else before)]


def _counted(report: LoadReport) -> int:
    """Calls behind the warm-up."""
    return int(report.ok["count"] + sum(kind["count"] for kind in report.failed.values()))


def _spent(servers: tuple[Running, ...]) -> float:
    return sum(cpu_seconds(server.processes()) for server in servers)
