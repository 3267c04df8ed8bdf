"""Giving threads their class back is no failure where one of them ends meanwhile; where it is one, nothing is kept."""

from __future__ import annotations

import threading

import pytest

from appliance.domain.model import ModelVersion
from appliance.runtimes.runtime import RuntimeSettings, Session
from appliance.workers.child import loading
from appliance.workers.child.loading import Loader, restore_threads
from appliance.workers.messages import Load
from appliance.workers.port import LoadWish
from tests.runtimes.fake import FakeRuntime, FakeSession
from tests.workers.bench import fake

TIMES = 3_000


def test_threads_that_end_while_they_are_looked_at_do_not_matter() -> None:
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            brief = threading.Thread(target=over.is_set)
            brief.start()
            brief.join()

    comers = [threading.Thread(target=come_and_go) for _ in range(3)]
    for thread in comers:
        thread.start()
    try:
        for _ in range(TIMES):
            restore_threads()
    finally:
        over.set()
        for thread in comers:
            thread.join()


class Counting(FakeRuntime):
    """Counts the sessions that are open."""

    def __init__(self) -> None:
        self.opened = self.open = 0

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        self.opened += 1
        self.open += 1
        return Counted(version, self)


class Counted(FakeSession):
    """A session that is."""

    def __init__(self, version: ModelVersion, runtime: Counting) -> None:
        super().__init__(version, "identity")
        self._runtime = runtime

    def close(self) -> None:
        self._runtime.open -= 1


def test_a_session_whose_threads_do_not_get_their_class_back_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise PermissionError("not yours")

    def tell(*progress: object) -> None:
        raise AssertionError(progress)

    monkeypatch.setattr(loading, "restore_threads", refuse)
    runtime = Counting()
    with pytest.raises(PermissionError):
        Loader(1, {"fake": runtime}, threads=2).load(
            Load(1, fake(), LoadWish(background=True)), alone=False, tell=tell
        )
    assert (runtime.opened, runtime.open) == (1, 0)
