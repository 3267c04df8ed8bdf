"""How fast weights come into memory: forks, page-ins of evicted weights, cold starts, beside raw reads of the same
bytes.

Rounds are interleaved: each takes one sample of every way, on the same file, from a cold page cache where it says so.
"""

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from appliance.domain.load_wish import LoadWish
from appliance.domain.model import ModelVersion
from appliance.workers.forms import FORM_FILE, WEIGHTS_FILE, encode_document, read_document
from benchmarks.models import ModelsUnavailable
from benchmarks.plan import Bench
from benchmarks.raw_reads import DIRECT, MADV_POPULATE_READ, RAW_READS, make_cold, raw_read_ms
from benchmarks.results import Bound, Verdict
from benchmarks.samples import Samples
from benchmarks.transformers import embedding, transformer
from benchmarks.worker_pool import TimedPool, timed_pool

ROUNDS_MIN = 7
EVICTED, RAW, COLD = "evicted", "raw", "cold start"
PACKED = LoadWish()
QUICK = LoadWish(quick=True)
PAGE_BYTES = 4096


def rounds_of(bench: Bench) -> int:
    """Enough for a median, whatever the other cases do with."""
    return 1 if bench.smoke else max(bench.rounds, ROUNDS_MIN)


def note_class(samples: Samples) -> None:
    """Say so when this runs before all others, as on a machine that is shared."""
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        samples.note("measured in a real-time class, because others used the machine")


def best_raw(samples: Samples, setting: str) -> float | None:
    """The median of the fastest way of reading."""
    medians = [samples.median(f"{RAW} {way}", setting, "time") for way in RAW_READS]
    return min((median for median in medians if median is not None), default=None)


def ratio(one: float | None, other: float | None) -> float | None:
    """How many times ``other`` fits into ``one``."""
    return one / other if one is not None and other else None


def at_most(target: str, limit: float, unit: str, value: float | None) -> Verdict:
    return Verdict(target=target, bound=Bound.AT_MOST, limit=limit, unit=unit, value=value)


def at_least(target: str, limit: float, value: float | None) -> Verdict:
    return Verdict(target=target, bound=Bound.AT_LEAST, limit=limit, unit="x", value=value)


def read_raw(path: str, nbytes: int, setting: str, samples: Samples) -> None:
    """One cold read in every way."""
    for way in RAW_READS:
        samples.add(f"{RAW} {way}", setting, "time", "ms", raw_read_ms(way, path, nbytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Forks:
    """From nothing to a worker, and to the first answer of a small model whose file is in the page cache."""

    megabytes: int
    fork_ms: float
    answer_ms: float

    def run(self, bench: Bench) -> tuple[Samples, tuple[Verdict, ...]]:
        """Measure and judge."""
        samples = Samples()
        note_class(samples)
        version = transformer(self.megabytes)
        setting = f"{self.megabytes} MB, warm"
        with timed_pool() as pool:
            for _ in range(3 * rounds_of(bench)):
                worker, fork_ms = pool.start()
                _, load_ms = pool.load(worker, version, QUICK)
                answer_ms = pool.run(worker, version)
                pool.arrived()
                pool.stop(worker)
                samples.add(COLD, setting, "fork", "ms", fork_ms)
                samples.add(COLD, setting, "session", "ms", load_ms)
                samples.add(COLD, setting, "fork to first answer", "ms", fork_ms + load_ms + answer_ms)
        return samples, (
            at_most("fork of a worker", self.fork_ms, "ms", samples.median(COLD, setting, "fork")),
            at_most(
                f"fork to the first answer of a model of {self.megabytes} MB",
                self.answer_ms,
                "ms",
                samples.median(COLD, setting, "fork to first answer"),
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PageIns:
    """A packed session whose weights leave and come back, verified as always and of a form that has no digests: a
    transformer of so many ``megabytes``, or the embedding model."""

    megabytes: int
    embedding: bool = False

    def run(self, bench: Bench) -> tuple[Samples, tuple[Verdict, ...]]:
        """Measure and judge."""
        samples = Samples()
        note_class(samples)
        try:
            version = embedding() if self.embedding else transformer(self.megabytes)
        except ModelsUnavailable as problem:
            samples.note(f"left out: {problem}")
            return samples, ()
        with timed_pool() as pool:
            form = Path(version.forms) / pool.build_form(version).name
            worker, nbytes = self._load(pool, version, samples)
            with _without_digests(form) as forms, samples.watching_others():
                plain, _ = self._load(pool, replace(version, forms=forms), samples)
                for _ in range(rounds_of(bench)):
                    self._round(pool, worker, plain, version, str(form / WEIGHTS_FILE), nbytes, samples)
                pool.stop(plain)
            pool.stop(worker)
        return samples, self._verdicts(samples, nbytes)

    def _load(self, pool: TimedPool, version: ModelVersion, samples: Samples) -> tuple[int, int]:
        """A worker with the session, whose weights have left, and how many bytes of them leave."""
        worker, _ = pool.start()
        before = pool.private_mib(worker)
        loaded, _ = pool.load(worker, version, PACKED)
        if not loaded.packed:
            samples.errors.append("the session is not that of the packed form")
        pool.run(worker, version)
        pool.evict_weights(worker)
        samples.add(EVICTED, self._setting, "memory", "MiB", pool.private_mib(worker) - before)
        return worker, loaded.evictable_bytes // PAGE_BYTES * PAGE_BYTES

    def _round(
        self,
        pool: TimedPool,
        worker: int,
        plain: int,
        version: ModelVersion,
        path: str,
        nbytes: int,
        samples: Samples,
    ) -> None:
        read_raw(path, nbytes, self._setting, samples)
        for each, metric in ((plain, "time"), (worker, "time, verified")):
            make_cold(path)
            samples.add(EVICTED, self._setting, metric, "ms", pool.page_in(each))
            samples.add(EVICTED, self._setting, "run", "ms", pool.run(each, version))
            with Path(path).open("rb") as keeper, contextlib.closing(_Held(keeper.fileno(), nbytes)):
                samples.add(EVICTED, self._setting, "evict", "ms", pool.evict_weights(each))
                if each == plain:
                    samples.add(EVICTED, self._setting, "warm page-in", "ms", pool.page_in(plain))
                    pool.evict_weights(plain)

    @property
    def _setting(self) -> str:
        return f"{self.megabytes} MB, packed"

    def _verdicts(self, samples: Samples, nbytes: int) -> tuple[Verdict, ...]:
        size = f"{self.megabytes} MB"
        fill = samples.median(EVICTED, self._setting, "time")
        verified = samples.median(EVICTED, self._setting, "time, verified")
        warm = samples.median(EVICTED, self._setting, "warm page-in")
        direct = samples.median(f"{RAW} {DIRECT}", self._setting, "time")
        memory = samples.median(EVICTED, self._setting, "memory")
        return (
            at_least(
                f"speed of a cold page-in over the best raw read, {size}",
                0.9,
                ratio(best_raw(samples, self._setting), fill),
            ),
            at_least(f"speed of a cold page-in over O_DIRECT, {size}", 1.0, ratio(direct, fill)),
            at_most(
                f"a warm refill of 100 MB, {size}",
                5.0,
                "ms",
                None if warm is None else warm / (nbytes / 1e8),
            ),
            at_most(f"verified page-in over plain page-in, {size}", 1.15, "x", ratio(verified, fill)),
            at_most(f"private memory of a session without weights, {size}", 3.0, "MiB", memory),
        )


@contextlib.contextmanager
def _without_digests(form: Path) -> Iterator[str]:
    """A directory of forms that has this one, with the same files, but without digests of the pieces of its weights."""
    with tempfile.TemporaryDirectory(dir=form.parents[1]) as forms:
        (twin := Path(forms) / form.name).mkdir()
        for file in form.iterdir():
            (twin / file.name).hardlink_to(file)
        document, _ = read_document(str(form / FORM_FILE))
        (twin / FORM_FILE).unlink()
        (twin / FORM_FILE).write_bytes(encode_document(replace(document, pieces=())))
        yield forms


class _Held:
    """Keeps pages of a file in the page cache, mapped, while it is open."""

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self._memory = mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        self._memory.madvise(MADV_POPULATE_READ)

    def close(self) -> None:
        self._memory.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStarts:
    """A forked worker makes a quick session from a cold file and answers once."""

    megabytes: int
    limit: float

    def run(self, bench: Bench) -> tuple[Samples, tuple[Verdict, ...]]:
        """Measure and judge."""
        samples = Samples()
        note_class(samples)
        version = transformer(self.megabytes)
        if version.weights is None:
            return samples, ()
        path, setting = version.weights.path, f"{self.megabytes} MB, quick"
        without_digests = replace(version, weights=replace(version.weights, pieces=()))
        with timed_pool() as pool, samples.watching_others():
            for _ in range(rounds_of(bench)):
                read_raw(path, version.weights.size, setting, samples)
                self._start(pool, without_digests, path, setting, "", samples)
                self._start(pool, version, path, setting, ", verified", samples)
        raw = best_raw(samples, setting)
        first = samples.median(COLD, setting, "create and first answer")
        run = samples.median(COLD, setting, "run")
        less = None if first is None or run is None else first - run
        size = f"{self.megabytes} MB"
        return samples, (
            at_most(
                f"create and first answer over the best raw read, {size}", self.limit, "x", ratio(first, raw)
            ),
            at_most(f"the same without the run itself, {size}", self.limit, "x", ratio(less, raw)),
        )

    def _start(
        self,
        pool: TimedPool,
        version: ModelVersion,
        path: str,
        setting: str,
        metric: str,
        samples: Samples,
    ) -> None:
        worker, _ = pool.start()
        make_cold(path)
        _, load_ms = pool.load(worker, version, QUICK)
        answer_ms = pool.run(worker, version)
        samples.add(COLD, setting, f"create{metric}", "ms", load_ms)
        pool.arrived()
        samples.add(COLD, setting, f"create and first answer{metric}", "ms", load_ms + answer_ms)
        samples.add(COLD, setting, "run", "ms", min(pool.run(worker, version) for _ in range(3)))
        pool.stop(worker)
