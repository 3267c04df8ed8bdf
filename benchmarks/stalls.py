"""A server whose interpreter is held again and again, beside the same server left alone: who waits for Python?

`benchmarks/stalling` holds it, from outside of the program.
"""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.clients import Offer
from benchmarks.loading import record_load
from benchmarks.models import model_file
from benchmarks.plan import Bench, model_directory, ready_server
from benchmarks.results import Bound, Verdict
from benchmarks.samples import Samples
from benchmarks.servers import STALL_COUNT, Running, Server

STALLS_LEAST = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """An open loop on the stalled server and on a calm one."""

    model: str
    subject: str
    calm: str
    rate: float
    p99_ms: float

    def run(self, bench: Bench) -> tuple[Samples, tuple[Verdict, ...]]:
        """Measure and judge."""
        samples = Samples()
        bench.in_turns(
            (self.subject, self.calm),
            samples,
            lambda server, number: self._measure(bench, server, number, samples),
        )
        return samples, (
            Verdict(
                target=f"p99 at {self.rate:g} requests per second, interpreter held",
                bound=Bound.AT_MOST,
                limit=self.p99_ms,
                unit="ms",
                value=_ms(samples.median(self.subject, self._setting, "p99")),
            ),
        )

    @property
    def _setting(self) -> str:
        return f"{self.rate:g}/s"

    def _measure(self, bench: Bench, server: Server, number: int, samples: Samples) -> None:
        with (
            model_directory((self.model,)) as (models, names),
            ready_server(bench, server, models, names) as instance,
        ):
            payload = bench.writer.infer(self.model, model_file(self.model))
            before = _stalls(instance)
            offer = Offer(rate=self.rate, seconds=bench.seconds, seed=number + 1)
            report = record_load(instance, self._setting, payload, offer, samples, native=True)
            stalls = (_stalls(instance) - before) / report.elapsed_s
        samples.add(server.name, self._setting, "p99.9", "us", report.ok["p999"])
        samples.add(server.name, self._setting, "max", "us", report.ok["max"])
        samples.add(server.name, self._setting, "send lag p99", "us", report.lag["p99"])
        if server.name == self.subject:
            samples.add(server.name, self._setting, "stalls", "1/s", stalls)
            if stalls < STALLS_LEAST:
                samples.errors.append(
                    f"{server.name}: its interpreter was held only {stalls:.1f} times a second"
                )


def _stalls(instance: Running) -> int:
    file = instance.launch.environment.get(STALL_COUNT)
    return Path(file).stat().st_size if file else 0


def _ms(us: float | None) -> float | None:
    return None if us is None else us / 1e3
