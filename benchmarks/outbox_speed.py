"""``python -m benchmarks.outbox_speed``: how many records an outbox acknowledges, and what 72 hours of telemetry take.

Threads append records and wait for each; that is what group commit is for. Then a box with 20 models under a load that
comes and goes tells its minutes for 72 hours, as fast as it can; the outbox is measured, and the batches as they go
over the link. Both on the disk of DIR: a memory file system would only show the processor.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest import mock

import msgspec
import zstandard

from appliance.domain.model import VersionState
from appliance.durable import RealFolder
from appliance.fleet.messages import TELEMETRY_BYTES_MAX, Batch
from appliance.fleet.records import encode
from appliance.outbox.outbox import Outbox, Policy
from appliance.outbox.reader import OutboxReader
from appliance.telemetry.figures import Figures
from appliance.telemetry.meter import Result, VersionMeter
from appliance.telemetry.snapshot import (
    EngineStatus,
    FrontEndFigures,
    HttpStatistics,
    Snapshot,
    VersionStatus,
)

LIMIT_BYTES = 1 << 30
RECORD = b"x" * 200
BATCH_BYTES = 256 << 10
MINUTE_NS = 60 * 10**9
LINK_BYTES_PER_S = 64_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Records acknowledged in a second, by callers of so many records each, and syncs that this took."""

    callers: int
    records_each: int
    records_per_s: int
    records_per_sync: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What the minutes of some hours take: in the outbox, and as batches over the link."""

    hours: int
    models: int
    records: int
    outbox_mb: float
    link_mb: float
    drained_s: float


def speed(place: Path, callers: int, each: int, seconds: float) -> Speed:
    """Append for ``seconds`` from so many threads."""
    syncs = 0
    sync = os.fsync

    def counted(descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        sync(descriptor)

    counts = [0] * callers
    with Outbox(RealFolder(place), LIMIT_BYTES, Policy.DROP_OLDEST) as outbox:
        started = time.monotonic()

        def produce(caller: int) -> None:
            payloads = [RECORD] * each
            while time.monotonic() - started < seconds:
                outbox.append(payloads)
                counts[caller] += each

        threads = [threading.Thread(target=produce, args=(caller,)) for caller in range(callers)]
        with mock.patch.object(os, "fsync", counted):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        took = time.monotonic() - started
    total = sum(counts)
    return Speed(
        callers=callers,
        records_each=each,
        records_per_s=int(total / took),
        records_per_sync=round(total / max(syncs, 1), 1),
    )


class Load:
    """A box whose models are asked by the hour of the day; each answer takes as long as its model does, with a tail."""

    def __init__(self, models: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.meters = [VersionMeter(f"model-number-{number}", 17) for number in range(models)]

    def minute(self, number: int) -> Snapshot:
        """One more minute has passed."""
        busy = 0.3 + 0.7 * (number // 60 % 24 in range(7, 20))
        for place, meter in enumerate(self.meters):
            for _ in range(int(40 * busy * self.random.random())):
                queue_ns = int(self.random.expovariate(1 / 300_000))
                run_ns = int((place + 1) * 400_000 * self.random.lognormvariate(0, 0.3))
                rows = self.random.randint(1, 8)
                meter.succeeded(rows, queue_ns, (20_000, run_ns, 20_000), queue_ns + run_ns + 60_000, number)
                meter.batch_finished(rows, 20_000, run_ns, 20_000)
            meter.ended_many(Result.EXPIRED, self.random.random() < 0.1)
        return _snapshot(self.meters, number)


def size(place: Path, hours: int, models: int, seed: int) -> Size:
    """Tell ``hours`` of minutes, then read them as an agent does."""
    load, figures, records = Load(models, seed), Figures(), 0
    folder = RealFolder(place)
    with Outbox(folder, LIMIT_BYTES, Policy.DROP_OLDEST) as outbox:
        for number in range(hours * 60):
            snapshot = load.minute(number)
            payloads = [encode(each) for each in figures.take(snapshot)]
            outbox.append(payloads)
            figures.settled(snapshot)
            records += len(payloads)
        taken = outbox.size_bytes
    sent = sum(_sent(OutboxReader(folder)))
    return Size(
        hours=hours,
        models=models,
        records=records,
        outbox_mb=round(taken / 1e6, 2),
        link_mb=round(sent / 1e6, 2),
        drained_s=round(sent / LINK_BYTES_PER_S, 1),
    )


def _sent(reader: OutboxReader) -> Iterator[int]:
    """Bytes of each batch as it goes over the link."""
    packer = zstandard.ZstdCompressor(level=9)
    while reading := reader.read(BATCH_BYTES, 65_536):
        batch = Batch(
            stream="serve", epoch=reading.epoch, first=reading.first, records=tuple(reading.payloads)
        )
        packed = packer.compress(msgspec.msgpack.encode(batch))
        assert len(packed) <= TELEMETRY_BYTES_MAX
        yield len(packed)
        reader.acknowledge(reading.epoch, reading.end)


def _snapshot(meters: list[VersionMeter], number: int) -> Snapshot:
    versions = tuple(
        VersionStatus(
            name=meter.name,
            version=meter.version,
            state=VersionState.READY,
            reason="",
            queued=number % 3,
            running=0,
            workers=(),
            statistics=meter.frozen(),
        )
        for meter in meters
    )
    engine = EngineStatus(
        now_ns=(number + 1) * MINUTE_NS,
        started_ns=0,
        accepting=True,
        versions=versions,
        workers=(),
        queued_requests=3,
        queued_bytes=0,
        batch_keys=len(versions),
        running_requests=1,
        arena_used_bytes=1 << 20,
        arena_limit_bytes=1 << 28,
    )
    counts = {"connections_total": number, "calls_total": 100 * number, "bytes_in_flight": 1 << 16}
    http = HttpStatistics(
        answers=(), connections=3, refused_connections=0, in_flight=0, body_bytes=0, answer_bytes=0,
        refused_answers=0,
    )  # fmt: skip
    front_end = FrontEndFigures(kind="native", counts=counts, limits={})
    return Snapshot(engine=engine, front_end=front_end, http=http, wall_s=1.8e9 + 60 * number)


def main() -> int:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outbox_speed", description=__doc__)
    parser.add_argument("--dir", default=".", help="on the disk that is measured")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--hours", type=int, default=72)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    speeds = []
    for callers, each in ((1, 1), (1, 100), (16, 1), (128, 1), (16, 10), (64, 10), (16, 100)):
        with tempfile.TemporaryDirectory(dir=options.dir) as place:
            speeds.append(speed(Path(place), callers, each, options.seconds))
    with tempfile.TemporaryDirectory(dir=options.dir) as place:
        told = size(Path(place), options.hours, options.models, options.seed)
    if options.json:
        print(json.dumps({"speeds": [asdict(each) for each in speeds], "size": asdict(told)}, indent=2))
        return 0
    print(f"{'callers':>8}{'each':>6}{'records/s':>11}{'per sync':>10}")
    for row in speeds:
        print(f"{row.callers:8}{row.records_each:6}{row.records_per_s:11,}{row.records_per_sync:10.1f}")
    print(
        f"{told.hours} hours of {told.models} models: {told.records:,} records, {told.outbox_mb} MB in the outbox, "
        f"{told.link_mb} MB over the link, {told.drained_s} s of it at 64 kB/s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
