"""A worker that is told to end gives back what its models take while it yields, and does not wait for ever."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import cast

import pytest

from appliance.domain.load_wish import PLAIN_LOAD
from appliance.domain.model import ModelVersion
from appliance.runtimes.runtime import Runtime, RuntimeSettings, Session
from appliance.workers.child import worker as child
from appliance.workers.child.execution import LoadedModel
from appliance.workers.child.leased import LeasedRuns
from appliance.workers.child.tensors import Scratch
from appliance.workers.child.worker import Worker
from appliance.workers.messages import FromWorker, Load, Stop, ToWorker
from appliance.workers.port import ModelLoaded
from appliance.workers.settings import WorkerSettings
from tests.runtimes.fake import FakeRuntime, FakeSession
from tests.workers.bench import fake

PATIENCE_S = 20.0
SETTINGS = WorkerSettings(threads=1, cpus=(), memory_limit_bytes=0)


class LaneDouble:
    """Says what it was given, and notes the answers."""

    def __init__(self, *messages: ToWorker) -> None:
        self._messages = deque(messages)
        self.answers: list[FromWorker] = []

    def take(self) -> ToWorker:
        return self._messages.popleft()

    def poll(self) -> ToWorker | None:
        return self._messages.popleft() if self._messages else None

    def complete(self, message: FromWorker) -> None:
        self.answers.append(message)


class Closing(FakeSession):
    """Notes in which class it is closed; ``may_end`` holds that up."""

    def __init__(self, version: ModelVersion, runtime: Closings) -> None:
        super().__init__(version, "identity")
        self._runtime = runtime

    def close(self) -> None:
        self._runtime.classes.append(os.sched_getscheduler(0))
        self._runtime.said.append("closed")
        self._runtime.begun.set()
        self._runtime.may_end.wait()


class Closings(FakeRuntime):
    """A runtime of such sessions."""

    def __init__(self) -> None:
        self.classes: list[int] = []
        self.said: list[str] = []
        self.begun = threading.Event()
        self.may_end = threading.Event()

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        return Closing(version, self)


class LeasedDouble:
    """Notes what a worker has it do."""

    def __init__(self, said: list[str]) -> None:
        self._said = said

    def add(self, model: int, loaded: LoadedModel) -> None:
        self._said.append(f"{model} added")

    def drop(self, model: int) -> None:
        self._said.append(f"{model} dropped")

    def finish(self) -> None:
        self._said.append("finished")


def serve(runtimes: dict[str, Runtime], leased: LeasedDouble | None = None) -> None:
    """Two models are loaded, then the worker is told to end."""
    loads = [Load(number, fake(), PLAIN_LOAD) for number in (1, 2)]
    lane = LaneDouble(*loads, Stop())
    Worker(1, lane, Scratch().at_least(1), runtimes, SETTINGS, cast(LeasedRuns | None, leased)).serve()
    assert [type(answer) for answer in lane.answers] == [ModelLoaded, ModelLoaded]


def test_what_was_prepared_of_a_model_is_dropped_before_its_session_is_closed() -> None:
    runtime = Closings()
    runtime.may_end.set()
    serve({"fake": runtime}, LeasedDouble(runtime.said))
    expected = "1 added, 2 added, finished, 1 dropped, closed, 2 dropped, closed"
    assert ", ".join(runtime.said) == expected


def test_sessions_are_closed_in_the_idle_class() -> None:
    runtime = Closings()
    runtime.may_end.set()
    before = os.sched_getscheduler(0)
    serve({"fake": runtime})
    assert runtime.classes == [os.SCHED_IDLE] * 2
    assert os.sched_getscheduler(0) == before


def test_a_session_that_does_not_close_keeps_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "LET_GO_S", 0.02)
    runtime = Closings()
    serve({"fake": runtime})
    assert runtime.begun.wait(PATIENCE_S)
    assert runtime.classes == [os.SCHED_IDLE]
    runtime.may_end.set()
