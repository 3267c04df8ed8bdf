"""Counters and latency histograms of one model version: plain integers, cheap enough for every request.

Histograms have fixed bucket bounds in nanoseconds; a scrape turns them into Prometheus samples, so a request costs a
bisect and an increment per stage and nothing more. One owner: the engine's thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from appliance.domain.histogram import Histogram, HistogramValue


class Result(Enum):
    """How a request ended, for counters."""

    SUCCESS = "success"
    INVALID = "invalid"
    REFUSED = "refused"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"
    UNAVAILABLE = "unavailable"


class Stage(Enum):
    """Where the time went: waiting, making the batch, running it, splitting it, and arrival to answer."""

    QUEUE = "queue"
    GATHER = "gather"
    RUN = "run"
    SCATTER = "scatter"
    TOTAL = "total"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatistics:
    """Batches of one size in rows: how many, and the nanoseconds spent in each stage."""

    rows: int
    count: int
    gather_ns: int
    run_ns: int
    scatter_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStatistics:
    """All figures of one model version. ``inferences`` counts rows, ``executions`` batches of which something was
    answered, ``executed_rows`` the rows of these; ``last_inference_ms`` is milliseconds since the epoch (0: none yet).
    ``retries`` counts requests run again after a worker died or another version failed, ``leased`` the answered ones
    that a front end served by itself."""

    name: str
    version: int
    last_inference_ms: int
    inferences: int
    executions: int
    executed_rows: int
    retries: int
    leased: int
    results: Mapping[Result, int]
    failed_ns: int
    stages: Mapping[Stage, HistogramValue]
    batches: tuple[BatchStatistics, ...]


SIZES_MAX = 256
"""Sizes of batches that are told apart."""


class VersionMeter:
    """The figures of one model version while it serves."""

    __slots__ = (
        "_frozen", "_successes", "_observers", "_mergers",
        "batches",
        "executed_rows",
        "failed_ns",
        "leased",
        "inferences",
        "last_inference_ms",
        "name",
        "results",
        "retries",
        "stages",
        "version",
    )  # fmt: skip

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self.version = version
        self.last_inference_ms = 0
        self.inferences = 0
        self.executed_rows = 0
        self.retries = self.leased = 0
        self.results = dict.fromkeys(Result, 0)
        self.failed_ns = 0
        self.stages = {stage: Histogram() for stage in Stage}
        # An enum's hash is computed in Python: what every request touches is not looked up by one.
        self._successes = 0
        self._observers = tuple(self.stages[stage].observe for stage in Stage)
        self._mergers = tuple(self.stages[stage].merge for stage in Stage)
        self.batches: dict[int, list[int]] = {}
        self._frozen: VersionStatistics | None = None

    @property
    def answered(self) -> int:
        """Requests that were answered."""
        return self._successes

    def retried(self) -> None:
        """Count one request that runs again after its worker died or another version failed."""
        self.retries += 1
        self._frozen = None

    def batch_finished(self, rows: int, gather_ns: int, run_ns: int, scatter_ns: int) -> None:
        """Count one batch of ``rows`` rows of which something was answered; as in Triton, a run that failed is none."""
        self._frozen = None
        self.executed_rows += rows
        entry = self.batches.get(rows) or self._batches_of(rows)
        entry[0] += 1
        entry[1] += gather_ns
        entry[2] += run_ns
        entry[3] += scatter_ns

    def succeeded(
        self, rows: int, queue_ns: int, stages_ns: tuple[int, int, int], total_ns: int, now_ms: int
    ) -> None:
        """Count one answered request; ``stages_ns`` are its batch's gather, run and scatter times."""
        self._frozen = None
        self.inferences += rows
        self._successes += 1
        self.last_inference_ms = now_ms
        queue, gather, run, scatter, total = self._observers
        queue(queue_ns)
        gather(stages_ns[0])
        run(stages_ns[1])
        scatter(stages_ns[2])
        total(total_ns)

    def merge(
        self,
        rows: int,
        batches: Sequence[tuple[int, int, int, int, int]],
        stages: Sequence[tuple[Sequence[int], int]],
        now_ms: int,
    ) -> None:
        """Count answered requests of ``rows`` rows together that were served elsewhere: ``batches`` are (rows, count,
        gather, run, scatter) with their nanoseconds summed up; ``stages``, in the order of Stage, counts per bucket
        (not necessarily all) and the sum in nanoseconds."""
        self._frozen = None
        self.inferences += rows
        for size, count, gather_ns, run_ns, scatter_ns in batches:
            self.executed_rows += size * count
            entry = self.batches.get(size) or self._batches_of(size)
            entry[0] += count
            entry[1] += gather_ns
            entry[2] += run_ns
            entry[3] += scatter_ns
        for merge, (counts, sum_ns) in zip(self._mergers, stages, strict=True):
            merge(counts, sum_ns)
        answered = sum(stages[-1][0])
        if answered:
            self._successes += answered
            self.leased += answered
            self.last_inference_ms = now_ms

    def ended_many(self, result: Result, count: int) -> None:
        """Count requests that ended at once and without tensors."""
        if count:
            self._frozen = None
            self.results[result] += count

    def ended(self, result: Result, total_ns: int) -> None:
        """Count one request that was not answered with tensors."""
        self._frozen = None
        self.results[result] += 1
        self.failed_ns += total_ns

    def absorb(self, other: VersionMeter) -> None:
        """Count all that ``other`` counted, which was of the same version."""
        self._frozen = None
        self.inferences += other.inferences
        self.executed_rows += other.executed_rows
        self.retries += other.retries
        self.leased += other.leased
        self._successes += other._successes
        self.failed_ns += other.failed_ns
        self.last_inference_ms = max(self.last_inference_ms, other.last_inference_ms)
        for result, count in other.results.items():
            self.results[result] += count
        for stage, histogram in other.stages.items():
            self.stages[stage].merge(histogram.counts, histogram.sum_ns)
        for rows, more in other.batches.items():
            mine = self._batches_of(rows)
            for place, amount in enumerate(more):
                mine[place] += amount

    def _batches_of(self, rows: int) -> list[int]:
        """What is counted for batches of ``rows``: each size by itself, but where clients have brought many sizes,
        further ones up to the next power of two."""
        if rows not in self.batches and len(self.batches) >= SIZES_MAX:
            rows = 1 << (rows - 1).bit_length()
        return self.batches.setdefault(rows, [0, 0, 0, 0])

    def frozen(self) -> VersionStatistics:
        """A value to show; made anew only when something was counted, so that a thousand idle models cost nothing."""
        if self._frozen is None:
            self._frozen = self._freeze()
        return self._frozen

    def _freeze(self) -> VersionStatistics:
        return VersionStatistics(
            name=self.name,
            version=self.version,
            last_inference_ms=self.last_inference_ms,
            inferences=self.inferences,
            executions=sum(entry[0] for entry in self.batches.values()),
            executed_rows=self.executed_rows,
            retries=self.retries,
            leased=self.leased,
            results={**self.results, Result.SUCCESS: self._successes},
            failed_ns=self.failed_ns,
            stages={stage: histogram.frozen() for stage, histogram in self.stages.items()},
            batches=tuple(
                BatchStatistics(
                    rows=rows, count=entry[0], gather_ns=entry[1], run_ns=entry[2], scatter_ns=entry[3]
                )
                for rows, entry in sorted(self.batches.items())
            ),
        )
