"""A stream of the native front end: pressure both ways, an end after the last message, deadlines."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any, cast

import pytest

from appliance.domain.errors import Cancelled, UnknownModel
from appliance.domain.inference import NO_DEADLINE
from appliance.frontend.grpc.envelope import EnvelopeLimits
from appliance.frontend.grpc.inference import Inference
from appliance.frontend.grpc.status import BROKEN
from appliance.frontend.grpc.stream import Handed, StreamSession, StreamWindow
from appliance.frontend.native.calls import DEADLINE_TEXT, OK, NativeStream
from appliance.frontend.statuses import Code
from tests.domain.sample import make_version
from tests.frontend.grpc.engine_double import EngineDouble
from tests.frontend.grpc.messages import infer_request
from tests.frontend.grpc.test_stream import settle
from tests.frontend.native.server_double import ServerDouble

CALL = 5


class Rig:
    """A stream whose server copies what it reads."""

    def __init__(self) -> None:
        self.server = ServerDouble(known={CALL})
        self.stream = NativeStream(cast(Any, self.server), CALL)

    async def copy(self) -> None:
        while (message := await self.stream.read()) is not None:
            await self.stream.write(bytes(message))

    def run(self, behave: Any, remaining_s: float | None = None) -> asyncio.Task[None]:
        return asyncio.ensure_future(self.stream.serve("/a/b", remaining_s, behave))


@pytest.fixture
async def rig() -> Rig:
    return Rig()


async def test_nothing_is_read_or_written_ahead(rig: Rig) -> None:
    task = rig.run(rig.copy)
    await settle()
    assert rig.server.reads == [CALL]
    rig.stream.received(b"a")
    await settle()
    assert (rig.server.sent, len(rig.server.reads)) == ([b"a"], 2)
    rig.stream.received(b"b")
    await settle()
    assert (rig.server.sent, len(rig.server.reads)) == ([b"a"], 2), "no room yet"
    rig.stream.sent()
    await settle()
    assert (rig.server.sent, len(rig.server.reads)) == ([b"a", b"b"], 3)
    rig.stream.received(None)
    await settle()
    assert not task.done(), "the last message has not left"
    rig.stream.sent()
    await task
    assert rig.server.ends[CALL] == (OK, "", ())


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (UnknownModel("no such thing"), (Code.NOT_FOUND, "no such thing", ())),
        (ZeroDivisionError("made up"), (Code.INTERNAL, BROKEN, ())),
    ],
)
async def test_an_error_is_the_end_after_what_was_written(rig: Rig, error: Exception, end: object) -> None:
    async def fail() -> None:
        await rig.stream.write(b"a")
        raise error

    task = rig.run(fail)
    await settle()
    assert rig.server.ends == {}
    rig.stream.sent()
    await task
    assert rig.server.ends[CALL] == end


async def test_an_error_that_a_task_keeps_does_not_keep_that_task(rig: Rig) -> None:
    async def inner() -> None:
        raise UnknownModel("no such thing")

    async def fail() -> None:
        task = asyncio.ensure_future(inner())
        kept.append(weakref.ref(task))
        await task

    kept: list[weakref.ref[asyncio.Task[None]]] = []
    gc.collect()
    gc.disable()
    try:
        await rig.run(fail)
        await settle()
        assert [each() for each in kept] == [None]
    finally:
        gc.enable()


async def test_a_deadline_ends_it(rig: Rig) -> None:
    await rig.run(rig.copy, remaining_s=-1.0)
    assert rig.server.ends[CALL] == (Code.DEADLINE_EXCEEDED, DEADLINE_TEXT, ())


async def test_a_deadline_ends_a_client_that_takes_nothing(rig: Rig) -> None:
    async def write() -> None:
        await rig.stream.write(b"a")

    await rig.run(write, remaining_s=0.01)
    assert rig.server.ends[CALL][0] == Code.DEADLINE_EXCEEDED


@pytest.mark.parametrize("iterations", range(12))
async def test_a_client_that_goes_at_any_moment_ends_what_serves_it(rig: Rig, iterations: int) -> None:
    """Here while a stream ends by itself, whose last message has not left."""
    inference = Inference(EngineDouble(make_version()), EnvelopeLimits())
    session = StreamSession(inference, StreamWindow(4, 1 << 20), NO_DEADLINE, real_statuses=True)
    task = rig.run(lambda: session.run(rig.stream.read, rig.stream.write))
    await settle()
    engine = cast(EngineDouble, inference.engine)
    rig.stream.received(infer_request().SerializeToString())
    await settle()
    engine.submissions[0].answer(bytes(8))
    await settle()
    rig.stream.received(b"\xff")
    for _ in range(iterations):
        await asyncio.sleep(0)
    assert not task.done(), "the answer has not left"
    rig.server.known.clear()
    rig.stream.gone()
    task.cancel()
    await settle()
    assert task.done()
    assert (inference.tally.streams, rig.server.ends) == (0, {})


@pytest.mark.parametrize("iterations", range(4))
async def test_who_waits_is_let_go_when_the_client_is_gone(rig: Rig, iterations: int) -> None:
    task = rig.run(rig.copy)
    rig.stream.received(b"a")
    for _ in range(iterations):
        await asyncio.sleep(0)
    rig.server.known.clear()
    rig.stream.gone()
    await settle()
    assert task.done(), "without being cancelled"
    assert rig.server.ends == {}


async def test_a_front_end_that_no_longer_knows_the_call_ends_reading_and_writing(rig: Rig) -> None:
    rig.server.known.clear()
    for what in (rig.stream.read(), rig.stream.write(b"a"), rig.stream.write(b"b")):
        task = asyncio.ensure_future(what)
        await settle()
        assert isinstance(task.exception(), Cancelled)


async def test_an_end_that_the_front_end_cannot_send_is_told_as_internal(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = ServerDouble.finish

    def picky(front_end: ServerDouble, call: int, code: int, *rest: Any) -> bool:
        if code == Code.NOT_FOUND:
            raise ValueError("made up")
        return finish(front_end, call, code, *rest)

    async def fail() -> None:
        raise UnknownModel("nobody")

    monkeypatch.setattr(ServerDouble, "finish", picky)
    await rig.run(fail)
    assert rig.server.ends[CALL] == (Code.INTERNAL, BROKEN, ())


async def test_what_the_front_end_knows_of_a_message_comes_with_it(rig: Rig) -> None:
    seen: list[Handed] = []

    async def look() -> None:
        while await rig.stream.read() is not None:
            seen.append(rig.stream.handed())

    task = rig.run(look)
    await settle()
    events: list[tuple[Any, ...]] = [(b"a", 1, 500, None, 300), (b"b", 0, 0, (-1, "too many")), (None, 0, 0)]
    for event in events:
        rig.stream.received(*event)
        await settle()
    await task
    first, second = seen
    assert first == Handed(attempts=1, deadline_ns=500, arrived_ns=300)
    assert (str(second.over_quota), second._replace(over_quota=None)) == ("too many", Handed())


async def test_the_input_is_ended_by_the_front_end(rig: Rig) -> None:
    rig.stream.end_input()
    assert rig.server.stopped == [CALL]


async def test_events_that_come_when_nobody_waits_are_dropped(rig: Rig) -> None:
    rig.stream.received(b"a")
    rig.stream.sent()
    task = rig.run(rig.copy)
    await settle()
    task.cancel()
    await settle()
    rig.stream.received(b"b")
    rig.stream.sent()
    assert task.cancelled()
    assert rig.server.ends == {}
