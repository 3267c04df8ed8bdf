"""The load generator's own limits, against a server that does nothing.

Without this figure a server's throughput cannot be told from the generator's. The echo server is Python too, so the
rate reached is a lower bound; the generator's CPU time per call is its own.
"""

from dataclasses import dataclass

from benchmarks.clients import Offer, run_load
from benchmarks.models import model_file
from benchmarks.plan import Bench, model_directory, ready_server
from benchmarks.results import Bound, Verdict
from benchmarks.samples import Samples

MODEL = "mlp"
ECHO = "echo"


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorCheck:
    """Closed loop at some concurrencies for the ceiling, open loop at a rate for the punctuality."""

    concurrencies: tuple[int, ...]
    rate: float
    lag_p99_ms: float

    def run(self, bench: Bench) -> tuple[Samples, tuple[Verdict, ...]]:
        """Measure and judge."""
        samples = Samples()
        payload = bench.writer.infer(MODEL, model_file(MODEL))
        for number in range(bench.rounds):
            bench.say(f"round {number + 1} of {bench.rounds}: echo")
            for server in bench.available((ECHO,), samples):
                with (
                    model_directory((MODEL,)) as (models, names),
                    ready_server(bench, server, models, names) as instance,
                    samples.watching_others(instance.process.pid),
                ):
                    for concurrency in self.concurrencies:
                        offer = Offer(concurrency=concurrency, seconds=bench.seconds)
                        self._one(instance.target, payload, offer, f"c={concurrency}", samples)
                    offer = Offer(rate=self.rate, seconds=bench.seconds, seed=number + 1)
                    self._one(instance.target, payload, offer, f"{self.rate:g}/s", samples)
        return samples, self._verdicts(samples)

    def _one(self, target: str, payload: bytes, offer: Offer, setting: str, samples: Samples) -> None:
        report = run_load(target, payload, offer)
        samples.add(ECHO, setting, "throughput", "req/s", report.throughput)
        samples.add(ECHO, setting, "p50", "us", report.ok["p50"])
        samples.add(ECHO, setting, "p99", "us", report.ok["p99"])
        samples.add(ECHO, setting, "send lag p99", "us", report.lag["p99"])
        samples.add(ECHO, setting, "generator CPU per request", "us", report.cpu_s / report.calls * 1e6)
        samples.add(ECHO, setting, "generator CPU", "cores", report.cpu_s / report.elapsed_s)

    def _verdicts(self, samples: Samples) -> tuple[Verdict, ...]:
        setting = f"{self.rate:g}/s"
        lag = samples.median(ECHO, setting, "send lag p99")
        reached = samples.median(ECHO, setting, "throughput")
        return (
            Verdict(
                target=f"answered of {self.rate:g} calls offered per second",
                bound=Bound.AT_LEAST,
                limit=0.97,
                unit="share",
                value=reached / self.rate if reached is not None else None,
            ),
            Verdict(
                target="calls sent late at that rate, p99",
                bound=Bound.AT_MOST,
                limit=self.lag_p99_ms,
                unit="ms",
                value=lag / 1e3 if lag is not None else None,
            ),
        )
