"""``python -m benchmarks.scheduler_speed``: how fast the scheduler steps, alone and on one core.

A virtual clock and scripted workers keep a given number of requests queued over some models. Each turn the
lane that is free next gives its batch back, as many requests as left arrive, and Settle ends the turn; now
and then a client goes away. Only the steps are timed. Two mixes: every model with a lane of its own, and ten
models sharing each group of two lanes. Deadlines are drawn at random, so that half of the arrivals overtake
others and admission has to look.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import json
import platform
import random
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from appliance.core.scheduling import events as on
from appliance.core.scheduling.actions import Action, Dispatch, Dropped, Expired, Refused
from appliance.core.scheduling.planning import Planning
from appliance.core.scheduling.scheduler import Scheduler
from appliance.domain.inference import NO_DEADLINE
from appliance.domain.model import Batching

MILLISECOND = 1_000_000
MAX_BATCHES = (1, 4, 8, 16)
MIXES = ("own", "shared")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """One row of the result. Times are of single steps."""

    mix: str
    queued: int
    events: int
    arrivals: int
    refused: int
    batches: int
    events_per_second: int
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float


class Load:
    """Holds ``queued`` requests in a scheduler and times its steps."""

    def __init__(self, mix: str, queued: int, models: int, seed: int) -> None:
        self.mix = mix
        self.queued = queued
        self.models = models
        self.random = random.Random(seed)
        bounds = 4 * queued + 1000
        self.scheduler = Scheduler(
            Planning(max_queued_requests=bounds, max_queued_bytes=1 << 50, max_queued_per_model=bounds)
        )
        self.now_ns = 1 << 40
        self.durations: list[int] = []
        self.arrivals = 0
        self.refused = 0
        self.batches = 0
        self._present = 0
        self._request = 0
        self._ends: list[tuple[int, int]] = []
        self._lane_ends: dict[int, int] = {}
        self._horizon_ns = 0

    def open(self) -> None:
        """Open groups, lanes, models and batch keys, and fill the queue."""
        share, lanes = (10, 2) if self.mix == "shared" else (1, 1)
        lane = 0
        for model in range(self.models):
            group = model // share
            if model % share == 0:
                self._step(on.GroupOpened(group))
                for _ in range(lanes):
                    self._step(on.LaneOpened(lane, group))
                    self._lane_ends[lane] = 0
                    lane += 1
            max_batch = MAX_BATCHES[model % len(MAX_BATCHES)]
            self._step(on.ModelOpened(model, group, max_batch, Batching()))
            seeds = ((1, self._service_ns(model, 1)), (16, self._service_ns(model, 16)))
            self._step(on.BatchKeyOpened(model, model, seeds))
        backlog_ns = self.queued * self._service_ns(0, 1) // lane
        self._horizon_ns = 200 * MILLISECOND + 4 * backlog_ns
        self._refill()
        self._step(on.Settle())

    def run(self, events: int) -> Speed:
        """Time ``events`` steps."""
        self.durations.clear()
        self.arrivals = self.refused = self.batches = 0
        while len(self.durations) < events:
            self._turn()
        ordered = sorted(self.durations)
        return Speed(
            mix=self.mix,
            queued=self._present,
            events=len(ordered),
            arrivals=self.arrivals,
            refused=self.refused,
            batches=self.batches,
            events_per_second=int(len(ordered) / (sum(ordered) / 1e9)),
            p50_us=ordered[len(ordered) // 2] / 1000,
            p99_us=ordered[len(ordered) * 99 // 100] / 1000,
            p999_us=ordered[len(ordered) * 999 // 1000] / 1000,
            max_us=ordered[-1] / 1000,
        )

    def _turn(self) -> None:
        self.now_ns, batch = heapq.heappop(self._ends)
        self._step(on.BatchFinished(batch, True))
        if self.random.random() < 0.1:
            self._step(on.CancelRequested(self._request - self.random.randrange(self.queued)))
        self._refill()
        self._step(on.Settle())

    def _refill(self) -> None:
        rng = self.random
        for _ in range(4 * self.queued):
            if self._present >= self.queued:
                return
            self._request += 1
            self.arrivals += 1
            far = rng.randrange(self._horizon_ns // 4, self._horizon_ns)
            deadline_ns = self.now_ns + far if rng.random() < 0.95 else NO_DEADLINE
            batch_key = rng.randrange(self.models)
            self._present += 1
            self._step(on.Arrived(self._request, batch_key, 1, 4096, 0, deadline_ns, 0))

    def _step(self, event: on.Event) -> None:
        started = time.perf_counter_ns()
        actions = self.scheduler.step(event, self.now_ns)
        self.durations.append(time.perf_counter_ns() - started)
        for action in actions:
            self._perform(action)

    def _perform(self, action: Action) -> None:
        match action:
            case Dispatch():
                self.batches += 1
                self._present -= len(action.requests)
                start_ns = max(self._lane_ends[action.lane], self.now_ns)
                noise = self.random.uniform(0.9, 1.1)
                end_ns = start_ns + int(self._service_ns(action.batch_key, len(action.requests)) * noise)
                self._lane_ends[action.lane] = end_ns
                heapq.heappush(self._ends, (end_ns, action.batch))
            case Refused():
                self.refused += 1
                self._present -= 1
            case Dropped() | Expired():
                self._present -= 1
            case _:
                pass

    def _service_ns(self, model: int, rows: int) -> int:
        return (500 + 50 * (model % 20) + 100 * rows) * 1000


def measure(mix: str, queued: int, models: int, events: int, seed: int) -> Speed:
    """Warm up, then time ``events`` steps, with the garbage collector as the daemon has it."""
    load = Load(mix, queued, models, seed)
    load.open()
    load.run(events // 5)
    gc.collect()
    gc.freeze()
    speed = load.run(events)
    gc.unfreeze()
    return speed


def counting_ns(iterations: int = 1_000_000) -> float:
    """What one turn of a counting loop takes: how fast, and how quiet, the core is (about 30 ns when it
    is)."""
    started = time.perf_counter_ns()
    count = 0
    while count < iterations:
        count += 1
    return (time.perf_counter_ns() - started) / iterations


def measure_all(options: argparse.Namespace) -> Iterable[Speed]:
    """Every row."""
    for mix in options.mix:
        for queued in options.queued:
            yield measure(mix, queued, options.models, options.events, options.seed)


def main() -> int:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduler_speed", description=__doc__)
    parser.add_argument("--mix", choices=MIXES, nargs="+", default=MIXES)
    parser.add_argument("--queued", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = list(measure_all(options))
    if options.json:
        about = {"python": platform.python_version(), "counting_ns": round(counting_ns(), 1)}
        print(json.dumps(about | {"speeds": [asdict(row) for row in rows]}, indent=2))
        return 0
    print(
        f"{'mix':7}{'queued':>9}{'events/s':>11}{'p50 us':>9}{'p99 us':>9}{'p99.9 us':>10}{'max us':>9}"
        f"{'refused':>9}"
    )
    for row in rows:
        print(
            f"{row.mix:7}{row.queued:9,}{row.events_per_second:11,}{row.p50_us:9.1f}{row.p99_us:9.1f}"
            f"{row.p999_us:10.1f}{row.max_us:9.1f}{row.refused / max(row.arrivals, 1):9.1%}"
        )
    print(f"one turn of a counting loop on this core, now: {counting_ns():.0f} ns")
    return 0


if __name__ == "__main__":
    sys.exit(main())
