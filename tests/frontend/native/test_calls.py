"""ModelInfer calls of the native front end: each gets one end, memory goes back, counts are the other front end's."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
from typing import Any, cast

import pytest

from appliance.config.telemetry import TraceConfig
from appliance.core.scheduling.planning import Planning
from appliance.domain.errors import Cancelled, QueueFull, RunFailed
from appliance.domain.inference import NO_DEADLINE
from appliance.frontend.grpc.envelope import EnvelopeLimits
from appliance.frontend.grpc.inference import Caller, Inference
from appliance.frontend.grpc.status import BROKEN, Refused
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from appliance.frontend.native.calls import KEPT_BYTES_MAX, InferCalls
from appliance.frontend.statuses import Code
from appliance.telemetry.trace import Tracer
from tests.domain.sample import make_version
from tests.engine.rig import Rig as EngineRig
from tests.frontend.grpc.engine_double import EngineDouble
from tests.frontend.grpc.messages import infer_request
from tests.frontend.native.server_double import ServerDouble

RESULT = bytes(range(8))
REQUEST = infer_request(request_id="7").SerializeToString()


class SinkDouble:
    """Keeps lines."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write(self, line: bytes) -> None:
        self.lines.append(line)


class Rig:
    """An engine, a front end and the calls between them."""

    def __init__(self) -> None:
        self.engine = EngineDouble(make_version())
        self.server = ServerDouble()
        self.inference = Inference(self.engine, EnvelopeLimits())
        self.calls = InferCalls(cast(Any, self.server), self.inference)

    def begin(self, call: int, message: bytes | memoryview = REQUEST, deadline_ns: int = 0) -> None:
        self.server.known.add(call)
        self.calls.begin(call, message, deadline_ns)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        tally = self.inference.tally
        return tally.requests, tally.answered, tally.failed, tally.cancelled


@pytest.fixture
async def rig() -> Rig:
    return Rig()


async def test_an_answer_is_sent_and_its_memory_given_back(rig: Rig) -> None:
    rig.begin(1)
    assert len(rig.calls) == 1
    rig.engine.submissions[0].answer(RESULT)
    response = pb.ModelInferResponse.FromString(rig.server.replies[1])
    assert (response.id, list(response.raw_output_contents)) == ("7", [RESULT])
    assert rig.engine.submissions[0].released == 1
    assert (rig.counts, len(rig.calls)) == ((1, 1, 0, 0), 0)


async def test_the_engine_is_told_who_asks(rig: Rig) -> None:
    rig.server.known |= {1, 2}
    rig.calls.begin(1, REQUEST, 0, 0, Caller("camera"))
    rig.begin(2)
    assert [each.client for each in rig.engine.submissions] == ["camera", ""]


async def test_a_traced_call_is_told_when_its_answer_was_given(rig: Rig) -> None:
    sink = SinkDouble()
    inference = Inference(rig.engine, EnvelopeLimits(), Tracer(TraceConfig(one_in=2), cast(Any, sink), print))
    calls = InferCalls(cast(Any, rig.server), inference)
    for call in (1, 2, 3):
        rig.server.known.add(call)
        calls.begin(call, REQUEST, 0, 0, inference.caller(Caller("camera"), "/rpc", 7, (("key", "value"),)))
    traces = [each.trace for each in rig.engine.submissions]
    assert [trace is not None for trace in traces] == [False, True, False]
    assert traces[1] is not None
    traces[1].attributes["appliance.request.id"] = "7"  # as the engine does
    for submission in rig.engine.submissions:
        assert not sink.lines
        submission.answer(RESULT)
        if submission.trace is not None:
            break
    assert traces[1].replied_ns > traces[1].arrived_ns == 7
    (line,) = sink.lines
    assert b'"camera"' in line


async def test_calls_may_end_in_any_order(rig: Rig) -> None:
    for call in (1, 2, 3):
        rig.begin(call, infer_request(request_id=str(call)).SerializeToString())
    for submission in reversed(rig.engine.submissions):
        submission.answer(RESULT)
    assert {call: pb.ModelInferResponse.FromString(raw).id for call, raw in rig.server.replies.items()} == {
        1: "1",
        2: "2",
        3: "3",
    }


async def test_deadlines_are_the_engines_time(rig: Rig) -> None:
    rig.begin(1, deadline_ns=0)
    rig.begin(2, deadline_ns=rig.engine.clock_ns + 5)
    assert [each.deadline_ns for each in rig.engine.submissions] == [NO_DEADLINE, rig.engine.clock_ns + 5]


async def test_what_is_late_already_is_not_read(rig: Rig) -> None:
    rig.begin(1, b"\xff not even a message", deadline_ns=rig.engine.clock_ns)
    assert rig.server.ends[1][:2] == (
        Code.DEADLINE_EXCEEDED,
        "[request id: <id_unknown>] Request timeout expired before it was read",
    )
    assert (rig.counts, rig.engine.submissions) == ((1, 0, 1, 0), [])


async def test_refusals_come_with_status_text_and_trailers(rig: Rig) -> None:
    rig.begin(1, b"\x3a\xff")
    rig.engine.refuse_submit = QueueFull("Exceeds maximum queue size", 5_000_000)
    rig.begin(2)
    rig.engine.refuse_submit = None
    rig.begin(3)
    rig.engine.submissions[0].fail(RunFailed("model 'm' failed"))
    assert rig.server.ends[1][0] == Code.INVALID_ARGUMENT
    assert rig.server.ends[2] == (
        Code.RESOURCE_EXHAUSTED,
        "[request id: 7] Exceeds maximum queue size",
        (("grpc-retry-pushback-ms", "5"),),
    )
    assert rig.server.ends[3] == (Code.INTERNAL, "[request id: 7] model 'm' failed", ())
    assert (rig.counts, len(rig.calls)) == ((3, 0, 3, 0), 0)


async def test_a_client_that_goes_cancels_in_the_engine_and_a_late_answer_is_released(rig: Rig) -> None:
    rig.begin(1)
    rig.calls.gone(1)
    rig.calls.gone(1)
    (submission,) = rig.engine.submissions
    assert submission.cancelled
    submission.answer(RESULT)
    assert (submission.released, rig.server.replies, rig.counts) == (1, {}, (1, 0, 0, 1))


async def test_a_client_that_went_unnoticed_costs_nothing(rig: Rig) -> None:
    rig.begin(1)
    rig.server.known.clear()
    rig.engine.submissions[0].answer(RESULT)
    rig.calls.gone(1)
    assert (rig.engine.submissions[0].released, len(rig.calls)) == (1, 0)


async def test_closing_lets_go_of_everything(rig: Rig) -> None:
    for call in (1, 2):
        rig.begin(call)
    rig.calls.abandon()
    assert all(submission.cancelled for submission in rig.engine.submissions)
    assert (rig.counts, len(rig.calls)) == ((2, 0, 0, 2), 0)


async def test_a_defect_ends_its_own_request_and_is_logged(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bool:
        raise ZeroDivisionError("made up")

    rig.begin(1)
    (submission,) = rig.engine.submissions
    with caplog.at_level(logging.ERROR), monkeypatch.context() as patched:
        patched.setattr(ServerDouble, "reply", broken)
        submission.answer(RESULT)
    assert rig.server.ends[1] == (Code.INTERNAL, BROKEN, ())
    assert submission.released == 1
    assert "made up" in caplog.text
    assert rig.inference.tally.failed == 1
    rig.begin(2)
    rig.engine.submissions[1].answer(RESULT)
    assert 2 in rig.server.replies


@pytest.mark.parametrize("what", ["text", "anything"])
async def test_an_end_that_the_front_end_cannot_send_is_told_as_internal_and_never_raised(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    finish = ServerDouble.finish

    def picky(front_end: ServerDouble, call: int, code: int, *rest: Any) -> bool:
        if code == Code.RESOURCE_EXHAUSTED:
            raise (ValueError if what == "text" else ZeroDivisionError)("made up")
        return finish(front_end, call, code, *rest)

    monkeypatch.setattr(ServerDouble, "finish", picky)
    rig.begin(1)
    with caplog.at_level(logging.ERROR):
        rig.engine.submissions[0].fail(QueueFull("full", 1))
    assert rig.server.ends[1] == (Code.INTERNAL, BROKEN, ())
    assert "made up" in caplog.text
    assert rig.counts == (1, 0, 1, 0)


async def test_a_text_that_no_encoding_has_is_sent_without_what_cannot_be(rig: Rig) -> None:
    rig.begin(1)
    rig.engine.submissions[0].fail(RunFailed("no file 'a\udcff'"))
    assert rig.server.ends[1] == (Code.INTERNAL, "[request id: 7] no file 'a?'", ())


async def test_a_message_in_the_interpreters_memory_is_not_kept_either(rig: Rig) -> None:
    raw = bytes(range(256)) * (KEPT_BYTES_MAX // 256)
    message = infer_request(request_id="7", shape=(len(raw) // 16, 4), raw=raw).SerializeToString()
    engine = EngineDouble(make_version(max_batch_size=1024))
    calls = InferCalls(cast(Any, rig.server), Inference(engine, EnvelopeLimits()))
    held = sys.getrefcount(message)
    calls.begin(1, message, 0)
    assert engine.submissions[0].tensors == (raw,)
    assert sys.getrefcount(message) == held


async def test_typed_contents_are_not_kept(rig: Rig) -> None:
    engine = EngineDouble(make_version(max_batch_size=1024))
    calls: Any = InferCalls(cast(Any, rig.server), Inference(engine, EnvelopeLimits()))
    request = infer_request(request_id="7", shape=(KEPT_BYTES_MAX // 16, 4), raw=None)
    request.inputs[0].contents.fp32_contents.extend(range(KEPT_BYTES_MAX // 4))
    calls.begin(1, request.SerializeToString(), 0)
    assert calls._open[1].checked.intake.head == b""
    rig.server.known.add(1)
    engine.submissions[0].answer(RESULT * (KEPT_BYTES_MAX // 16))
    assert pb.ModelInferResponse.FromString(rig.server.replies[1]).id == "7"


async def test_a_large_message_is_read_where_it_lies_and_not_kept(rig: Rig) -> None:
    memory = bytearray(REQUEST)
    rig.begin(1, memoryview(memory).toreadonly())
    memory.clear()  # raises BufferError while anybody still looks at it
    (submission,) = rig.engine.submissions
    assert (submission.request_id, submission.tensors[0]) == ("7", infer_request().raw_input_contents[0])
    submission.answer(RESULT)
    assert pb.ModelInferResponse.FromString(rig.server.replies[1]).id == "7"


@pytest.mark.parametrize(
    ("why", "code"),
    [
        ("full", Code.RESOURCE_EXHAUSTED),
        ("stopping", Code.UNAVAILABLE),
        ("invalid", Code.INVALID_ARGUMENT),
        ("unreadable", Code.INVALID_ARGUMENT),
        ("late", Code.DEADLINE_EXCEEDED),
    ],
)
async def test_a_refused_message_is_let_go_at_once_and_not_by_the_cycle_collector(
    rig: Rig, why: str, code: Code
) -> None:
    real = EngineRig(make_version(max_batch_size=1024), Planning(max_queued_requests=1))
    calls = InferCalls(cast(Any, rig.server), Inference(real.engine, EnvelopeLimits()))
    raw = bytes(1024 * 16 - (why == "invalid"))
    message = infer_request(shape=(1024, 4), raw=raw).SerializeToString()
    rig.server.known |= set(range(100))
    if why == "full":
        calls.begin(98, message, 0)
        real.turns()
        calls.begin(99, message, 0)
    if why == "stopping":
        real.engine.drain()
    memories = [bytearray(message[:-1] if why == "unreadable" else message) for _ in range(50)]
    gc.collect()
    gc.disable()
    try:
        for call, memory in enumerate(memories):
            calls.begin(call, memoryview(memory).toreadonly(), int(why == "late"))
            memory.clear()  # raises BufferError while anybody still looks at it
    finally:
        gc.enable()
    assert {rig.server.ends[call][0] for call in range(50)} == {code}


@pytest.mark.parametrize("broken", [b"\x3a\xff", b"\x1a\x01\xff", REQUEST[:-1], b"\xff" * 20])
async def test_a_broken_message_is_refused_alike_wherever_it_lies(rig: Rig, broken: bytes) -> None:
    rig.begin(1, broken)
    rig.begin(2, memoryview(broken))
    assert rig.server.ends[1] == rig.server.ends[2]
    assert rig.server.ends[1][0] == Code.INVALID_ARGUMENT


async def test_both_front_ends_count_alike(rig: Rig) -> None:
    """The same story through the grpcio front end's path."""
    other = Rig()
    story = ["answer", "fail", "cancel", "garbage", "late", "answer"]
    for number, what in enumerate(story):
        message = b"\xff" if what == "garbage" else REQUEST
        rig.begin(number, message, rig.engine.clock_ns if what == "late" else 0)
        task = asyncio.ensure_future(other.inference.unary(message, -1.0 if what == "late" else None))
        await asyncio.sleep(0)
        for each in (rig, other):
            submission = each.engine.submissions[-1] if each.engine.submissions else None
            if what == "answer":
                assert submission is not None
                submission.answer(RESULT)
            elif what == "fail":
                assert submission is not None
                submission.fail(RunFailed("no"))
        if what == "cancel":
            rig.calls.gone(number)
            rig.engine.submissions[-1].fail(Cancelled("Request cancelled"))
            task.cancel()
        with contextlib.suppress(Refused, asyncio.CancelledError):
            await task
    assert rig.counts == other.counts == (6, 2, 3, 1)
