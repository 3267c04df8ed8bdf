"""The native door itself, in this process, in front of an engine whose requests end when the test says so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from appliance.door.door import DoorConfig, DoorKind, FrontDoor
from appliance.door.failure import BROKEN
from appliance.door.services import INFER, INFER_STREAM
from appliance.door.wire_pb import inference_pb2 as pb
from appliance.errors import Cancelled, OperatorError
from tests.door.engine_double import EngineDouble, LogDouble
from tests.door.messages import infer_request
from tests.doors import needs_native
from tests.words.sample import make_version

pytestmark = needs_native

RESULT = bytes(range(8))
SMALL = infer_request(request_id="7").SerializeToString()
METADATA = "/inference.GRPCInferenceService/ServerMetadata"
LARGE_ROWS = 8192


class Rig:
    """A door that listens, its engine, and a client's channel to it."""

    def __init__(self, door: FrontDoor, engine: EngineDouble, channel: Any) -> None:
        self.door = door
        self.engine = engine
        self.channel = channel

    def begin(self, message: bytes = SMALL, timeout_s: float = 20.0) -> Any:
        return self.channel.unary_unary(INFER)(message, timeout=timeout_s)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Let the loop run until something came about."""
        async with asyncio.timeout(20):
            while not holds():  # noqa: ASYNC110  it is the other thread's doing
                await asyncio.sleep(0.001)

    async def submitted(self, number: int = 1) -> None:
        await self.until(lambda: len(self.engine.submissions) >= number)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    from appliance.door.choice import make_door

    engine = EngineDouble(make_version(max_batch_size=LARGE_ROWS))
    door = make_door(DoorKind.NATIVE, engine, DoorConfig(addresses=("127.0.0.1:0",)), LogDouble())
    (address,) = await door.open()
    async with aio.insecure_channel(address) as channel:
        yield Rig(door, engine, channel)
    await door.close()


async def test_an_answer(rig: Rig) -> None:
    call = rig.begin()
    await rig.submitted()
    rig.engine.submissions[0].answer(RESULT)
    response = pb.ModelInferResponse.FromString(await call)
    assert (response.id, response.raw_output_contents[0]) == ("7", RESULT)
    figures = rig.door.statistics()
    assert (figures.requests, figures.answered, figures.in_flight) == (1, 1, 0)


async def test_a_large_message_arrives_whole(rig: Rig) -> None:
    row = bytes(range(16))
    request = infer_request(request_id="7", shape=(LARGE_ROWS, 4), raw=row * LARGE_ROWS)
    call = rig.begin(request.SerializeToString())
    await rig.submitted()
    assert rig.engine.submissions[0].tensors[0] == row * LARGE_ROWS
    rig.engine.submissions[0].answer(RESULT * LARGE_ROWS)
    response = pb.ModelInferResponse.FromString(await call)
    assert response.raw_output_contents[0] == RESULT * LARGE_ROWS


async def test_the_clients_deadline_is_the_engines_and_its_end_a_cancellation(rig: Rig) -> None:
    rig.engine.clock_ns = 0
    call = rig.begin(timeout_s=0.2)
    with pytest.raises(aio.AioRpcError) as late:
        await call
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    (submission,) = rig.engine.submissions
    assert 0 < submission.deadline_ns < 1 << 62
    await rig.until(lambda: submission.cancelled)
    submission.answer(RESULT)
    assert submission.released == 1
    assert rig.door.statistics().cancelled == 1


async def test_a_cancelled_call_leaves_the_engine(rig: Rig) -> None:
    call = rig.begin()
    await rig.submitted()
    call.cancel()
    await rig.until(lambda: rig.engine.submissions[0].cancelled)
    rig.engine.submissions[0].fail(Cancelled("Request cancelled"))
    assert rig.door.statistics().cancelled == 1


async def test_a_defect_ends_its_own_call_and_is_logged(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from appliance.door.native_dispatch import Dispatch

    def broken(*_: object) -> None:
        raise ZeroDivisionError("made up")

    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
        patched.setattr(Dispatch, "_answer", broken)
        with pytest.raises(aio.AioRpcError) as failed:
            await rig.channel.unary_unary(METADATA)(b"", timeout=20)
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert failed.value.details() == BROKEN
    assert "made up" in caplog.text
    assert await rig.channel.unary_unary(METADATA)(b"", timeout=20)


async def test_closing_cuts_what_is_under_way(rig: Rig) -> None:
    call = rig.begin()
    stream = rig.channel.stream_stream(INFER_STREAM)(timeout=20)
    await stream.write(SMALL)
    await rig.submitted(2)
    await rig.door.close()
    await rig.door.close()
    assert all(submission.cancelled for submission in rig.engine.submissions)
    for cut in (call, stream.read()):
        with pytest.raises(aio.AioRpcError) as failed:
            await cut
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    figures = rig.door.statistics()
    assert (figures.cancelled, figures.in_flight, figures.streams) == (2, 0, 0)


async def test_draining_waits_for_what_is_under_way_and_lets_its_answer_leave(rig: Rig) -> None:
    call = rig.begin()
    await rig.submitted()
    draining = asyncio.ensure_future(rig.door.drain(20))
    rig.engine.submissions[0].answer(RESULT)
    await draining
    await rig.door.close()
    assert await call


async def test_draining_waits_no_longer_than_the_grace(rig: Rig) -> None:
    call = rig.begin()
    await rig.submitted()
    await rig.door.drain(0.01)
    assert not rig.engine.submissions[0].cancelled
    await rig.door.close()
    with pytest.raises(aio.AioRpcError):
        await call
    assert rig.engine.submissions[0].cancelled


async def test_certificates_that_the_door_refuses_are_the_operators(tmp_path: Path) -> None:
    from appliance.door.choice import make_door

    config = DoorConfig(
        addresses=("127.0.0.1:0",), tls_certificate=str(tmp_path / "c"), tls_key=str(tmp_path / "k")
    )
    door = make_door(DoorKind.NATIVE, EngineDouble(make_version()), config, LogDouble())
    with pytest.raises(OperatorError, match=r"grpc\.tls_certificate: .* cannot be read: No such file"):
        await door.open()
    await door.close()
