"""A small model that is asked at a steady rate, alone and beside other models of the same box that are asked for all
they can do: what the neighbours cost its requests."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.clients import LoadFailed, LoadReport, Offer, run_load
from benchmarks.loading import record_load
from benchmarks.models import model_file
from benchmarks.plan import Bench, model_directory, ready_server
from benchmarks.results import Bound, Verdict
from benchmarks.samples import Samples
from benchmarks.servers import Running, Server

ALONE = "alone"
LEAD_S = 0.5
"""For how long a neighbour is asked before the small model is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """An open loop on ``model`` and a closed one of ``concurrency`` on each of ``others`` in turn, on ``subject`` and
    on ``peer``. Each of ``p50`` and ``p99`` beside a neighbour is at most ``ratio`` of the peer's."""

    model: str
    others: tuple[str, ...]
    rate: float
    concurrency: int
    subject: str
    peer: str
    ratio: float

    def run(self, bench: Bench) -> tuple[Samples, tuple[Verdict, ...]]:
        """Measure and judge."""
        samples = Samples()
        bench.in_turns(
            (self.subject, self.peer),
            samples,
            lambda server, number: self._measure(bench, server, number, samples),
        )
        return samples, tuple(
            self._verdict(samples, other, metric) for other in self.others for metric in ("p50", "p99")
        )

    def _measure(self, bench: Bench, server: Server, number: int, samples: Samples) -> None:
        with (
            model_directory((self.model, *self.others)) as (models, names),
            ready_server(bench, server, models, names) as instance,
        ):
            payload = bench.writer.infer(self.model, model_file(self.model))
            offer = Offer(rate=self.rate, seconds=bench.seconds, seed=number + 1, channels=2, remote=True)
            record_load(instance, ALONE, payload, offer, samples, native=True)
            for other in self.others:
                with _asked(bench, instance, other, self.concurrency, offer) as said:
                    record_load(instance, _beside(other), payload, offer, samples, native=True)
                samples.add(server.name, _beside(other), "neighbour", "req/s", said[0].throughput)

    def _verdict(self, samples: Samples, other: str, metric: str) -> Verdict:
        ours = samples.median(self.subject, _beside(other), metric)
        theirs = samples.median(self.peer, _beside(other), metric)
        return Verdict(
            target=f"{metric} beside {other}, {self.subject} over {self.peer}",
            bound=Bound.AT_MOST,
            limit=self.ratio,
            unit="",
            value=ours / theirs if ours is not None and theirs else None,
        )


def _beside(other: str) -> str:
    return f"beside {other}"


@contextmanager
def _asked(
    bench: Bench, instance: Running, model: str, concurrency: int, beside: Offer
) -> Iterator[list[LoadReport]]:
    """Ask the model in a closed loop for longer than the block's load lasts; what came of it is in the list afterwards.
    Raises LoadFailed where requests of it failed."""
    payload = bench.writer.infer(model, model_file(model))
    offer = Offer(concurrency=concurrency, seconds=beside.seconds + beside.warm_up_s, warm_up_s=LEAD_S)
    said: list[LoadReport] = []
    thread = threading.Thread(
        target=lambda: said.append(run_load(instance.target, payload, offer, native=True))
    )
    thread.start()
    threading.Event().wait(LEAD_S)
    try:
        yield said
    finally:
        thread.join()
    if not said or said[0].failed:
        raise LoadFailed(f"the load on {model} failed: {dict(said[0].messages) if said else 'no report'}")
