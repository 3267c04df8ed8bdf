"""Runs the load generators as processes of their own and reads what they say.

Our own two (`benchmarks.load` and the `load` of `benchmarks/native`, which take the same options and say the same
things) make open and closed loops. perf_analyzer and lg (closed loop here) are independent implementations.
"""

import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.cache import ROOT
from benchmarks.payload import port_names, shape_arguments
from benchmarks.peers.setup import install_folder, installed

RESOURCE_EXHAUSTED = 8
UNAVAILABLE = 14
REFUSALS = (RESOURCE_EXHAUSTED, UNAVAILABLE)
SLACK_S = 90.0
REAL_TIME = ("chrt", "--fifo", "1")
PERF_WINDOW_MS = 1500
PERF_WINDOWS = 3


class LoadFailed(RuntimeError):
    """A load generator ended with an error; carries its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A load: a rate (open loop) or a concurrency (closed loop), for so long. `expect_bytes` (the length of every good
    answer; 0: any) and `authority` (a PEM file; TLS) are known to the native generator only. `streamed`: requests go
    over one stream, by the native generator. `remote`: calls leave when they are due whatever this machine is busy
    with, as those of clients on others do: the generator is in a real-time class, where that is allowed."""

    seconds: float
    rate: float = 0.0
    concurrency: int = 0
    warm_up_s: float = 1.0
    deadline_ms: float = 0.0
    bound_ms: float = 50.0
    seed: int = 1
    channels: int = 0
    expect_bytes: int = 0
    authority: Path | None = None
    streamed: bool = False
    remote: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What a generator saw. Rates per second, latencies in microseconds from the due time."""

    offered: float
    throughput: float
    goodput: float
    in_time_share: float
    ok: Mapping[str, float]
    failed: Mapping[int, Mapping[str, float]]
    lag: Mapping[str, float]
    series: tuple[Mapping[str, float], ...]
    calls: int
    cpu_s: float
    elapsed_s: float
    unanswered: int
    messages: Mapping[int, str]

    def refusals(self) -> Mapping[str, float] | None:
        """The figures of refused calls, of the more frequent refusal code; None when none was refused."""
        kinds = [self.failed[code] for code in REFUSALS if code in self.failed]
        return max(kinds, key=lambda kind: kind["count"]) if kinds else None


@cache
def no_real_time() -> str | None:
    """Why no process can be put into a real-time class here, or None."""
    try:
        done = subprocess.run([*REAL_TIME, "true"], capture_output=True, text=True, check=False)
    except OSError as problem:
        return f"util-linux's chrt is not there: {problem.strerror}"
    return done.stderr.strip() or None if done.returncode else None


def run_load(
    target: str, payload: bytes, offer: Offer, *, native: bool = False, generator: Path | None = None
) -> LoadReport:
    """Offer the load to `target` with one of our own generators and wait for the report. `generator` is a `load` of
    `benchmarks/native` that is not installed."""
    own = generator or install_folder("native") / ("stream" if offer.streamed else "load")
    program = [str(own)] if native or generator else [sys.executable, "-m", "benchmarks.load"]
    if offer.remote and not no_real_time():
        program = [*REAL_TIME, *program]
    with tempfile.NamedTemporaryFile(prefix="payload-") as file:
        file.write(payload)
        file.flush()
        argv = [*program, "--target", target, "--payload", file.name]
        limit = offer.seconds + offer.warm_up_s + SLACK_S
        done = subprocess.run(
            [*argv, *_arguments(offer)], capture_output=True, text=True, timeout=limit, check=False, cwd=ROOT
        )
    if done.returncode:
        raise LoadFailed(f"load generator against {target} failed: {done.stderr.strip()[-1500:]}")
    return read_report(json.loads(done.stdout.splitlines()[-1]))


def _arguments(offer: Offer) -> list[str]:
    shape = ["--rate", str(offer.rate)] if offer.rate else ["--concurrency", str(offer.concurrency)]
    rest = {
        "--seconds": offer.seconds,
        "--warm-up-s": offer.warm_up_s,
        "--deadline-ms": offer.deadline_ms,
        "--bound-ms": offer.bound_ms,
        "--channels": offer.channels,
        "--seed": offer.seed,
    }
    if offer.expect_bytes:
        rest["--expect-bytes"] = offer.expect_bytes
    secure = ["--ca", str(offer.authority)] if offer.authority else []
    return shape + secure + [word for key, value in rest.items() for word in (key, str(value))]


def read_report(fields: dict[str, Any]) -> LoadReport:
    """The report from its JSON."""
    wanted = {key: fields[key] for key in LoadReport.__slots__}
    wanted["failed"] = {int(code): figures for code, figures in fields["failed"].items()}
    wanted["messages"] = {int(code): text for code, text in fields["messages"].items()}
    wanted["series"] = tuple(fields["series"])
    return LoadReport(**wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfReport:
    """Figures of an independent generator: answers per second, latencies in microseconds."""

    throughput: float
    p50_us: float
    p99_us: float


def perf_analyzer_missing() -> str | None:
    """Why perf_analyzer cannot run here, or None."""
    if not installed("perf_analyzer"):
        return "perf_analyzer is not installed: run `python -m benchmarks.peers.setup perf_analyzer`"
    folder = install_folder("perf_analyzer")
    probe = _perf_process(["--help"], folder, timeout_s=20)
    if "error while loading shared libraries" in probe.stderr:
        return f"perf_analyzer lacks a library ({probe.stderr.strip()[-120:]}); Debian's libb64-0d may be it"
    return None


def run_perf_analyzer(target: str, served_name: str, model: Path, concurrency: int) -> PerfReport:
    """One closed-loop measurement at batch size 1."""
    with tempfile.TemporaryDirectory(prefix="perf-") as scratch:
        output = Path(scratch) / "perf.csv"
        arguments = ["-m", served_name, "-u", target, "-i", "grpc", "-b", "1", "-a", *shape_arguments(model)]
        arguments += ["--concurrency-range", str(concurrency), "--percentile=99", "-f", str(output)]
        arguments += ["-p", str(PERF_WINDOW_MS), "-s", "500", "-r", str(PERF_WINDOWS)]
        done = _perf_process(arguments, install_folder("perf_analyzer"), timeout_s=SLACK_S)
        if done.returncode or not output.exists():
            raise LoadFailed(
                f"perf_analyzer against {target} failed: {(done.stdout + done.stderr).strip()[-600:]}"
            )
        return read_perf(output.read_text())


def read_perf(table: str) -> PerfReport:
    """The figures in perf_analyzer's CSV."""
    row = next(csv.DictReader(table.splitlines()))
    rate, p50, p99 = (float(row[key]) for key in ("Inferences/Second", "p50 latency", "p99 latency"))
    return PerfReport(throughput=rate, p50_us=p50, p99_us=p99)


def run_lg(target: str, served_name: str, model: Path, concurrency: int, seconds: float) -> PerfReport:
    """One closed-loop measurement with lg at batch size 1, after a second of warm-up."""
    argv = [str(install_folder("lg") / "lg"), "-u", target, "-m", served_name, "-c", str(concurrency)]
    for name, datatype, shape in port_names(model)[0]:
        argv += ["-i", f"{name}:{datatype}:{','.join(str(max(size, 1)) for size in shape)}"]
    argv += ["-d", str(seconds), "-w", "1"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds + SLACK_S, check=False)
    found = json.loads(done.stdout) if not done.returncode else {}
    if found.get("err", {"": done.stderr[-600:]}):
        raise LoadFailed(f"lg against {target} failed: {found.get('err') or done.stderr.strip()[-600:]}")
    return PerfReport(throughput=found["thr"], p50_us=found["p50"], p99_us=found["p99"])


def _perf_process(
    arguments: list[str], folder: Path, *, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(folder / "perf_analyzer"), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={"LD_LIBRARY_PATH": str(folder), "PATH": "/usr/bin:/bin"},
    )
