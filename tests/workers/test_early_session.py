"""A session whose weights are on their way: it runs at once, answers when they are there, and can be exchanged."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from appliance.domain.digest import Digester
from appliance.domain.errors import RunFailed
from appliance.domain.model import WeightsFile
from appliance.runtimes.runtime import Feed, Place, Produced, Region, RuntimeSettings, Session
from appliance.workers.child.early_session import EarlySession, WeightsArrival
from appliance.workers.child.tensors import Scratch
from tests.runtimes.fake import FakeRuntime
from tests.workers.bench import fake

FEEDS = (Feed((1, 4), 0, 4),)
RESULT = bytes(range(4))


@pytest.fixture
def file(tmp_path: Path) -> WeightsFile:
    path, digester = tmp_path / "weights.bin", Digester()
    path.write_bytes(bytes(10_000))
    digester.update(bytes(10_000))
    found = digester.finish()
    return WeightsFile(path=str(path), size=found.size, digest=found.digest, pieces=found.pieces)


class _Telling:
    """A session that tells when it has run."""

    def __init__(self, session: Session, ran: threading.Event) -> None:
        self._session = session
        self._ran = ran

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Produced:
        produced = self._session.run(source, feeds, wanted, place)
        self._ran.set()
        return produced


class Runs:
    """A session of the fake runtime in memory of its own."""

    def __init__(self, arrival: WeightsArrival, ran: threading.Event | None = None) -> None:
        session = FakeRuntime().load(fake(), RuntimeSettings())
        self.session = EarlySession(cast(Session, _Telling(session, ran)) if ran else session, arrival)
        self._memory = Scratch().at_least(4096)
        self._memory.view[:4] = RESULT

    def run(self) -> Produced:
        return self.session.run(self._memory, FEEDS, (0,), Place(self._memory, 1024, 1024))

    def answer(self) -> bytes:
        produced = self.run()
        parts = produced.parts
        return bytes(parts[0]) if parts else bytes(self._memory.view[1024 : 1024 + produced.sizes[0]])

    @property
    def prepared(self) -> bool:
        place = Place(self._memory, 1024, 1024)
        return self.session.prepared(self._memory, FEEDS, (0,), place) is not None


def test_an_answer_waits_for_the_weights(file: WeightsFile) -> None:
    gate, ran = threading.Event(), threading.Event()

    def begin() -> None:
        gate.wait()

    runs = Runs(WeightsArrival(file, begin=begin), ran)
    answers: list[bytes] = []
    thread = threading.Thread(target=lambda: answers.append(runs.answer()))
    thread.start()
    assert ran.wait(30)
    thread.join(0.2)
    assert thread.is_alive(), "it answered though nothing was read"
    gate.set()
    thread.join()
    assert answers == [RESULT]
    assert runs.answer() == RESULT


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_no_answer_leaves_when_reading_ended_early_whatever_ended_it(file: WeightsFile) -> None:
    def begin() -> None:
        raise MemoryError

    runs = Runs(WeightsArrival(file, begin=begin))
    with pytest.raises(RunFailed, match="its weights were not read"):
        runs.run()


def test_no_answer_of_wrong_weights_leaves(file: WeightsFile) -> None:
    Path(file.path).write_bytes(b"\1" + bytes(9_999))
    arrival = WeightsArrival(file)
    runs = Runs(arrival)
    for _ in range(2):
        with pytest.raises(RunFailed, match="piece 0 "):
            runs.run()
    assert "piece 0 " in str(arrival.finish())


def test_nothing_is_prepared_before_the_exchange(file: WeightsFile) -> None:
    runs = Runs(WeightsArrival(None))
    runs.run()
    assert not runs.prepared
    runs.session.exchange(FakeRuntime().load(fake(), RuntimeSettings()))
    assert runs.answer() == RESULT
    plain = FakeRuntime().load(fake(), RuntimeSettings())
    memory = Scratch().at_least(4096)
    place = Place(memory, 1024, 1024)
    plain.run(memory, FEEDS, (0,), place)
    assert runs.prepared == (plain.prepared(memory, FEEDS, (0,), place) is not None)


def test_how_much_came_and_how_long_that_took(file: WeightsFile) -> None:
    arrival = WeightsArrival(file)
    assert arrival.finish() is None
    assert arrival.nbytes == file.size
    assert arrival.took_ns > 0
    assert WeightsArrival(None).nbytes == 0
