"""The native front end itself, in this process, in front of an engine whose requests end when the test says so."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc import aio

from appliance.config.grpc import GrpcConfig
from appliance.config.http import HttpConfig
from appliance.config.quotas import QuotasConfig
from appliance.domain.errors import Cancelled, OperatorError, RunFailed
from appliance.domain.varint import encode_varint
from appliance.frontend.grpc.inference import Tally
from appliance.frontend.grpc.services import INFER, INFER_STREAM
from appliance.frontend.grpc.status import BROKEN
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from appliance.frontend.listening.sockets import Inherited
from appliance.frontend.port import Backend
from appliance.telemetry.snapshot import Snapshot
from tests.domain.sample import make_version
from tests.frontend.grpc.engine_double import EngineDouble, LogDouble
from tests.frontend.grpc.messages import infer_request
from tests.fronts import needs_native

if TYPE_CHECKING:
    from appliance.frontend.native.grpc import NativeGrpc

pytestmark = needs_native

RESULT = bytes(range(8))
SMALL = infer_request(request_id="7").SerializeToString()
METADATA = "/inference.GRPCInferenceService/ServerMetadata"
LARGE_ROWS = 8192
PATIENCE_S = 20.0
LEAVING = 128


def raising(error: BaseException) -> None:
    """For front ends that must not fail."""
    raise error


def no_figures() -> Snapshot:
    """Nobody asks over HTTP."""
    raise AssertionError


def made(
    engine: EngineDouble, config: GrpcConfig, failed: Callable[[BaseException], None] = raising
) -> NativeGrpc:
    """The gRPC side of a native front end, without anything that listens for HTTP."""
    from appliance.frontend.native.front_end import native_quotas
    from appliance.frontend.native.grpc import NativeGrpc
    from appliance.frontend.native.http import NativeHttp
    from appliance.frontend.native.kept import KeptSockets

    backend = Backend(engine=engine, log=LogDouble(), read=no_figures)
    quotas = native_quotas(QuotasConfig(), lambda what, **_: None)
    kept = KeptSockets(())
    return NativeGrpc(backend, config, failed, NativeHttp(HttpConfig(), kept), quotas, kept)


class Rig:
    """A front end that listens, its engine, and a client's channel to it."""

    def __init__(
        self, front_end: NativeGrpc, engine: EngineDouble, channel: Any, failures: list[BaseException]
    ) -> None:
        self.server = front_end
        self.failures = failures
        self.engine = engine
        self.channel = channel

    @property
    def tally(self) -> Tally:
        return self.server._services.inference.tally

    def begin(self, message: bytes = SMALL, timeout_s: float = 20.0) -> Any:
        return self.channel.unary_unary(INFER)(message, timeout=timeout_s)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Let the loop run until something came about."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():  # noqa: ASYNC110  it is the other thread's doing
                await asyncio.sleep(0.001)

    async def submitted(self, number: int = 1) -> None:
        await self.until(lambda: len(self.engine.submissions) >= number)

    async def gave_back(self) -> None:
        """Wait until no message lies in the front end's memory."""
        front_end: Any = self.server
        await self.until(lambda: front_end._dispatch._server.statistics()["bytes_in_flight"] == 0)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    engine = EngineDouble(make_version(max_batch_size=LARGE_ROWS))
    failures: list[BaseException] = []
    config = GrpcConfig(addresses=("127.0.0.1:0",))
    front_end = made(engine, config, failures.append)
    (address,) = await front_end.open()
    async with aio.insecure_channel(address) as channel:
        yield Rig(front_end, engine, channel, failures)
    await front_end.close()


@pytest.fixture
def no_collector() -> Iterator[None]:
    """In the daemon the cycle collector comes so seldom that memory must not wait for it."""
    gc.disable()
    yield
    gc.enable()


async def test_an_answer(rig: Rig) -> None:
    call = rig.begin()
    await rig.submitted()
    rig.engine.submissions[0].answer(RESULT)
    response = pb.ModelInferResponse.FromString(await call)
    assert (response.id, response.raw_output_contents[0]) == ("7", RESULT)
    assert (rig.tally.requests, rig.tally.answered) == (1, 1)


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
    assert rig.tally.cancelled == 1


async def test_a_cancelled_call_leaves_the_engine(rig: Rig) -> None:
    call = rig.begin()
    await rig.submitted()
    call.cancel()
    await rig.until(lambda: rig.engine.submissions[0].cancelled)
    rig.engine.submissions[0].fail(Cancelled("Request cancelled"))
    assert rig.tally.cancelled == 1


LARGE = 1 << 20
WATCH = "/grpc.health.v1.Health/Watch"
REFLECT = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        pytest.param(INFER_STREAM, b"\xff" * LARGE, id="no message"),
        pytest.param(INFER_STREAM, b"\x3a" + encode_varint(LARGE) + bytes(LARGE), id="no model"),
        pytest.param(
            INFER_STREAM, infer_request("nobody", raw=bytes(LARGE)).SerializeToString(), id="no such model"
        ),
        pytest.param(WATCH, b"\x0a" + encode_varint(LARGE) + b"x" * LARGE, id="watch"),
        pytest.param(REFLECT, b"\x1a" + encode_varint(LARGE) + b"x" * LARGE, id="reflection"),
    ],
)
@pytest.mark.usefixtures("no_collector")
async def test_a_stream_that_was_answered_keeps_no_message(rig: Rig, path: str, message: bytes) -> None:
    stream = rig.channel.stream_stream(path)(timeout=60)
    await stream.write(message)
    assert await stream.read()
    await rig.gave_back()
    assert not stream.done(), "it waits for the next message"


@pytest.mark.usefixtures("no_collector")
async def test_a_stream_that_ends_with_a_status_keeps_no_message(rig: Rig) -> None:
    stream = rig.channel.stream_stream(INFER_STREAM)(timeout=60, metadata=(("triton_grpc_error", "true"),))
    await stream.write(b"\xff" * LARGE)
    with pytest.raises(aio.AioRpcError):
        await stream.read()
    await rig.gave_back()


@pytest.mark.usefixtures("no_collector")
async def test_a_large_message_of_a_stream_goes_back_before_its_answer(rig: Rig) -> None:
    request = infer_request(shape=(LARGE_ROWS, 4), raw=bytes(16 * LARGE_ROWS))
    stream = rig.channel.stream_stream(INFER_STREAM)(timeout=60)
    await stream.write(request.SerializeToString())
    await rig.submitted()
    await rig.gave_back()


async def test_a_text_that_cannot_be_sent_is_made_one_that_can(rig: Rig) -> None:
    call = rig.begin()
    await rig.submitted()
    rig.engine.submissions[0].fail(RunFailed("no file 'a\udcff'"))
    with pytest.raises(aio.AioRpcError) as failed:
        await call
    assert failed.value.details() == "[request id: 7] no file 'a?'"


async def test_a_defect_ends_its_own_call_and_is_logged(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from appliance.frontend.native.dispatch import Dispatch

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


async def test_of_many_streams_whose_client_went_some_end_in_a_turn(rig: Rig) -> None:
    front_end: Any = rig.server
    streams = front_end._dispatch._streams
    watches = [rig.channel.unary_stream(WATCH)(b"") for _ in range(3 * LEAVING)]
    for watch in watches:
        await watch.read()
    assert len(streams) == len(watches)
    ended: list[int] = []
    for _, task in streams.values():
        task.add_done_callback(lambda _: ended.append(1))
    for watch in watches:
        watch.cancel()
    most = 0
    async with asyncio.timeout(PATIENCE_S):
        while streams:
            before = len(ended)
            await asyncio.sleep(0)
            most = max(most, len(ended) - before)
    assert most <= LEAVING


async def test_a_front_end_that_fails_says_so_once_and_is_watched_no_more(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> list[Any]:
        raise RuntimeError("the front end's thread has failed")

    watched: Any = rig.server
    dispatch = watched._dispatch
    call = rig.begin()
    await rig.submitted()
    with monkeypatch.context() as patched:
        patched.setattr(dispatch, "_poll", broken)
        rig.begin()
        await rig.until(lambda: bool(rig.failures))
    assert not asyncio.get_running_loop().remove_reader(dispatch._server.fileno()), (
        "its descriptor stays readable"
    )
    await rig.server.close()
    assert [str(error) for error in rig.failures] == ["the front end's thread has failed"]
    assert rig.engine.submissions[0].cancelled
    with pytest.raises(aio.AioRpcError):
        await call


async def test_closing_cuts_what_is_under_way(rig: Rig) -> None:
    call = rig.begin()
    stream = rig.channel.stream_stream(INFER_STREAM)(timeout=20)
    await stream.write(SMALL)
    await rig.submitted(2)
    await rig.server.close()
    await rig.server.close()
    assert all(submission.cancelled for submission in rig.engine.submissions)
    for cut in (call, stream.read()):
        with pytest.raises(aio.AioRpcError) as failed:
            await cut
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert (rig.tally.requests, rig.tally.cancelled, rig.tally.streams) == (2, 2, 0)


async def test_draining_waits_for_what_is_under_way_and_lets_its_answer_leave(rig: Rig) -> None:
    call = rig.begin()
    await rig.submitted()
    draining = asyncio.ensure_future(rig.server.drain(20))
    rig.engine.submissions[0].answer(RESULT)
    await draining
    await rig.server.close()
    assert await call


async def test_draining_waits_no_longer_than_the_grace(rig: Rig) -> None:
    call = rig.begin()
    await rig.submitted()
    await rig.server.drain(0.01)
    assert not rig.engine.submissions[0].cancelled
    await rig.server.close()
    with pytest.raises(aio.AioRpcError):
        await call
    assert rig.engine.submissions[0].cancelled


async def test_an_inherited_socket_is_accepted_from_when_models_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from appliance.frontend.native import ports

    engine, config = EngineDouble(make_version()), GrpcConfig(addresses=("systemd", "127.0.0.1:0"))
    given = socket.create_server(("127.0.0.1", 0))
    sockets = (Inherited("unknown", given.detach()),)
    monkeypatch.setattr(ports, "inherited", lambda *_: sockets)
    front_end = made(engine, config)
    inherited, own = await front_end.open()
    try:
        with socket.create_connection(("127.0.0.1", int(inherited.rsplit(":", 1)[1]))) as waiting:
            channel: Any
            async with aio.insecure_channel(own) as channel:
                await channel.unary_unary(METADATA)(b"", timeout=PATIENCE_S)
            assert front_end.figures().counts["connections_total"] == 1
            front_end.admit()
            async with aio.insecure_channel(inherited) as channel:
                await channel.unary_unary(METADATA)(b"", timeout=PATIENCE_S)
            assert front_end.figures().counts["connections_total"] == 3
            waiting.close()
    finally:
        await front_end.close()


async def test_certificates_that_the_front_end_refuses_are_the_operators(tmp_path: Path) -> None:
    config = GrpcConfig(
        addresses=("127.0.0.1:0",), tls_certificate=str(tmp_path / "c"), tls_key=str(tmp_path / "k")
    )
    front_end = made(EngineDouble(make_version()), config)
    with pytest.raises(OperatorError, match=r"grpc\.tls_certificate: .* cannot be read: No such file"):
        await front_end.open()
    await front_end.close()


async def test_a_front_end_that_cannot_be_made_leaves_no_socket_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    config = GrpcConfig(addresses=(address,), keepalive_s=1e300)
    front_end = made(EngineDouble(make_version()), config)
    with pytest.raises(OperatorError, match=r"the native front end cannot be opened: limit 'keepalive_ms'"):
        await front_end.open()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1])), timeout=10)
    await front_end.close()
