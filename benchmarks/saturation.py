"""More than a server can do, with deadlines, for a long time: goodput, refusals, drift; and its tail when nearly full.

Capacity is what the same server answers in a closed loop that keeps its batches full, taken on the spot in every round.
What the model alone could do in an idle process is recorded beside it, so that a slow server cannot hide behind a low
capacity of its own.
"""

from dataclasses import dataclass

from benchmarks.clients import LoadFailed, LoadReport, Offer
from benchmarks.loading import record_load
from benchmarks.models import model_file
from benchmarks.overload import quarter_ratio, run_ms
from benchmarks.peers.session import Session
from benchmarks.plan import Bench, model_directory, ready_server
from benchmarks.process import memory
from benchmarks.results import Bound, Verdict
from benchmarks.samples import Samples
from benchmarks.servers import Running, ServerFailed

CAPACITY, NEARLY, HEAVY, ALONE = "capacity", "nearly full", "heavy", "model alone"
BATCHES_UNDER_WAY = 4
LEARNING_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """`factor` times the capacity for `seconds`, and `nearly` of it for its tail."""

    model: str
    batch: int
    subject: str
    deadline_ms: float
    factor: float
    seconds: float
    nearly: float
    goodput_share: float
    refusal_p50_ms: float
    refusal_p99_ms: float
    drift: float
    tail_ratio: float

    def run(self, bench: Bench) -> tuple[Samples, tuple[Verdict, ...]]:
        """Measure and judge. Rounds repeat capacity and the nearly full load; the heavy load runs once."""
        samples = Samples()
        alone = self.batch * 1e3 / run_ms(Session(model_file(self.model)), self.batch)
        samples.add(ALONE, ALONE, "throughput", "req/s", alone)
        for server in bench.available((self.subject,), samples):
            try:
                with (
                    model_directory((self.model,)) as (models, names),
                    ready_server(bench, server, models, names) as instance,
                ):
                    self._drive(bench, instance, samples)
            except (ServerFailed, LoadFailed) as problem:
                samples.errors.append(f"{server.name}: {problem}")
        return samples, self._verdicts(samples)

    def _drive(self, bench: Bench, instance: Running, samples: Samples) -> None:
        learning = Samples()
        self._closed(bench, instance, LEARNING_S, learning)
        for number in range(bench.rounds):
            bench.say(f"round {number + 1} of {bench.rounds}: capacity, then {self.nearly:g} of it")
            capacity = self._closed(bench, instance, bench.seconds, samples)
            report = self._open(
                bench, instance, NEARLY, capacity * self.nearly, bench.seconds, number, samples
            )
            ratio = report.ok["p99"] / max(report.ok["p50"], 1.0)
            samples.add(instance.server.name, NEARLY, "p99 over p50", "x", ratio)
        capacity = samples.median(instance.server.name, CAPACITY, "throughput") or 0.0
        seconds = bench.at_length(self.seconds)
        bench.say(f"{self.factor:g}x of capacity for {seconds:g} s")
        before = memory([instance.process.pid]).rss
        report = self._open(bench, instance, HEAVY, capacity * self.factor, seconds, 0, samples)
        grown = memory([instance.process.pid]).rss - before
        samples.add(instance.server.name, HEAVY, "growth of the daemon's RSS", "MB", grown / 1e6)
        _record_drift(instance.server.name, report, samples)
        self._closed(bench, instance, bench.seconds, samples)  # it still can

    def _closed(self, bench: Bench, instance: Running, seconds: float, samples: Samples) -> float:
        payload = bench.writer.infer(self.model, model_file(self.model))
        offer = Offer(concurrency=BATCHES_UNDER_WAY * self.batch, seconds=seconds)
        return record_load(instance, CAPACITY, payload, offer, samples, native=True).throughput

    def _open(
        self,
        bench: Bench,
        instance: Running,
        setting: str,
        rate: float,
        seconds: float,
        number: int,
        samples: Samples,
    ) -> LoadReport:
        payload = bench.writer.infer(self.model, model_file(self.model))
        offer = Offer(
            rate=rate,
            seconds=seconds,
            seed=number + 1,
            deadline_ms=self.deadline_ms,
            bound_ms=self.deadline_ms,
        )
        report = record_load(instance, setting, payload, offer, samples, native=True, may_fail=True)
        name = instance.server.name
        samples.add(name, setting, "offered", "req/s", report.offered)
        samples.add(name, setting, "goodput", "req/s", report.goodput)
        samples.add(name, setting, "send lag p99", "us", report.lag["p99"])
        for code, figures in report.failed.items():
            samples.add(name, setting, f"status {code}", "req/s", figures["count"] / seconds)
        refusals = report.refusals()
        if refusals:
            samples.add(name, setting, "refusal p50", "us", refusals["p50"])
            samples.add(name, setting, "refusal p99", "us", refusals["p99"])
        return report

    def _verdicts(self, samples: Samples) -> tuple[Verdict, ...]:
        def found(setting: str, metric: str) -> float | None:
            return samples.median(self.subject, setting, metric)

        def ratio(above: float | None, below: float | None) -> float | None:
            return above / below if above is not None and below else None

        most, least, over = Bound.AT_MOST, Bound.AT_LEAST, f"at {self.factor:g}x of capacity"
        goodput, alone = found(HEAVY, "goodput"), samples.median(ALONE, ALONE, "throughput")
        share = ratio(goodput, alone)
        note = "" if share is None else f"{share:.2f} of what the model alone can do on an idle machine"
        capacity = found(CAPACITY, "throughput")
        rows = (
            (
                f"goodput {over}, over capacity",
                least,
                self.goodput_share,
                ratio(goodput, capacity),
                "x",
                note,
            ),
            (f"refusals {over}, p50", most, self.refusal_p50_ms, _ms(found(HEAVY, "refusal p50")), "ms", ""),
            (f"refusals {over}, p99", most, self.refusal_p99_ms, _ms(found(HEAVY, "refusal p99")), "ms", ""),
            (
                f"goodput of the last quarter of {self.seconds:g} s over the first",
                least,
                1 - self.drift,
                found(HEAVY, "goodput drift"),
                "x",
                "",
            ),
            (
                "p99 of good answers in the last quarter over the first",
                most,
                1 + self.drift,
                found(HEAVY, "p99 drift"),
                "x",
                "",
            ),
            (
                f"p99 over p50 at {self.nearly:g} of capacity",
                most,
                self.tail_ratio,
                found(NEARLY, "p99 over p50"),
                "x",
                "",
            ),
        )
        return tuple(
            Verdict(target=target, bound=bound, limit=limit, unit=unit, value=value, note=note)
            for target, bound, limit, value, unit, note in rows
        )


def _ms(us: float | None) -> float | None:
    return None if us is None else us / 1e3


def _record_drift(name: str, report: LoadReport, samples: Samples) -> None:
    goodput = [row["in_time"] for row in report.series]
    tails = [row["p99_us"] for row in report.series]
    samples.add(name, HEAVY, "goodput drift", "x", quarter_ratio(goodput))
    samples.add(name, HEAVY, "p99 drift", "x", quarter_ratio(tails))
