"""Closed-loop comparisons of servers over one model, in interleaved rounds.

A round starts each server in turn and measures every concurrency, so that a slow minute of the machine falls on all of
them alike. Throughput and latency are taken with perf_analyzer where it can talk to the server, and always with our own
generator, which also gives the server's CPU time per request.
"""

from dataclasses import dataclass

from benchmarks.clients import LoadFailed, Offer, perf_analyzer_missing, run_load, run_perf_analyzer
from benchmarks.models import model_file
from benchmarks.plan import Bench, model_directory, ready_server
from benchmarks.process import cpu_seconds
from benchmarks.results import Bound, Verdict
from benchmarks.samples import Samples
from benchmarks.servers import Running, Server, ServerFailed

PERF, OWN = "perf_analyzer", "load"
NOT_FOR_PERF_ANALYZER = frozenset({"mlserver", "echo"})  # they lack the model configuration it asks for


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioTarget:
    """A server's metric over a peer's at one concurrency, and the limit of the ratio. No ``subject`` means that of the
    run; another one must be among the peers."""

    metric: str
    peer: str
    concurrency: int
    bound: Bound
    limit: float
    subject: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One model, some servers, some concurrencies, some targets."""

    model: str
    peers: tuple[str, ...]
    concurrencies: tuple[int, ...]
    targets: tuple[RatioTarget, ...]

    def run(self, bench: Bench) -> tuple[Samples, tuple[Verdict, ...]]:
        """Measure and judge."""
        samples = Samples()
        servers = bench.available((bench.subject, *self.peers), samples)
        perf_reason = perf_analyzer_missing()
        if perf_reason:
            samples.note(f"left out: {perf_reason}")
        for number in range(bench.rounds):
            for server in servers:
                bench.say(f"round {number + 1} of {bench.rounds}: {server.name}")
                self._measure(bench, server, samples, use_perf=not perf_reason)
        return samples, tuple(
            judge(target, target.subject or bench.subject, samples) for target in self.targets
        )

    def _measure(self, bench: Bench, server: Server, samples: Samples, *, use_perf: bool) -> None:
        with model_directory((self.model,)) as (models, names):
            try:
                with ready_server(bench, server, models, names) as instance:
                    for concurrency in self.concurrencies:
                        _with_own(bench, instance, self.model, concurrency, samples)
                        if use_perf and server.name not in NOT_FOR_PERF_ANALYZER:
                            _with_perf_analyzer(instance, self.model, concurrency, samples)
            except (ServerFailed, LoadFailed) as problem:
                samples.errors.append(f"{server.name}: {problem}")


def _with_own(bench: Bench, instance: Running, model: str, concurrency: int, samples: Samples) -> None:
    payload = bench.writer.infer(model, model_file(model))
    before = cpu_seconds(instance.processes())
    with samples.watching_others(instance.process.pid):
        report = run_load(instance.target, payload, Offer(concurrency=concurrency, seconds=bench.seconds))
    spent = cpu_seconds(instance.processes()) - before
    name, setting = instance.server.name, f"c={concurrency} {OWN}"
    if report.failed:
        samples.errors.append(f"{name} {setting}: calls failed: {dict(report.messages)}")
    samples.add(name, setting, "throughput", "req/s", report.throughput)
    samples.add(name, setting, "p50", "us", report.ok["p50"])
    samples.add(name, setting, "p99", "us", report.ok["p99"])
    samples.add(name, setting, "server CPU per request", "us", spent / report.calls * 1e6)
    samples.add(name, setting, "generator CPU per request", "us", report.cpu_s / report.calls * 1e6)


def _with_perf_analyzer(instance: Running, model: str, concurrency: int, samples: Samples) -> None:
    with samples.watching_others(instance.process.pid):
        report = run_perf_analyzer(instance.target, model, model_file(model), concurrency)
    name, setting = instance.server.name, f"c={concurrency} {PERF}"
    samples.add(name, setting, "throughput", "req/s", report.throughput)
    samples.add(name, setting, "p50", "us", report.p50_us)
    samples.add(name, setting, "p99", "us", report.p99_us)


def judge(target: RatioTarget, subject: str, samples: Samples) -> Verdict:
    """The ratio, measured with perf_analyzer when both servers were, else with our own generator."""
    text = f"{target.metric} at concurrency {target.concurrency}, {subject} over {target.peer}"
    value, note = None, "one of the two was not measured"
    for tool in (PERF, OWN):
        setting = f"c={target.concurrency} {tool}"
        ours = samples.median(subject, setting, target.metric)
        theirs = samples.median(target.peer, setting, target.metric)
        if ours is not None and theirs:
            value, note = ours / theirs, f"with {tool}"
            break
    return Verdict(target=text, bound=target.bound, limit=target.limit, unit="x", value=value, note=note)
