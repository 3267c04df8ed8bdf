"""Open-loop overload: what share comes in time, whether goodput holds, how fast refusals are, whether a queue grows.

The model's run times are measured on the spot, in an idle in-process session, because capacities follow from them: one
at a time it serves 1/t(1), in batches of eight 8/t(8) rows per second.
"""

import statistics
import threading
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.clients import LoadFailed, LoadReport, Offer, run_load
from benchmarks.models import model_file
from benchmarks.peers.session import Session
from benchmarks.plan import Bench, model_directory, ready_server
from benchmarks.results import Bound, Verdict
from benchmarks.samples import Samples
from benchmarks.servers import Running, ServerFailed

BATCH = 8
TIMED_RUNS = 40
LADDER = (0.6, 0.7, 0.8, 0.9, 1.0)
LADDER_SECONDS = 5.0
PROBE_INTERVAL_S = 0.5
GROWTH_ALLOWED = 1.5
DRIFT_ALLOWED = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Measured run times in ms at batch 1 and 8, and what they allow per second."""

    batch_1_ms: float
    batch_8_ms: float

    @property
    def single(self) -> float:
        """Requests per second one at a time."""
        return 1e3 / self.batch_1_ms

    @property
    def total(self) -> float:
        """Requests per second in full batches."""
        return BATCH * 1e3 / self.batch_8_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    """Two overloads of one model with a deadline: mild (over batch 1's capacity) and heavy (over the total)."""

    model: str
    batch_1_ms: float
    deadline_ms: float
    mild_factor: float
    heavy_factor: float
    heavy_seconds: float
    in_time_share: float
    goodput_of_peak: float
    refusal_p99_ms: float

    def run(self, bench: Bench) -> tuple[Samples, tuple[Verdict, ...]]:
        """Measure and judge. Rounds repeat the mild load and the ladder; the heavy load runs once, at its length."""
        samples = Samples()
        capacity = measure_capacity(self.model)
        samples.note(
            f"{self.model}: {capacity.batch_1_ms:.2f} ms at batch 1 and {capacity.batch_8_ms:.2f} ms at batch {BATCH}, "
            f"so {capacity.single:.0f}/s one at a time and {capacity.total:.0f}/s in full batches"
        )
        if abs(capacity.batch_1_ms / self.batch_1_ms - 1) > DRIFT_ALLOWED:
            samples.note(
                f"meant to take {self.batch_1_ms:g} ms at batch 1: the machine is busier or quieter than when the "
                "model was made; --fresh-models calibrates it anew"
            )
        for server in bench.available((bench.subject,), samples):
            with model_directory((self.model,)) as (models, names):
                try:
                    with ready_server(bench, server, models, names) as instance:
                        self._drive(bench, instance, capacity, samples)
                except (ServerFailed, LoadFailed) as problem:
                    samples.errors.append(f"{server.name}: {problem}")
        return samples, self._verdicts(bench.subject, samples)

    def _drive(self, bench: Bench, instance: Running, capacity: Capacity, samples: Samples) -> None:
        self._offer(bench, instance, capacity.single * 0.5, LADDER_SECONDS, 0)  # lets it learn its run times
        for number in range(bench.rounds):
            bench.say(
                f"round {number + 1} of {bench.rounds}: {self.mild_factor:g}x of batch 1, then up to capacity"
            )
            with samples.watching_others(instance.process.pid):
                mild = self._offer(
                    bench, instance, capacity.single * self.mild_factor, LADDER_SECONDS, number
                )
                _record(samples, instance, f"{self.mild_factor:g}x batch 1", mild)
                for share in LADDER:
                    report = self._offer(bench, instance, capacity.total * share, LADDER_SECONDS, number)
                    _record(samples, instance, f"{share:g}x total", report)
        seconds = bench.at_length(self.heavy_seconds)
        bench.say(f"{self.heavy_factor:g}x of total capacity for {seconds:.0f} s")
        with samples.watching_others(instance.process.pid), QueueProbe(instance) as probe:
            heavy = self._offer(bench, instance, capacity.total * self.heavy_factor, seconds, 0)
        _record(samples, instance, "heavy", heavy)
        _record_growth(samples, instance, heavy, probe)

    def _offer(
        self, bench: Bench, instance: Running, rate: float, seconds: float, round_number: int
    ) -> LoadReport:
        payload = bench.writer.infer(self.model, model_file(self.model))
        offer = Offer(
            rate=rate,
            seconds=seconds,
            deadline_ms=self.deadline_ms,
            bound_ms=self.deadline_ms,
            seed=round_number + 1,
            channels=4,
        )
        return run_load(instance.target, payload, offer)

    def _verdicts(self, subject: str, samples: Samples) -> tuple[Verdict, ...]:
        peak = _peak(subject, samples)
        heavy = samples.median(subject, "heavy", "goodput")
        refusals = samples.median(subject, "heavy", "refusal p99")
        rows = (
            (
                f"share in time at {self.mild_factor:g}x of batch 1's capacity",
                Bound.AT_LEAST,
                self.in_time_share,
                samples.median(subject, f"{self.mild_factor:g}x batch 1", "in time"),
                "share",
            ),
            (
                f"goodput at {self.heavy_factor:g}x of total capacity over the peak",
                Bound.AT_LEAST,
                self.goodput_of_peak,
                heavy / peak if heavy is not None and peak else None,
                "x",
            ),
            (
                "refusals at that load, p99",
                Bound.AT_MOST,
                self.refusal_p99_ms,
                refusals / 1e3 if refusals is not None else None,
                "ms",
            ),
            (
                f"queue at the end of {self.heavy_seconds:.0f} s over the queue at the start",
                Bound.AT_MOST,
                GROWTH_ALLOWED,
                samples.median(subject, "heavy", "queue growth"),
                "x",
            ),
        )
        return tuple(Verdict(target=t, bound=b, limit=limit, unit=u, value=v) for t, b, limit, v, u in rows)


def _peak(subject: str, samples: Samples) -> float | None:
    settings = [*(f"{share:g}x total" for share in LADDER), "heavy"]
    found = [samples.median(subject, setting, "goodput") for setting in settings]
    return max((value for value in found if value is not None), default=None)


def _record(samples: Samples, instance: Running, setting: str, report: LoadReport) -> None:
    name = instance.server.name
    samples.add(name, setting, "offered", "req/s", report.offered)
    samples.add(name, setting, "goodput", "req/s", report.goodput)
    samples.add(name, setting, "in time", "share", report.in_time_share)
    samples.add(name, setting, "p50", "us", report.ok["p50"])
    samples.add(name, setting, "p99", "us", report.ok["p99"])
    samples.add(name, setting, "send lag p99", "us", report.lag["p99"])
    for code, figures in report.failed.items():
        samples.add(name, setting, f"status {code}", "req/s", figures["count"] / max(len(report.series), 1))
    refusals = report.refusals()
    if refusals:
        samples.add(name, setting, "refusal p50", "us", refusals["p50"])
        samples.add(name, setting, "refusal p99", "us", refusals["p99"])
    if report.unanswered:
        samples.errors.append(f"{name} {setting}: {report.unanswered} calls were never answered")


def _record_growth(samples: Samples, instance: Running, report: LoadReport, probe: "QueueProbe") -> None:
    """Last quarter over first quarter: queue lengths, or latencies where the server shows no queue."""
    name = instance.server.name
    lengths = [length for _, length in probe.readings]
    if lengths:
        samples.add(name, "heavy", "queue mean", "requests", statistics.fmean(lengths))
        samples.add(name, "heavy", "queue max", "requests", max(lengths))
        samples.add(name, "heavy", "queue growth", "x", quarter_ratio(lengths))
        return
    samples.note(f"{name} shows no queue gauge; growth is judged by the p99 of its answers per second")
    samples.add(name, "heavy", "queue growth", "x", quarter_ratio([row["p99_us"] for row in report.series]))


def quarter_ratio(values: list[float]) -> float:
    """Mean of the last quarter over the mean of the first, one added to each so that empty queues compare."""
    quarter = max(len(values) // 4, 1)
    return (statistics.fmean(values[-quarter:]) + 1) / (statistics.fmean(values[:quarter]) + 1)


class QueueProbe:
    """Reads a server's queue length now and then, on a thread of its own, while the block runs."""

    def __init__(self, instance: Running) -> None:
        self._instance = instance
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="queue-probe")
        self.readings: list[tuple[float, float]] = []

    def __enter__(self) -> "QueueProbe":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _loop(self) -> None:
        start = time.monotonic()
        while not self._stop.wait(PROBE_INTERVAL_S):
            length = self._instance.queue_length()
            if length is not None:
                self.readings.append((time.monotonic() - start, length))


def measure_capacity(model: str) -> Capacity:
    """Lower quartile of the run times of the model in this process, one thread."""
    session = Session(model_file(model))
    return Capacity(batch_1_ms=run_ms(session, 1), batch_8_ms=run_ms(session, BATCH))


def run_ms(session: Session, batch: int) -> float:
    """Lower quartile of the run times at a batch size, in ms."""
    feed = {name: np.zeros([batch, *shape[1:]], np.float32) for name, _, shape in session.inputs}
    times = []
    for _ in range(TIMED_RUNS):
        start = time.perf_counter()
        session.run(feed)
        times.append(time.perf_counter() - start)
    return (
        statistics.quantiles(times[TIMED_RUNS // 4 :])[0] * 1e3
    )  # the lower quartile: others only ever add time
