"""Loads one version inside a worker: the session, its weights, warm-ups, assessment, measurements.

While a session is made of a file of weights, the file is read ahead and verified beside it; nothing of the version runs
before that is done. What is measured is measured on the normal processor class, also for a load in the background.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

from appliance.errors import ApplianceError, LoadFailed
from appliance.model import ModelVersion, WeightsFile
from appliance.runtimes.runtime import Runtime, RuntimeSettings, Session
from appliance.runtimes.weights import read_ahead, trim_heap
from appliance.workers.assessment import Golden, assess, open_golden, run_golden
from appliance.workers.execution import LoadedModel
from appliance.workers.memory import private_bytes
from appliance.workers.messages import Load, Loaded
from appliance.workers.port import Assessment, LoadWish
from appliance.workers.priority import restore_disk, yield_disk, yield_processor
from appliance.workers.signature import check_signature
from appliance.workers.warmup import measure_seeds, run_warmups

CPU: Final = "cpu"

Result = TypeVar("Result")


class Opened(NamedTuple):
    """A loaded version and what the daemon is told of it."""

    model: LoadedModel
    said: Loaded


class Loader:
    """Makes sessions with the runtimes of one worker."""

    def __init__(self, runtimes: Mapping[str, Runtime], threads: int) -> None:
        self._runtimes = runtimes
        self._settings = RuntimeSettings(threads=threads)

    def load(self, load: Load, *, alone: bool) -> Opened:
        """Load on the calling thread, which a load in the background has for itself. ``alone``: the worker holds no
        other model. Raises ApplianceError, or whatever a runtime or a model does wrong."""
        begin, before = time.monotonic_ns(), private_bytes(os.getpid())
        wish = load.wish
        lower = _lowering(wish, alone)
        lower()
        golden = open_golden(load.version) if wish.assess else None
        session = self._open(load.version, wish, lower)
        model = LoadedModel(version=load.version, session=session)
        try:
            seeds, assessment = self._prove(model, wish, golden)
        except BaseException:
            session.close()
            raise
        _restore_threads(wish)
        gc.collect()
        gc.freeze()
        trim_heap()
        grown = max(private_bytes(os.getpid()) - before, 0) + session.memory()
        hollow_bytes = 0 if session.weights is None else session.weights.nbytes
        took = time.monotonic_ns() - begin
        return Opened(model, Loaded(load.model, seeds, took, grown, assessment, hollow_bytes, False))

    def _open(self, version: ModelVersion, wish: LoadWish, lower: Callable[[], None]) -> Session:
        """A session of verified weights whose pages are there."""
        runtime = self.runtime_of(version)
        ahead = None
        if version.weights is not None and version.device == CPU:
            ahead = _ReadAhead(version.weights, verify=wish.verify, lower=lower)
        try:
            session = runtime.load(version, replace(self._settings, quick=wish.quick))
        finally:
            problem = None if ahead is None else ahead.finish()
        try:
            if problem is not None:
                raise LoadFailed(f"{version.key}: {problem}") from problem
            check_signature(version, session)
            if session.weights is not None:
                session.weights.fill(verify=False)  # the pages are there; its page tables are not
        except BaseException:
            session.close()
            raise
        return session

    def runtime_of(self, version: ModelVersion) -> Runtime:
        """The runtime of a version. Raises LoadFailed when it is not enabled."""
        runtime = self._runtimes.get(version.runtime)
        if runtime is None:
            raise LoadFailed(
                f"{version.key} needs runtime '{version.runtime}', which is not enabled "
                f"(enabled: {', '.join(self._runtimes)}); add it to the configuration"
            )
        return runtime

    def _prove(
        self, model: LoadedModel, wish: LoadWish, golden: Golden | None
    ) -> tuple[tuple[tuple[int, int], ...], Assessment | None]:
        """Warm-ups, golden set, measurements."""
        if not wish.quick:
            run_warmups(model)
        worst = () if golden is None else run_golden(model, golden)

        def measure() -> tuple[tuple[tuple[int, int], ...], Assessment | None]:
            seeds = () if wish.quick else measure_seeds(model)
            return seeds, assess(model, golden, worst) if wish.assess else None

        return _on_normal_class(measure) if wish.background else measure()


def _lowering(wish: LoadWish, alone: bool) -> Callable[[], None]:
    """What puts a thread of this load into the class that it should have."""

    def lower() -> None:
        if wish.background:
            yield_disk()
            if alone:
                yield_processor()

    return lower


class _ReadAhead:
    """Reads and verifies a file of weights in a thread of its own."""

    def __init__(self, file: WeightsFile, *, verify: bool, lower: Callable[[], None]) -> None:
        self._problem: Exception | None = None

        def read() -> None:
            lower()
            try:
                read_ahead(file, verify=verify, begin=lower)
            except (ApplianceError, OSError) as problem:
                self._problem = problem

        self._thread = threading.Thread(target=read, name="read-ahead", daemon=True)
        self._thread.start()

    def finish(self) -> Exception | None:
        """Wait for its end; gives what went wrong."""
        self._thread.join()
        return self._problem


def _on_normal_class(do: Callable[[], Result]) -> Result:
    """Do something in a thread that did not yield to anybody; raises what it raises."""
    results: list[Result] = []
    problems: list[BaseException] = []

    def run() -> None:
        restore_disk()
        try:
            results.append(do())
        except BaseException as problem:  # noqa: BLE001 - raised again by the caller's thread
            problems.append(problem)

    thread = threading.Thread(target=run, name="measure", daemon=True)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
    return results[0]


def _restore_threads(wish: LoadWish) -> None:
    """Threads that the runtime started inherited the I/O class of a load in the background."""
    if wish.background:
        for thread in os.listdir("/proc/self/task"):
            if int(thread) != threading.get_native_id():
                restore_disk(int(thread))
