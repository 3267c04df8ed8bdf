"""A worker process: takes messages from its lane, one after the other, until it is told to stop or the daemon is gone.

What may take long and is not needed for the next batch is done aside: loads in the background, evicting, paging in,
building packed forms. Nothing that a model or a request does wrong ends it by an exception; only signals and limits do.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from appliance.domain.errors import (
    ApplianceError,
    AssessmentFailed,
    FileDiffers,
    FormHasNoRoom,
    UnsupportedModel,
    is_of_full_device,
)
from appliance.process.priority import SHORT_TURN_NS, USUAL_TURN_NS, take_turns, yield_processor
from appliance.runtimes.runtime import Region, Runtime, Session
from appliance.workers.child.early_session import EarlySession, WeightsArrival
from appliance.workers.child.execution import BegunBatch, Executor, LoadedModel
from appliance.workers.child.form_builder import Built
from appliance.workers.child.leased import LeasedRuns
from appliance.workers.child.loading import Loader, Opened
from appliance.workers.lane import LaneClosed, WorkerLane
from appliance.workers.messages import Build, EvictWeights, FromWorker, Load, PageIn, Stop, ToWorker, Unload
from appliance.workers.port import (
    REASON_CHARACTERS_MAX,
    Fetch,
    Fetched,
    FormBuilt,
    FormJudged,
    FormVerdict,
    ItemStatus,
    LoadStage,
    ModelLoaded,
    ModelProgress,
    ModelRefused,
    Run,
    RunFinished,
    RunResult,
    WeightsEvicted,
    WeightsPagedIn,
)
from appliance.workers.settings import WorkerSettings

LET_GO_S: Final = 0.25
"""How long a worker that was told to end may take to give back what its models take."""
BRISK_NS: Final = 1_000_000
"""A worker none of whose models was seen to run longer takes short turns: it is not kept waiting by the runs of a large
model on the same processor, and needs no longer ones."""


REST_S: Final = 50e-6
"""Between two looks whether a device has ended a batch, unless it should end about now and has nothing behind it, for
which it would wait: then other threads just have a turn."""


class BackgroundTasks:
    """What a worker does beside its messages: one thing at a time, in the order asked, each in a thread of its own,
    which may take a class that it cannot come back from. Owner: the worker. What is done must not raise."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._models: deque[int] = deque()
        """What is being done concerns the first of them, what waits the others."""

    def concern(self, model: int) -> bool:
        """Whether something is being done, or waits, for a model."""
        with self._changed:
            return model in self._models

    def settle(self, model: int) -> None:
        """Wait until nothing is being done for a model, and nothing waits."""
        with self._changed:
            self._changed.wait_for(lambda: model not in self._models)

    def submit(self, model: int, do: Callable[[], None]) -> None:
        """Have something done for a model after what was submitted before."""
        with self._changed:
            self._waiting.append(do)
            self._models.append(model)
            if len(self._models) == 1:
                self._start()

    def finish(self) -> None:
        """Wait until everything is done."""
        with self._changed:
            self._changed.wait_for(lambda: not self._models)

    def _start(self) -> None:
        threading.Thread(target=self._run, args=(self._waiting.popleft(),), name="task", daemon=True).start()

    def _run(self, do: Callable[[], None]) -> None:
        try:
            do()
        finally:
            with self._changed:
                self._models.popleft()
                if self._waiting:
                    self._start()
                self._changed.notify_all()


class Worker:
    """The models of worker ``number`` and what is done with them. ``leased`` runs them as well, while ``lane`` waits
    for messages."""

    def __init__(
        self,
        number: int,
        lane: WorkerLane,
        arena: Region,
        runtimes: Mapping[str, Runtime],
        settings: WorkerSettings,
        leased: LeasedRuns | None = None,
    ) -> None:
        self._number = number
        self._lane = lane
        self._saying = threading.Lock()
        self._loader = Loader(number, runtimes, settings.threads, settings.seen)
        self._models: dict[int, LoadedModel] = {}
        self._brisk: dict[int, bool] = {}
        self._background = BackgroundTasks()
        self._executor = Executor(arena)
        self._leased = leased

    def serve(self) -> None:
        """Until Stop, which is where it lets go of everything. Raises LaneClosed when the daemon is gone."""
        while True:
            message: ToWorker | None = self._lane.take()
            while type(message) is Run:
                message = self._run_on(message)
            if message is None:
                continue
            if type(message) is Fetch:
                result = self._executor.fetch(message)
                if result is not None:
                    self._say(Fetched(self._number, result))
            elif type(message) is Stop:
                self._background.finish()
                if self._leased is not None:
                    self._leased.finish()
                self._let_go()
                return
            else:
                self._attend(message)

    def _attend(self, message: ToWorker) -> None:
        """What is not asked with every request. A session is neither closed nor made anew while its weights come or
        go."""
        if isinstance(message, Load):
            if message.wish.background:
                self._aside(message.model, partial(self._load_aside, message))
            else:
                self._background.settle(message.model)
                self._load_in_line(message)
        elif isinstance(message, Unload):
            if self._background.concern(message.model):
                self._background.submit(message.model, partial(self._unload, message.model))
            else:
                self._unload(message.model)
        elif isinstance(message, EvictWeights):
            self._aside(message.model, partial(self._evict, message.model))
        elif isinstance(message, PageIn):
            self._aside(message.model, partial(self._page_in, message))
        elif isinstance(message, Build):
            self._aside(message.model, partial(self._build, message))

    def _aside(self, model: int, do: Callable[[], FromWorker]) -> None:
        """Have something done, and its answer said, beside the messages."""

        def task() -> None:
            with suppress(LaneClosed):  # the loop that takes messages finds out
                self._say(do())

        self._background.submit(model, task)

    def _tell_on(self, model: int, stage: LoadStage, done: int, total: int) -> None:
        """As ``_tell``, of what ends when there is nobody to tell any more. Raises LaneClosed."""
        self._say(ModelProgress(self._number, model, stage, done, total))

    def _tell(self, model: int, stage: LoadStage, done_bytes: int, total_bytes: int) -> None:
        with suppress(LaneClosed):  # as above
            self._say(ModelProgress(self._number, model, stage, done_bytes, total_bytes))

    def _judge(self, model: int, name: str, verdict: FormVerdict, reason: str) -> None:
        with suppress(LaneClosed):  # as above
            self._say(FormJudged(self._number, model, name, verdict, reason[:REASON_CHARACTERS_MAX]))

    def _say(self, message: FromWorker) -> None:
        with self._saying:
            self._lane.complete(message)

    def _run_on(self, run: Run) -> ToWorker | None:
        """Run a batch, and those of its model that come for as long as each can be begun before the one before it has
        ended; what came that cannot. One of another model would not wait for it on the device, but slow it down, and
        a worker that dies or hangs is held to have done so with the first."""
        under_way = self._begin(run)
        if under_way is None:
            self._say(self._run(run))
            return None
        other: ToWorker | None = None
        while under_way is not None:
            number, begun = under_way
            behind, about = None, self._executor.ends_about(begun)
            while not begun.ended():
                if behind is None and other is None:
                    other = self._lane.poll()
                    if type(other) is Run and other.model == run.model:
                        behind = self._begin(other)
                        other = None if behind is not None else other
                keen = behind is None and time.monotonic_ns() in about
                time.sleep(0 if keen else REST_S)
            results, times = self._executor.finish(begun)
            self._say(RunFinished(self._number, number, results, *times))
            under_way = behind
        return other

    def _begin(self, run: Run) -> tuple[int, BegunBatch] | None:
        model = self._models.get(run.model)
        begun = None if model is None else self._executor.begin(model, run.items)
        return None if begun is None else (run.batch, begun)

    def _run(self, run: Run) -> RunFinished:
        model = self._models.get(run.model)
        if model is None:
            reason = "the model is not loaded"
            failed = tuple(RunResult(item.ticket, ItemStatus.FAILED, (), (), 0, reason) for item in run.items)
            return RunFinished(self._number, run.batch, failed, 0, 0, 0)
        results, times = self._executor.run(model, run.items)
        return RunFinished(self._number, run.batch, results, *times)

    def _load(self, load: Load) -> Opened | ModelRefused:
        try:
            opened = self._loader.load(
                load,
                alone=not self._models,
                tell=partial(self._tell, load.model),
                judge=partial(self._judge, load.model),
            )
        except Exception as problem:  # noqa: BLE001 - whatever a model does wrong is an answer
            # Nothing else may name the problem: its traceback would keep this frame, and what was half loaded with it.
            full = is_of_full_device(problem)
            failed = isinstance(problem, AssessmentFailed) and not full
            differs = isinstance(problem.__cause__ or problem, FileDiffers)
            reason = _reason(load.version.key, problem)
            unsupported = isinstance(problem, UnsupportedModel)
            return ModelRefused(self._number, load.model, reason, failed, differs, full, unsupported)
        known = self._models.get(load.model)
        if known is None:
            self._models[load.model] = opened.model
            if self._leased is not None:
                self._leased.add(load.model, opened.model)
        elif isinstance(known.session, EarlySession):
            known.session.exchange(opened.model.session)
        else:
            opened.model.session.close()
            return ModelRefused(self._number, load.model, "it is loaded already")
        seeds = opened.said.seeds
        self._brisk[load.model] = bool(seeds) and max(ns for _, ns in seeds) <= BRISK_NS
        self._pace()
        return opened

    def _pace(self) -> None:
        """The main thread is the one that runs requests."""
        brisk = bool(self._brisk) and all(self._brisk.values())
        take_turns(SHORT_TURN_NS if brisk else USUAL_TURN_NS, os.getpid())

    def _load_in_line(self, load: Load) -> None:
        opened = self._load(load)
        self._say(opened.said if isinstance(opened, Opened) else opened)
        if load.wish.early and isinstance(opened, Opened):
            self._aside(load.model, partial(self._arrived, load.model, opened.arrival))

    def _arrived(self, model: int, arrival: WeightsArrival) -> WeightsPagedIn:
        problem = arrival.finish()
        if problem is None:
            return WeightsPagedIn(self._number, model, arrival.nbytes, arrival.took_ns, None)
        return WeightsPagedIn(self._number, model, 0, arrival.took_ns, _reason("the weights", problem))

    def _load_aside(self, load: Load) -> ModelLoaded | ModelRefused:
        opened = self._load(load)
        return opened.said if isinstance(opened, Opened) else opened

    def _evict(self, model: int) -> WeightsEvicted:
        begin = time.monotonic_ns()
        loaded = self._models.get(model)
        if loaded is not None and loaded.session.weights is not None:
            loaded.session.weights.evict_weights()
        return WeightsEvicted(self._number, model, time.monotonic_ns() - begin)

    def _page_in(self, asked: PageIn) -> WeightsPagedIn:
        begin = time.monotonic_ns()
        loaded = self._models.get(asked.model)
        weights = None if loaded is None else loaded.session.weights
        nbytes, failure = 0, None
        try:
            if loaded is None:
                failure = "the model is not loaded"
            elif weights is not None:
                weights.page_in(verify=True)
                nbytes = weights.nbytes
        except Exception as problem:  # noqa: BLE001 - as for a load
            failure = _reason("the weights", problem)
        return WeightsPagedIn(self._number, asked.model, nbytes, time.monotonic_ns() - begin, failure)

    def _build(self, build: Build) -> FormBuilt:
        begin = time.monotonic_ns()
        built, failure, later = Built("", 0, ()), None, False
        try:
            built = self._loader.build(
                build.version,
                partial(self._judge, build.model),
                partial(self._tell_on, build.model),
                build.room_bytes,
            )
        except Exception as problem:  # noqa: BLE001 - as for a load
            later = isinstance(problem, FormHasNoRoom) or is_of_full_device(problem)
            failure = _reason(build.version.key, problem)
        name, nbytes, compared = built
        took_ns = time.monotonic_ns() - begin
        return FormBuilt(self._number, build.model, name, nbytes, took_ns, failure, later, compared)

    def _let_go(self) -> None:
        """Give memory back while yielding, as far as that goes quickly: what a process leaves behind when it ends is
        taken from it at the class that it has, and half a gigabyte of pages is felt by all that shares the
        processor."""
        models, self._models = self._models, {}

        def close() -> None:
            yield_processor()
            for number, model in models.items():
                self._close(number, model.session)

        thread = threading.Thread(target=close, name="leaving", daemon=True)
        thread.start()
        thread.join(LET_GO_S)

    def _unload(self, model: int) -> None:
        loaded: LoadedModel | None = self._models.pop(model, None)
        self._brisk.pop(model, None)
        self._pace()
        self._close(model, None if loaded is None else loaded.session)

    def _close(self, model: int, session: Session | None) -> None:
        """Have what was prepared of a model dropped, then close its session."""
        self._executor.drop()
        if self._leased is not None:
            self._leased.drop(model)
        if session is not None:
            session.close()


def _reason(what: str, problem: Exception) -> str:
    """The text without ``what`` it is about where that is said of it anyway."""
    known = isinstance(problem, ApplianceError)
    text = str(problem).removeprefix(f"{what}: ") if known else f"{what}: {type(problem).__name__}: {problem}"
    return text[:REASON_CHARACTERS_MAX]
