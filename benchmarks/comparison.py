"""Closed-loop comparisons of servers over one model, in interleaved rounds.

A round starts each server in turn and measures every concurrency, so that a slow minute of the machine falls on all of
them alike. Each tool is a load generator; our own two also give the server's CPU time per request.
"""

from dataclasses import dataclass

from benchmarks.clients import LoadFailed, Offer, PerfReport, perf_analyzer_missing, run_lg, run_perf_analyzer
from benchmarks.loading import record_load
from benchmarks.models import model_file
from benchmarks.peers.setup import missing
from benchmarks.plan import Bench, model_directory, ready_server
from benchmarks.results import Bound, Verdict
from benchmarks.samples import Samples
from benchmarks.servers import Running, Server, ServerFailed

PERF, OWN, NATIVE, LG = "perf_analyzer", "load", "native load", "lg"
STREAM = "one stream"
NOT_FOR_PERF_ANALYZER = frozenset(
    {"mlserver", "echo", "native_echo"}
)  # they lack the configuration it asks for
SPEAK_TLS = frozenset({"appliance_tls"})


def tool_missing(tool: str) -> str | None:
    """Why a load generator cannot run here, or None."""
    if tool == PERF:
        return perf_analyzer_missing()
    return missing({NATIVE: "native", STREAM: "native", LG: "lg"}[tool]) if tool != OWN else None


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


def ratio(
    metric: str, peer: str, concurrency: int, bound: Bound, limit: float, subject: str = ""
) -> RatioTarget:
    """See RatioTarget."""
    return RatioTarget(
        metric=metric, peer=peer, concurrency=concurrency, bound=bound, limit=limit, subject=subject
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitTarget:
    """The limit of a metric of the subject itself at one concurrency."""

    metric: str
    concurrency: int
    bound: Bound
    limit: float
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One model, some servers, some concurrencies, some targets. No ``subject`` means that of the run. Targets are
    judged by the first of ``tools`` that measured them, or once by every tool."""

    model: str
    peers: tuple[str, ...]
    concurrencies: tuple[int, ...]
    targets: tuple[RatioTarget | LimitTarget, ...]
    subject: str = ""
    tools: tuple[str, ...] = (PERF, OWN)
    every_tool: bool = False

    def run(self, bench: Bench) -> tuple[Samples, tuple[Verdict, ...]]:
        """Measure and judge."""
        samples = Samples()
        subject = self.subject or bench.subject
        servers = bench.available((subject, *self.peers), samples)
        tools = [tool for tool in self.tools if not _left_out(tool, samples)]
        for number in range(bench.rounds):
            for server in servers:
                bench.say(f"round {number + 1} of {bench.rounds}: {server.name}")
                self._measure(bench, server, samples, tools)
        ways = [(tool,) for tool in tools or self.tools] if self.every_tool else [self.tools]
        verdicts = (judge(target, subject, samples, way) for target in self.targets for way in ways)
        return samples, tuple(verdict for verdict in verdicts if verdict is not None)

    def _measure(self, bench: Bench, server: Server, samples: Samples, tools: list[str]) -> None:
        with model_directory((self.model,)) as (models, names):
            try:
                with ready_server(bench, server, models, names) as instance:
                    for concurrency in self.concurrencies:
                        for tool in tools:
                            _run(bench, instance, self.model, concurrency, tool, samples)
            except (ServerFailed, LoadFailed) as problem:
                samples.errors.append(f"{server.name}: {problem}")


def _left_out(tool: str, samples: Samples) -> bool:
    reason = tool_missing(tool)
    if reason:
        samples.note(f"left out: {reason}")
    return reason is not None


def _run(bench: Bench, instance: Running, model: str, concurrency: int, tool: str, samples: Samples) -> None:
    setting = f"c={concurrency} {tool}"
    if tool in (OWN, NATIVE, STREAM):
        payload = bench.writer.infer(model, model_file(model))
        offer = Offer(concurrency=concurrency, seconds=bench.seconds, streamed=tool == STREAM)
        record_load(instance, setting, payload, offer, samples, native=tool != OWN)
    elif tool == PERF and instance.server.name not in NOT_FOR_PERF_ANALYZER | SPEAK_TLS:
        with samples.watching_others(instance.process.pid):
            report = run_perf_analyzer(instance.target, model, model_file(model), concurrency)
        _record(instance, setting, report, samples)
    elif tool == LG and instance.server.name not in SPEAK_TLS:
        with samples.watching_others(instance.process.pid):
            report = run_lg(instance.target, model, model_file(model), concurrency, bench.seconds)
        _record(instance, setting, report, samples)


def _record(instance: Running, setting: str, report: PerfReport, samples: Samples) -> None:
    name = instance.server.name
    samples.add(name, setting, "throughput", "req/s", report.throughput)
    samples.add(name, setting, "p50", "us", report.p50_us)
    samples.add(name, setting, "p99", "us", report.p99_us)


def judge(
    target: RatioTarget | LimitTarget, subject: str, samples: Samples, tools: tuple[str, ...]
) -> Verdict | None:
    """By the first tool that measured all that is needed. None when this is a limit and the only tool measures no such
    metric."""
    if isinstance(target, LimitTarget):
        return _judge_limit(target, subject, samples, tools)
    subject = target.subject or subject
    text = f"{target.metric} at concurrency {target.concurrency}, {subject} over {target.peer}"
    value, note = None, "one of the two was not measured"
    for tool in tools:
        setting = f"c={target.concurrency} {tool}"
        ours = samples.median(subject, setting, target.metric)
        theirs = samples.median(target.peer, setting, target.metric)
        if ours is not None and theirs:
            value, note = ours / theirs, f"with {tool}"
            break
    return Verdict(target=text, bound=target.bound, limit=target.limit, unit="x", value=value, note=note)


def _judge_limit(
    target: LimitTarget, subject: str, samples: Samples, tools: tuple[str, ...]
) -> Verdict | None:
    if not {OWN, NATIVE, STREAM} & set(tools):
        return None
    found = {tool: samples.median(subject, f"c={target.concurrency} {tool}", target.metric) for tool in tools}
    tool = next((tool for tool in tools if found[tool] is not None), None)
    return Verdict(
        target=f"{target.metric} at concurrency {target.concurrency}",
        bound=target.bound,
        limit=target.limit,
        unit=target.unit,
        value=found[tool] if tool else None,
        note=f"with {tool}" if tool else "it was not measured",
    )
