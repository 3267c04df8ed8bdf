"""Memory and start-up: the idle daemon, its workers, the first answer, and a thousand models.

Memory is read from smaps_rollup, as sums over the process tree where a sum is meant. PSS shares a page among the
processes that map it, so the sum over the tree is what the machine really loses; RSS of forked processes counts the
same pages many times.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import grpc

from benchmarks.clients import Offer
from benchmarks.load import INFER
from benchmarks.loading import record_load
from benchmarks.models import model_file
from benchmarks.plan import Bench, collecting_failures, model_directory, ready_server
from benchmarks.process import mapped_rss, memory
from benchmarks.results import Bound, Verdict
from benchmarks.samples import Samples
from benchmarks.servers import (
    POLL_S,
    SERVERS,
    Running,
    Server,
    ServerFailed,
    running,
    wait_http_ready,
    wait_listening,
    wait_models_ready,
)

MIB = 2**20
SMALL_MODEL = "mlp"
FIRST_ANSWER_TIMEOUT_S = 60.0
MANY_TIMEOUT_S = 300.0
SETTLE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleLimits:
    """Limits for a few small models: daemon RSS, private memory of a worker, seconds to the first answer."""

    models: int
    daemon_rss_mib: float
    worker_private_mib: float
    first_answer_s: float

    def run(self, bench: Bench) -> tuple[Samples, tuple[Verdict, ...]]:
        """Start the subject once per round."""
        samples = Samples()
        for server in bench.available((bench.subject,), samples):
            for number in range(bench.rounds):
                bench.say(f"round {number + 1} of {bench.rounds}: start with {self.models} models")
                with collecting_failures(server.name, samples):
                    self._start(bench, number, samples)
        return samples, self._verdicts(bench.subject, samples)

    def _start(self, bench: Bench, number: int, samples: Samples) -> None:
        subject = SERVERS[bench.subject]
        with (
            model_directory((SMALL_MODEL,), copies=self.models) as (models, names),
            running(subject, models) as server,
        ):
            payload = bench.writer.infer(names[0], model_file(SMALL_MODEL))
            seconds = first_answer_s(server, payload)
            samples.add(
                subject.name, "first start" if number == 0 else "later starts", "first answer", "s", seconds
            )
            samples.add(subject.name, "all starts", "first answer", "s", seconds)
            wait_models_ready(server, bench.writer, names, FIRST_ANSWER_TIMEOUT_S)
            time.sleep(SETTLE_S)  # what was needed only for loading has been given back by then
            record_memory(server, samples)

    def _verdicts(self, subject: str, samples: Samples) -> tuple[Verdict, ...]:
        rows = (
            ("RSS of the idle daemon", self.daemon_rss_mib, samples.median(subject, "daemon", "RSS"), "MiB"),
            (
                "private memory of the largest worker",
                self.worker_private_mib,
                samples.median(subject, "largest child", "private"),
                "MiB",
            ),
            (
                f"start to first answer with {self.models} small models",
                self.first_answer_s,
                samples.median(subject, "all starts", "first answer"),
                "s",
            ),
        )
        return tuple(at_most(*row) for row in rows)


def at_most(target: str, limit: float, value: float | None, unit: str) -> Verdict:
    """A verdict with an upper limit."""
    return Verdict(target=target, bound=Bound.AT_MOST, limit=limit, unit=unit, value=value)


def record_memory(server: Running, samples: Samples) -> None:
    """RSS and PSS of the first process, private memory of the others, PSS of the whole tree."""
    name, (root, *children) = server.server.name, server.processes()
    daemon = memory([root])
    samples.add(name, "daemon", "RSS", "MiB", daemon.rss / MIB)
    samples.add(name, "daemon", "PSS", "MiB", daemon.pss / MIB)
    samples.add(name, "daemon", "private", "MiB", daemon.private / MIB)
    samples.add(name, "tree", "PSS", "MiB", memory([root, *children]).pss / MIB)
    samples.add(name, "tree", "processes", "", 1 + len(children))
    if children:
        largest = max(memory([child]).private for child in children)
        samples.add(name, "largest child", "private", "MiB", largest / MIB)


def first_answer_s(server: Running, payload: bytes) -> float:
    """Seconds from exec to the first good ModelInfer, tried again and again once the port is open."""
    wait_listening(server, FIRST_ANSWER_TIMEOUT_S)
    deadline = time.monotonic() + FIRST_ANSWER_TIMEOUT_S
    with server.channel() as channel:
        infer = channel.unary_unary(INFER, None, None)
        while time.monotonic() < deadline:
            server.check_alive()
            try:
                infer(payload, timeout=5.0, wait_for_ready=True)
            except grpc.RpcError:
                time.sleep(POLL_S)
                continue
            return time.monotonic() - server.started_s
    raise ServerFailed(f"{server.server.name} gave no answer within {FIRST_ANSWER_TIMEOUT_S:.0f} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyModels:
    """A thousand small models, each from a directory of its own. No ``subject`` means that of the run."""

    models: int
    ready_s: float
    memory_mib: float
    p50_ratio: float
    subject: str = ""
    native: bool = False

    def run(self, bench: Bench) -> tuple[Samples, tuple[Verdict, ...]]:
        """One start with all of them; latency of one is compared with the same model alone, in rounds."""
        samples = Samples()
        subject = self.subject or bench.subject
        for server in bench.available((subject,), samples):
            with (
                collecting_failures(server.name, samples),
                model_directory((SMALL_MODEL,), copies=self.models) as many,
            ):
                self._measure(bench, server, many, samples)
        return samples, self._verdicts(subject, samples)

    def _measure(
        self, bench: Bench, subject: Server, many: tuple[Path, tuple[str, ...]], samples: Samples
    ) -> None:
        models, names = many
        bench.say(f"start with {self.models} models")
        with (
            running(subject, models) as crowd,
            model_directory((SMALL_MODEL,)) as (alone_models, alone_names),
        ):
            wait_models_ready(crowd, bench.writer, names, MANY_TIMEOUT_S)
            samples.add(subject.name, "many", "all ready", "s", time.monotonic() - crowd.started_s)
            time.sleep(SETTLE_S)
            samples.add(subject.name, "many", "PSS of the tree", "MiB", memory(crowd.processes()).pss / MIB)
            samples.add(subject.name, "many", "processes", "", len(crowd.processes()))
            with ready_server(bench, subject, alone_models, alone_names) as alone:
                for number in range(bench.rounds):
                    bench.say(f"round {number + 1} of {bench.rounds}: one of them, then the same alone")
                    self._p50(bench, crowd, names[len(names) // 2], "one of many", samples)
                    self._p50(bench, alone, alone_names[0], "alone", samples)

    def _p50(self, bench: Bench, server: Running, served_name: str, setting: str, samples: Samples) -> None:
        payload = bench.writer.infer(served_name, model_file(SMALL_MODEL))
        offer = Offer(concurrency=1, seconds=bench.seconds)
        record_load(server, setting, payload, offer, samples, native=self.native)

    def _verdicts(self, subject: str, samples: Samples) -> tuple[Verdict, ...]:
        crowded = samples.median(subject, "one of many", "p50")
        alone = samples.median(subject, "alone", "p50")
        ratio = crowded / alone if crowded is not None and alone else None
        return (
            at_most(
                f"{self.models} models all ready",
                self.ready_s,
                samples.median(subject, "many", "all ready"),
                "s",
            ),
            at_most(
                "memory of the tree",
                self.memory_mib,
                samples.median(subject, "many", "PSS of the tree"),
                "MiB",
            ),
            at_most("p50 of one of them over the same alone, concurrency 1", self.p50_ratio, ratio, "x"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEndMemory:
    """What a front end adds to the idle daemon: with it, and with HTTP by Python alone. What the daemon without it has
    in memory of its ``library`` counts as added, too."""

    models: int
    subject: str
    peers: tuple[str, ...]
    without: str
    library: str
    adds_mb: float

    def run(self, bench: Bench) -> tuple[Samples, tuple[Verdict, ...]]:
        """Start each once per round."""
        samples = Samples()
        servers = bench.available((self.subject, *self.peers, self.without), samples)
        for number in range(bench.rounds):
            for server in servers:
                bench.say(f"round {number + 1} of {bench.rounds}: {server.name}")
                with (
                    collecting_failures(server.name, samples),
                    model_directory((SMALL_MODEL,), copies=self.models) as (models, _),
                    running(server, models) as instance,
                ):
                    wait_http_ready(instance, FIRST_ANSWER_TIMEOUT_S)
                    time.sleep(SETTLE_S)
                    record_memory(instance, samples)
                    mapped = mapped_rss(instance.process.pid, self.library)
                    samples.add(server.name, "daemon", "of the front end's library", "MiB", mapped / MIB)
        return samples, self._verdicts(samples)

    def _verdicts(self, samples: Samples) -> tuple[Verdict, ...]:
        verdicts = []
        for metric in ("RSS", "private"):
            ours = samples.median(self.subject, "daemon", metric)
            bare = samples.median(self.without, "daemon", metric)
            loaded = samples.median(self.without, "daemon", "of the front end's library")
            added = None
            if ours is not None and bare is not None and loaded is not None:
                added = (ours - bare + (loaded if metric == "RSS" else 0.0)) * MIB / 1e6
            text = f"{metric} of the idle daemon, {self.subject} over {self.without}"
            verdicts.append(at_most(text, self.adds_mb, added, "MB more"))
        return tuple(verdicts)
