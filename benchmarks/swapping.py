"""Versions that change while the server serves: how long a swap takes, whom it disturbs, what it leaves behind.

A swap is a new version directory in the place of the old one and one RepositoryModelLoad, for every server alike. It
ends with the first answer of the new version. That this is ready the call's own answer says or, where it comes later, a
look every LOOK_S: who asks a thousand times a second is a load of his own on two cores. The versions have equal shapes
and other weights.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import grpc

from benchmarks.cache import ROOT, cache_directory
from benchmarks.clients import LoadReport, Offer, no_real_time, run_load
from benchmarks.load import INFER
from benchmarks.models import lay_out, model_file
from benchmarks.payload import RequestWriter
from benchmarks.peers import triton
from benchmarks.peers.setup import installed, missing
from benchmarks.plan import READY_TIMEOUT_S, Bench, collecting_failures
from benchmarks.process import memory
from benchmarks.results import Verdict
from benchmarks.samples import Samples
from benchmarks.servers import (
    MODEL_READY,
    READY_ANSWER,
    SERVERS,
    TRITON_CONTROLLED,
    Running,
    ServerFailed,
    running,
    wait_models_ready,
)
from benchmarks.sizes import MIB, at_most
from models.generators.transformer import SIZES, write_transformer

LOAD = "/inference.GRPCInferenceService/RepositoryModelLoad"
SWAPPED, NEIGHBOUR = "swapped", "mlp"
NATIVE = "native"
"""The generator, where it is installed."""
MODEL = "model.onnx"
PATIENCE_S = 120.0
SETTLED_MIB = 0.25
LOOK_S = 0.01
"""Between two looks whether a version is ready, should the call that loads it not say so first."""
ALONE, MEANWHILE = "without swaps", "during swaps"
LOOPS, LOADS = "beside a loop instead of swaps", "beside bare loads instead of swaps"
LOOP = """
import os, sys, time
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
busy_s, pause_s = map(float, sys.argv[1:])
while True:
    end = time.monotonic() + busy_s
    while time.monotonic() < end:
        pass
    time.sleep(pause_s)
"""
"""Takes processor time as long and as often as swaps do, in their scheduling class, and does nothing else: no memory,
no file, no call of the kernel. What this costs the neighbour costs every load, however it is made."""


class SwapFailed(ServerFailed):
    """A server did not take a new version."""


@dataclass(slots=True, kw_only=True)
class Repository:
    """The directory that a server reads: the neighbour, and the swapped model with one version at a time; with 0
    megabytes that is a copy of the neighbour. `triton`: in its form, for its Python backend."""

    root: Path
    megabytes: int
    triton: bool
    version: int = 0

    def __post_init__(self) -> None:
        (self.root / SWAPPED).mkdir()
        self.advance()
        if self.triton:
            with TemporaryDirectory() as plain:
                lay_out(Path(plain), (NEIGHBOUR,))
                triton.write_repository(Path(plain), self.root)
            config = triton.model_config(SWAPPED, self.graph)
        else:
            lay_out(self.root, (NEIGHBOUR,))
            config = f'backend: "onnxruntime" default_model_filename: "{MODEL}" max_batch_size: 8'
        (self.root / SWAPPED / "config.pbtxt").write_text(config)

    @property
    def graph(self) -> Path:
        """The graph of the version that is there."""
        return self.root / SWAPPED / str(self.version) / MODEL

    def advance(self) -> None:
        """The next version takes the place of the present one; files are links to what the cache holds."""
        source, before = self._source(self.version % 2), self.version
        self.version += 1
        complete = self.root / SWAPPED / f"_{self.version}"
        complete.mkdir()
        for file in source.iterdir():
            os.link(file, complete / (MODEL if file.suffix == ".onnx" else file.name))
        if self.triton:
            shutil.copyfile(triton.BACKEND_MODEL, complete / "model.py")
        complete.rename(self.root / SWAPPED / str(self.version))
        if before:
            shutil.rmtree(self.root / SWAPPED / str(before))

    def _source(self, which: int) -> Path:
        return transformer_files(self.megabytes, which) if self.megabytes else model_file(NEIGHBOUR).parent


@dataclass(slots=True, kw_only=True)
class Swapper:
    """Swaps on one server, one after another, each timed in seconds from the call to the first answer."""

    instance: Running
    there: Repository
    payload: bytes
    times: list[float] = field(default_factory=list)

    def swap(self) -> float:
        """One swap."""
        self.there.advance()
        begin = time.monotonic()
        with self.instance.control() as control, self.instance.channel() as channel:
            name = SWAPPED.encode()
            load = control.unary_unary(LOAD, None, None).future(
                b"\x12" + bytes([len(name)]) + name, timeout=PATIENCE_S, wait_for_ready=True
            )
            self._wait_ready(channel, load)
            channel.unary_unary(INFER, None, None)(self.payload, timeout=PATIENCE_S)
            seconds = time.monotonic() - begin
            load.result()
        self.times.append(seconds)
        return seconds

    def _wait_ready(self, channel: grpc.Channel, load: Any) -> None:
        ready = channel.unary_unary(MODEL_READY, None, None)
        name, version = SWAPPED.encode(), str(self.there.version).encode()
        question = b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(version)]) + version
        end = time.monotonic() + PATIENCE_S
        while ready(question, timeout=PATIENCE_S, wait_for_ready=True) != READY_ANSWER:
            if time.monotonic() > end:
                raise SwapFailed(f"{self.instance.server.name}: version {version!r} never became ready")
            if load.done():
                time.sleep(LOOK_S)
            with contextlib.suppress(grpc.FutureTimeoutError):
                if load.exception(LOOK_S) is not None:
                    raise SwapFailed(f"{self.instance.server.name}: {load.exception()}")

    def swap_until(self, stop: threading.Event, pause_s: float, failed: list[BaseException]) -> None:
        """Swap again and again, with a pause after each."""
        try:
            while not stop.is_set():
                self.swap()
                stop.wait(pause_s)
        except Exception as problem:  # noqa: BLE001  whatever it is, the case has to tell it
            failed.append(problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapUnderLoad:
    """Swaps beside an open loop on another model, and a slower one on the swapped model itself, by generators that
    stand for clients on other machines; beside the subject also two controls in the place of swaps: a mere loop, and
    loads of the same model by ONNX Runtime alone."""

    megabytes: int
    subject: str
    peers: tuple[str, ...]
    rate: float
    own_rate: float
    least_seconds: float
    pause_s: float
    p99_ratio: float
    against: str = ""

    def run(self, bench: Bench) -> tuple[Samples, tuple[Verdict, ...]]:
        """Measure and judge."""
        samples = Samples()
        for reason in (missing(NATIVE), no_real_time()):
            if reason:
                samples.note(f"the generator is a load on the machine that clients are not: {reason}")
        for number in range(bench.rounds):
            for server in bench.available((self.subject, *self.peers), samples):
                bench.say(f"round {number + 1} of {bench.rounds}: {server.name}")
                with (
                    collecting_failures(server.name, samples),
                    ready_to_swap(server.name, self.megabytes) as (instance, there),
                ):
                    self._measure(bench, instance, there, number, samples)
        return samples, self._verdicts(samples)

    def _measure(
        self, bench: Bench, instance: Running, there: Repository, number: int, samples: Samples
    ) -> None:
        own = bench.writer.infer(SWAPPED, there.graph)
        swapper = Swapper(instance=instance, there=there, payload=own)
        swapper.swap()  # the first one finds nothing in any cache
        swapper.times.clear()
        self._loads(bench, instance, own, number, ALONE, samples)
        stop, failed = threading.Event(), list[BaseException]()
        swapping = threading.Thread(target=swapper.swap_until, args=(stop, self.pause_s, failed))
        swapping.start()
        try:
            self._loads(bench, instance, own, number, MEANWHILE, samples)
        finally:
            stop.set()
            swapping.join()
        samples.errors.extend(f"{instance.server.name}: {problem}" for problem in failed)
        name = instance.server.name
        for seconds in swapper.times:
            samples.add(name, MEANWHILE, "swap", "ms", seconds * 1e3)
        samples.add(name, MEANWHILE, "swaps", "", len(swapper.times))
        if name == self.subject and swapper.times:
            loop = ("-c", LOOP, str(median(swapper.times)), str(self.pause_s))
            loads = ("-m", "benchmarks.bare_loads", str(there.graph), str(self.pause_s))
            for setting, control in ((LOOPS, loop), (LOADS, loads)):
                with _beside(control):
                    self._loads(bench, instance, own, number, setting, samples)

    def _loads(
        self, bench: Bench, instance: Running, own: bytes, number: int, setting: str, samples: Samples
    ) -> None:
        seconds = bench.at_length(max(bench.seconds, self.least_seconds))
        reports: dict[str, LoadReport] = {}

        def load(what: str, payload: bytes, rate: float) -> None:
            offer = Offer(rate=rate, seconds=seconds, seed=number + 1, remote=True)
            reports[what] = run_load(instance.target, payload, offer, native=installed(NATIVE))

        neighbour = bench.writer.infer(NEIGHBOUR, model_file(NEIGHBOUR))
        with samples.watching_others(instance.process.pid), ThreadPoolExecutor(2) as both:
            loads = [
                both.submit(load, "own", own, self.own_rate),
                both.submit(load, "other", neighbour, self.rate),
            ]
        for each in loads:
            each.result()
        for what, report in reports.items():
            failed = sum(int(kind["count"]) for kind in report.failed.values()) + report.unanswered
            name, place = instance.server.name, f"{what} model {setting}"
            samples.add(name, place, "requests", "", report.calls)
            samples.add(name, place, "not answered", "", failed)
            samples.add(name, place, "p50", "us", report.ok["p50"])
            samples.add(name, place, "p99", "us", report.ok["p99"])
            samples.add(name, place, "send lag p99", "us", report.lag["p99"])
            if failed:
                samples.note(f"{name} {place}: {dict(report.messages)}")

    def _verdicts(self, samples: Samples) -> tuple[Verdict, ...]:
        verdicts = []
        for what in ("other", "own"):
            lost = samples.highest(self.subject, f"{what} model {MEANWHILE}", "not answered")
            verdicts.append(at_most(f"{what} model: failed or refused during swaps", 0, lost, ""))
            alone = samples.median(self.subject, f"{what} model {ALONE}", "p99")
            meanwhile = samples.median(self.subject, f"{what} model {MEANWHILE}", "p99")
            ratio = meanwhile / alone if meanwhile is not None and alone else None
            verdicts.append(
                at_most(f"{what} model: p99 during swaps over without", self.p99_ratio, ratio, "x")
            )
        if self.against:
            ours, theirs = (samples.median(each, MEANWHILE, "swap") for each in (self.subject, self.against))
            ratio = ours / theirs if ours is not None and theirs else None
            verdicts.append(at_most(f"time of a swap over that of {self.against}", 1.0, ratio, "x"))
        return tuple(verdicts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManySwaps:
    """Very many swaps on an otherwise idle server: what is left behind, and whether they become slower."""

    megabytes: int
    swaps: int
    subject: str
    peers: tuple[str, ...]
    daemon_mib: float
    slower: float

    def run(self, bench: Bench) -> tuple[Samples, tuple[Verdict, ...]]:
        """Measure and judge: one start of each server, whatever the rounds."""
        samples = Samples()
        for server in bench.available((self.subject, *self.peers), samples):
            with (
                collecting_failures(server.name, samples),
                ready_to_swap(server.name, self.megabytes) as (instance, there),
            ):
                self._measure(bench, instance, there, samples)
        return samples, self._verdicts(samples)

    def _measure(self, bench: Bench, instance: Running, there: Repository, samples: Samples) -> None:
        swaps = 20 if bench.smoke else self.swaps
        swapper = Swapper(instance=instance, there=there, payload=bench.writer.infer(SWAPPED, there.graph))
        edge = max(swaps // 10, 1)
        for _ in range(edge):
            swapper.swap()
        swapper.times.clear()
        before = _settled(instance)
        for number in range(swaps):
            if number % 50 == 0:
                bench.say(f"{instance.server.name}: swap {number} of {swaps}")
            swapper.swap()
        after = _settled(instance)
        name, setting = instance.server.name, f"after {swaps} swaps"
        for what, unit in (("daemon RSS", "MiB"), ("tree PSS", "MiB"), ("descriptors", ""), ("mappings", ""),
                           ("processes", "")):  # fmt: skip
            samples.add(name, setting, f"more {what}", unit, after[what] - before[what])
        for where, times in (("first", swapper.times[:edge]), ("last", swapper.times[-edge:])):
            for seconds in times:
                samples.add(name, f"{where} swaps", "swap", "ms", seconds * 1e3)

    def _verdicts(self, samples: Samples) -> tuple[Verdict, ...]:
        setting = f"after {self.swaps} swaps"
        first, last = (samples.median(self.subject, f"{each} swaps", "swap") for each in ("first", "last"))
        ratio = last / first if last is not None and first else None
        verdicts = [
            at_most(
                f"daemon RSS left by {self.swaps} swaps",
                self.daemon_mib,
                samples.median(self.subject, setting, "more daemon RSS"),
                "MiB",
            ),
            at_most("last swaps over first swaps", self.slower, ratio, "x"),
        ]
        for what in ("descriptors", "mappings", "processes"):
            value = samples.median(self.subject, setting, f"more {what}")
            verdicts.append(at_most(f"{what} left by {self.swaps} swaps", 0, value, ""))
        for peer in self.peers:
            ours, theirs = (samples.median(each, setting, "more tree PSS") for each in (self.subject, peer))
            value = None if ours is None or theirs is None else ours - theirs
            verdicts.append(at_most(f"memory left behind beyond that of {peer}", 0, value, "MiB"))
        return tuple(verdicts)


@contextlib.contextmanager
def _beside(python: Sequence[str]) -> Iterator[None]:
    """Beside a Python process with these arguments and whatever it starts."""
    environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1"}  # its thread would be lost by a fork
    control = subprocess.Popen([sys.executable, *python], cwd=ROOT, env=environment, process_group=0)
    try:
        yield
        if control.poll() is not None:
            raise SwapFailed(f"what was to run beside it ended with status {control.returncode}: {python}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(control.pid, signal.SIGKILL)
        control.wait()


def transformer_files(megabytes: int, which: int) -> Path:
    """The files of one of the models of this size, made where they are not there yet."""
    home = cache_directory() / "transformers" / f"{megabytes}-{which}"
    if not (home / "1").is_dir():
        write_transformer(home, SIZES[megabytes], version=1, seed=which + 1)
    return home / "1"


@contextlib.contextmanager
def ready_to_swap(name: str, megabytes: int) -> Iterator[tuple[Running, Repository]]:
    """A server with the model that is swapped and its neighbour, ready."""
    with TemporaryDirectory(prefix="bench-swap-", dir=cache_directory()) as folder:
        there = Repository(root=Path(folder), megabytes=megabytes, triton=name == TRITON_CONTROLLED)
        with running(SERVERS[name], there.root) as instance:
            wait_models_ready(instance, RequestWriter(), (NEIGHBOUR, SWAPPED), READY_TIMEOUT_S)
            yield instance, there


def _settled(instance: Running) -> dict[str, float]:
    """As ``_left``, when the memory of the tree has stayed as it is for a second, or after PATIENCE_S: what a server
    had replaced before the first look is not to count as given back."""
    end, before = time.monotonic() + PATIENCE_S, _left(instance)
    while True:
        time.sleep(1.0)
        now = _left(instance)
        if abs(now["tree PSS"] - before["tree PSS"]) < SETTLED_MIB or time.monotonic() > end:
            return now
        before = now


def _left(instance: Running) -> dict[str, float]:
    """What a server has of everything that a swap could leave behind. Mappings are the daemon's."""
    processes = instance.processes()
    daemon = Path("/proc") / str(processes[0])
    return {
        "daemon RSS": memory(processes[:1]).rss / MIB,
        "tree PSS": memory(processes).pss / MIB,
        "descriptors": len(list((daemon / "fd").iterdir())),
        "mappings": len((daemon / "maps").read_text().splitlines()),
        "processes": len(processes),
    }
