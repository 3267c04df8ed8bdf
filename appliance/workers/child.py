"""A worker process: takes messages from its lane, one after the other, until it is told to stop or the daemon is gone.

Nothing that a model or a request does wrong ends it by an exception; only signals and limits do.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Mapping
from typing import Final

from appliance.errors import ApplianceError, LoadFailed
from appliance.model import ModelVersion
from appliance.runtimes.runtime import Region, Runtime, RuntimeSettings, Session
from appliance.workers.execution import Executor, LoadedModel
from appliance.workers.granted import GrantedRuns
from appliance.workers.lane import LaneClosed, WorkerLane
from appliance.workers.memory import private_bytes
from appliance.workers.messages import Fetch, Finished, Load, Loaded, Refused, Run, Stop, Stored, Unload
from appliance.workers.port import ItemStatus, RunResult, WorkerSettings
from appliance.workers.signature import check_signature
from appliance.workers.warmup import measure_seeds, run_warmups

REASON_CHARACTERS_MAX: Final = 8192


class Worker:
    """The models of one worker process and what is done with them. ``granted`` runs them as well, while ``lane`` waits
    for messages."""

    def __init__(
        self,
        lane: WorkerLane,
        arena: Region,
        runtimes: Mapping[str, Runtime],
        settings: WorkerSettings,
        granted: GrantedRuns | None = None,
    ) -> None:
        self._lane = lane
        self._runtimes = runtimes
        self._settings = RuntimeSettings(threads=settings.threads)
        self._models: dict[int, LoadedModel] = {}
        self._executor = Executor(arena)
        self._granted = granted

    def serve(self) -> None:
        """Until Stop. Raises LaneClosed when the daemon is gone."""
        while True:
            message = self._lane.take()
            if type(message) is Run:
                self._lane.complete(self._run(message))
            elif type(message) is Fetch:
                result = self._executor.fetch(message)
                if result is not None:
                    self._lane.complete(Stored(result))
            elif type(message) is Load:
                self._lane.complete(self._load(message))
            elif type(message) is Unload:
                self._unload(message.model)
            elif type(message) is Stop:
                if self._granted is not None:
                    self._granted.finish()
                return

    def _run(self, run: Run) -> Finished:
        model = self._models.get(run.model)
        if model is None:
            results = [
                RunResult(item.ticket, ItemStatus.FAILED, (), (), 0, "the model is not loaded")
                for item in run.items
            ]
            return Finished(run.batch, tuple(results), 0, 0, 0)
        return self._executor.run(model, run)

    def _load(self, load: Load) -> Loaded | Refused:
        begin, before = time.monotonic_ns(), private_bytes(os.getpid())
        try:
            model = self._open(load.version)
        except Exception as problem:  # noqa: BLE001 - whatever a model does wrong is an answer
            return Refused(load.model, _reason(load.version, problem))
        self._models[load.model] = model
        if self._granted is not None:
            self._granted.add(load.model, model)
        seeds = measure_seeds(model)
        gc.collect()
        gc.freeze()
        grown = max(private_bytes(os.getpid()) - before, 0) + model.session.memory()
        return Loaded(load.model, seeds, time.monotonic_ns() - begin, grown)

    def _open(self, version: ModelVersion) -> LoadedModel:
        runtime = self._runtimes.get(version.runtime)
        if runtime is None:
            raise LoadFailed(
                f"{version.key} needs runtime '{version.runtime}', which is not enabled "
                f"(enabled: {', '.join(self._runtimes)}); add it to the configuration"
            )
        session = runtime.load(version, self._settings)
        try:
            model = LoadedModel(version=version, session=session)
            check_signature(version, session)
            run_warmups(model)
        except BaseException:
            session.close()
            raise
        return model

    def _unload(self, model: int) -> None:
        loaded: LoadedModel | None = self._models.pop(model, None)
        if self._granted is not None:
            self._granted.drop(model)
        if loaded is not None:
            session: Session = loaded.session
            session.close()


def run_worker(
    lane: WorkerLane,
    arena: Region,
    runtimes: Mapping[str, Runtime],
    settings: WorkerSettings,
    granted: GrantedRuns | None = None,
) -> None:
    """Serve the lane until told to stop or the daemon is gone."""
    try:
        Worker(lane, arena, runtimes, settings, granted).serve()
    except LaneClosed:
        return


def _reason(version: ModelVersion, problem: Exception) -> str:
    known = isinstance(problem, ApplianceError)
    text = str(problem) if known else f"{version.key}: {type(problem).__name__}: {problem}"
    return text[:REASON_CHARACTERS_MAX]
