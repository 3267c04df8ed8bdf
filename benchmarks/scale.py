"""What more cores bring, or fewer: the front end's thread on one core, and two daemons on one port. No targets:
figures."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from benchmarks.clients import Offer
from benchmarks.loading import record_load
from benchmarks.models import model_file
from benchmarks.plan import READY_TIMEOUT_S, Bench, model_directory
from benchmarks.process import PROC, descendants
from benchmarks.results import Verdict
from benchmarks.samples import Samples
from benchmarks.servers import Running, Server, running, wait_http_ready

FRONT_END_THREAD = "front end"
CHANNELS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """One daemon as it is, one whose front end thread has a core and the rest the others, and two daemons on one
    port."""

    model: str
    subject: str
    shared: str
    concurrencies: tuple[int, ...]

    def run(self, bench: Bench) -> tuple[Samples, tuple[Verdict, ...]]:
        """Measure."""
        samples = Samples()
        bench.in_turns(
            (self.subject, self.shared), samples, lambda server, number: self._measure(bench, server, samples)
        )
        return samples, ()

    def _measure(self, bench: Bench, server: Server, samples: Samples) -> None:
        with model_directory((self.model,)) as (models, _):
            (self._one if server.name == self.subject else self._two)(bench, server, models, samples)

    def _one(self, bench: Bench, server: Server, models: Path, samples: Samples) -> None:
        with running(server, models) as instance:
            wait_http_ready(instance, READY_TIMEOUT_S)
            self._load(bench, instance, "one daemon", samples)
            if pin_front_end(instance):
                self._load(bench, instance, "front end on one core", samples)
            else:
                samples.note(
                    f"no thread of {server.name} is called {FRONT_END_THREAD!r}, or there is one core only"
                )

    def _two(self, bench: Bench, server: Server, models: Path, samples: Samples) -> None:
        with running(server, models) as first:
            wait_http_ready(first, READY_TIMEOUT_S)
            with running(server, models, grpc_port=first.ports.grpc) as second:
                wait_http_ready(second, READY_TIMEOUT_S)
                self._load(bench, first, "two daemons", samples, (second,))

    def _load(
        self,
        bench: Bench,
        instance: Running,
        setting: str,
        samples: Samples,
        beside: tuple[Running, ...] = (),
    ) -> None:
        payload = bench.writer.infer(self.model, model_file(self.model))
        for concurrency in self.concurrencies:
            channels = min(CHANNELS, concurrency)
            offer = Offer(concurrency=concurrency, seconds=bench.seconds, channels=channels)
            setting_here = f"{setting}, c={concurrency}"
            record_load(instance, setting_here, payload, offer, samples, native=True, beside=beside)


def pin_front_end(instance: Running) -> bool:
    """The front end's thread onto the first core, everything else of the server onto the others; False when it cannot
    be."""
    cores = sorted(os.sched_getaffinity(0))
    threads = {tid: name for pid in descendants(instance.process.pid) for tid, name in _threads(pid)}
    if FRONT_END_THREAD not in threads.values() or len(cores) == 1:
        return False
    for tid, name in threads.items():
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(tid, cores[:1] if name == FRONT_END_THREAD else cores[1:])
    return True


def _threads(pid: int) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for task in (PROC / str(pid) / "task").glob("*"):
        with contextlib.suppress(OSError):
            found.append((int(task.name), (task / "comm").read_text().strip()))
    return found
