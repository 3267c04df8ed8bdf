"""A stream: order of finishing, errors in-band or as a status, bounded reading, an end that leaves nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from appliance.domain.errors import Cancelled, QueueFull, RunFailed
from appliance.domain.inference import NO_DEADLINE
from appliance.frontend.grpc.envelope import EnvelopeLimits
from appliance.frontend.grpc.inference import Inference
from appliance.frontend.grpc.status import Refused
from appliance.frontend.grpc.stream import Handed, StreamSession, StreamWindow
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from appliance.frontend.statuses import Code
from tests.domain.sample import make_version
from tests.frontend.grpc.engine_double import EngineDouble
from tests.frontend.grpc.messages import infer_request

RESULT = bytes(8)
ROOMY = 1 << 30


class StreamClient:
    """The client's side of one session, and the session's task."""

    def __init__(
        self, engine: EngineDouble, window: int = 4, real_statuses: bool = False, nbytes: int = ROOMY
    ) -> None:
        self.engine = engine
        self.inference = Inference(engine, EnvelopeLimits())
        self.session = StreamSession(self.inference, StreamWindow(window, nbytes), NO_DEADLINE, real_statuses)
        self.reads = 0
        self._requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.task = asyncio.ensure_future(self.session.run(self._read, self._answers.put))

    async def _read(self) -> bytes | None:
        self.reads += 1
        return await self._requests.get()

    async def send(self, *requests: pb.ModelInferRequest | bytes) -> None:
        for request in requests:
            self._requests.put_nowait(request if isinstance(request, bytes) else request.SerializeToString())
        await settle()

    def half_close(self) -> None:
        self._requests.put_nowait(None)

    async def receive(self) -> pb.ModelStreamInferResponse:
        return pb.ModelStreamInferResponse.FromString(await self._answers.get())


async def settle() -> None:
    """Let everything that can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def engine() -> EngineDouble:
    return EngineDouble(make_version())


async def test_answers_come_as_they_finish(engine: EngineDouble) -> None:
    client = StreamClient(engine)
    await client.send(infer_request(request_id="a"), infer_request(request_id="b"))
    engine.submissions[1].answer(RESULT)
    assert (await client.receive()).infer_response.id == "b"
    engine.submissions[0].answer(RESULT)
    assert (await client.receive()).infer_response.id == "a"
    client.half_close()
    await client.task
    assert [each.released for each in engine.submissions] == [1, 1]


async def test_the_clients_end_waits_for_every_answer(engine: EngineDouble) -> None:
    client = StreamClient(engine)
    await client.send(infer_request(request_id="a"))
    client.half_close()
    await settle()
    assert not client.task.done()
    engine.submissions[0].answer(RESULT)
    assert (await client.receive()).infer_response.id == "a"
    await client.task


async def test_errors_travel_in_band_and_the_stream_goes_on(engine: EngineDouble) -> None:
    client = StreamClient(engine)
    await client.send(infer_request("nobody", request_id="a"), infer_request(request_id="b"), b"\xff")
    unknown = await client.receive()
    assert unknown.error_message == "Request for unknown model: 'nobody' is not found"
    assert unknown.infer_response.id == "a"
    assert (await client.receive()).error_message.startswith("[request id: <id_unknown>] the message is not")
    engine.submissions[0].fail(RunFailed("it broke"))
    assert (await client.receive()).error_message == "[request id: b] it broke"
    await client.send(infer_request(request_id="c"))
    engine.submissions[1].answer(RESULT)
    assert (await client.receive()).infer_response.id == "c"
    client.half_close()
    await client.task


async def test_real_statuses_end_the_stream_and_cancel_the_rest(engine: EngineDouble) -> None:
    client = StreamClient(engine, real_statuses=True)
    await client.send(infer_request(request_id="a"), infer_request("nobody", request_id="b"))
    with pytest.raises(Refused) as refused:
        await client.task
    assert refused.value.status.code is Code.NOT_FOUND
    assert engine.submissions[0].cancelled


async def test_the_last_response_is_marked_when_asked(engine: EngineDouble) -> None:
    client = StreamClient(engine)
    request = infer_request()
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    await client.send(request, infer_request())
    engine.submissions[0].answer(RESULT)
    engine.submissions[1].answer(RESULT)
    assert (await client.receive()).infer_response.parameters["triton_final_response"].bool_param is True
    assert not (await client.receive()).infer_response.parameters
    client.half_close()
    await client.task


async def test_no_more_is_read_than_the_window_holds(engine: EngineDouble) -> None:
    client = StreamClient(engine, window=2)
    await client.send(*[infer_request() for _ in range(5)])
    assert (client.reads, len(engine.submissions)) == (2, 2)
    engine.submissions[0].answer(RESULT)
    await client.receive()
    await settle()
    assert (client.reads, len(engine.submissions)) == (3, 3)
    client.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await client.task


async def test_refused_messages_count_against_the_window_until_told(engine: EngineDouble) -> None:
    client = StreamClient(engine, window=1)
    await client.send(*[infer_request("nobody") for _ in range(3)])
    for _ in range(3):
        assert (await client.receive()).error_message
    client.half_close()
    await client.task


async def test_messages_are_read_while_those_under_way_are_not_too_many_bytes(engine: EngineDouble) -> None:
    size = len(infer_request().SerializeToString())
    client = StreamClient(engine, nbytes=size + 1)
    await client.send(*[infer_request() for _ in range(4)])
    assert (client.reads, len(engine.submissions)) == (2, 2), "the second begins within the bound"
    for number in range(3):
        engine.submissions[number].answer(RESULT)
        await client.receive()
        await settle()
        assert len(engine.submissions) == min(3 + number, 4)
    engine.submissions[3].answer(RESULT)
    client.half_close()
    await client.task


async def test_a_request_waits_for_memory_that_others_of_its_stream_hold(engine: EngineDouble) -> None:
    free = 2
    engine.memory = lambda _: (
        len(engine.submissions) - sum(each.released for each in engine.submissions) < free
    )
    client = StreamClient(engine)
    await client.send(*[infer_request(request_id=str(number)) for number in range(4)])
    assert (client.reads, len(engine.submissions)) == (3, 2), "it is read, and those behind it are not"
    for number in range(4):
        engine.submissions[number].answer(RESULT)
        assert (await client.receive()).infer_response.id == str(number)
        await settle()
    client.half_close()
    await client.task
    assert client.inference.tally.answered == 4


async def test_without_memory_of_its_own_to_wait_for_a_request_is_the_engines_to_refuse(
    engine: EngineDouble,
) -> None:
    engine.memory = lambda _: False
    client = StreamClient(engine)
    await client.send(infer_request())
    assert len(engine.submissions) == 1
    engine.submissions[0].answer(RESULT)
    await client.receive()
    engine.refuse_submit = QueueFull("no memory left for tensors")
    await client.send(infer_request())
    assert "no memory left" in (await client.receive()).error_message
    client.half_close()
    await client.task


async def test_what_changes_while_a_request_waits_for_memory_counts(engine: EngineDouble) -> None:
    client = StreamClient(engine)
    await client.send(infer_request())
    engine.memory = lambda _: False
    await client.send(infer_request(request_id="7"))
    engine.models.clear()
    engine.generation += 1
    engine.submissions[0].answer(RESULT)
    await client.receive()
    assert "is not found" in (await client.receive()).error_message
    assert len(engine.submissions) == 1
    client.half_close()
    await client.task


async def test_a_stream_that_ends_while_a_request_waits_for_memory_has_cancelled_it(
    engine: EngineDouble,
) -> None:
    client = StreamClient(engine)
    await client.send(infer_request())
    engine.memory = lambda _: False
    await client.send(infer_request())
    client.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await client.task
    tally = client.inference.tally
    assert (tally.requests, tally.cancelled) == (2, 2)


async def test_a_stop_leaves_a_request_that_waits_for_memory_to_be_answered(engine: EngineDouble) -> None:
    client = StreamClient(engine)
    await client.send(infer_request(request_id="a"))
    engine.memory = lambda _: False
    await client.send(infer_request(request_id="b"), infer_request(request_id="c"))
    client.session.stop()
    await settle()
    for number, request_id in enumerate("ab"):
        engine.submissions[number].answer(RESULT)
        assert (await client.receive()).infer_response.id == request_id
        await settle()
    with pytest.raises(Refused, match="Server is stopping"):
        await client.task
    assert len(engine.submissions) == 2, "what was not read yet is not taken"


async def test_a_cancelled_stream_leaves_nothing_behind(engine: EngineDouble) -> None:
    client = StreamClient(engine)
    await client.send(infer_request(), infer_request(), infer_request())
    engine.submissions[0].answer(RESULT)
    client.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await client.task
    assert [each.cancelled for each in engine.submissions[1:]] == [True, True]
    engine.submissions[1].fail(Cancelled("Request cancelled"))
    engine.submissions[2].answer(RESULT)
    assert [each.released for each in engine.submissions] == [1, 0, 1]
    assert client.inference.tally.streams == 0


async def test_a_stopping_front_end_answers_what_it_has_and_says_why(engine: EngineDouble) -> None:
    client = StreamClient(engine)
    await client.send(infer_request(request_id="a"))
    client.session.stop()
    await settle()
    assert not client.task.done()
    engine.submissions[0].answer(RESULT)
    assert (await client.receive()).infer_response.id == "a"
    with pytest.raises(Refused, match="Server is stopping") as refused:
        await client.task
    assert refused.value.status.code is Code.UNAVAILABLE


async def test_a_transport_that_serves_by_itself_ends_the_input_when_the_front_end_stops(
    engine: EngineDouble,
) -> None:
    """What it has read already and hands over is answered; only then the stream says why."""
    inference, left, written = Inference(engine, EnvelopeLimits()), asyncio.Queue[bytes | None](), []
    ends: list[str] = []

    async def write(message: bytes) -> None:
        written.append(pb.ModelStreamInferResponse.FromString(message).infer_response.id)

    session = StreamSession(
        inference, StreamWindow(4, ROOMY), NO_DEADLINE, False, end_input=lambda: ends.append("input")
    )
    task = asyncio.ensure_future(session.run(left.get, write))
    await settle()
    session.stop()
    left.put_nowait(infer_request(request_id="a").SerializeToString())
    await settle()
    assert (ends, len(engine.submissions), task.done()) == (["input"], 1, False)
    left.put_nowait(None)
    engine.submissions[0].answer(RESULT)
    with pytest.raises(Refused, match="Server is stopping"):
        await task
    assert written == ["a"]


async def test_a_front_end_that_stops_before_the_stream_begins_has_its_input_ended(
    engine: EngineDouble,
) -> None:
    left: asyncio.Queue[bytes | None] = asyncio.Queue()
    inference = Inference(engine, EnvelopeLimits())
    session = StreamSession(
        inference, StreamWindow(4, ROOMY), NO_DEADLINE, False, end_input=lambda: left.put_nowait(None)
    )
    session.stop()
    with pytest.raises(Refused, match="Server is stopping"):
        await session.run(left.get, never_write)


async def never_write(message: bytes) -> None:
    raise AssertionError("nothing to write")


async def test_what_was_tried_before_comes_with_its_attempts_and_its_deadline(engine: EngineDouble) -> None:
    known = [Handed(attempts=1, deadline_ns=500), Handed(attempts=1), Handed()]
    inference, left = Inference(engine, EnvelopeLimits()), asyncio.Queue[bytes | None]()
    session = StreamSession(inference, StreamWindow(4, ROOMY), 900, False, handed=lambda: known.pop(0))
    task = asyncio.ensure_future(session.run(left.get, never_write))
    for _ in range(3):
        left.put_nowait(infer_request().SerializeToString())
    await settle()
    told = [(each.attempts, each.deadline_ns) for each in engine.submissions]
    assert told == [(1, 500), (1, 900), (0, 900)]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_reader_that_fails_ends_the_stream_with_its_error(engine: EngineDouble) -> None:
    async def read() -> bytes | None:
        raise ConnectionResetError("gone")

    session = StreamSession(Inference(engine, EnvelopeLimits()), StreamWindow(4, ROOMY), NO_DEADLINE, False)
    with pytest.raises(ConnectionResetError):
        await session.run(read, never_write)
