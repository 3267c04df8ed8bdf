"""One load on a running server, recorded: rate, latencies, CPU per request of the server and of the generator."""

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
    before = _spent(servers)
    with samples.watching_others(*(server.process.pid for server in servers)):
        report = run_load(instance.target, payload, offer, native=native)
    spent = _spent(servers) - before
    name = instance.server.name
    if report.unanswered or (report.failed and not may_fail):
        problem = f"{report.unanswered} never ended; failed: {dict(report.messages)}"
        samples.errors.append(f"{name} {setting}: calls failed: {problem}")
    calls = max(report.calls, 1)
    samples.add(name, setting, "throughput", "req/s", report.throughput)
    samples.add(name, setting, "p50", "us", report.ok["p50"])
    samples.add(name, setting, "p99", "us", report.ok["p99"])
    samples.add(name, setting, SERVER_CPU, "us", spent / calls * 1e6)
    samples.add(name, setting, "generator CPU per request", "us", report.cpu_s / calls * 1e6)
    return report


def _spent(servers: tuple[Running, ...]) -> float:
    return sum(cpu_seconds(server.processes()) for server in servers)
