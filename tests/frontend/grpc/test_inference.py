"""One inference: its outcome reaches the client, and whatever happens its memory is given back once."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

from appliance.domain.errors import NotReady, QueueFull, RunFailed
from appliance.domain.inference import NO_DEADLINE
from appliance.frontend.grpc.envelope import EnvelopeLimits
from appliance.frontend.grpc.inference import Inference
from appliance.frontend.grpc.status import Refused
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from appliance.frontend.statuses import Code
from tests.domain.sample import make_version
from tests.frontend.grpc.engine_double import EngineDouble
from tests.frontend.grpc.messages import infer_request

RESULT = bytes(range(8))


@pytest.fixture
def engine() -> EngineDouble:
    return EngineDouble(make_version())


@pytest.fixture
async def inference(engine: EngineDouble) -> Inference:
    return Inference(engine, EnvelopeLimits())


async def begin(
    inference: Inference, request: pb.ModelInferRequest, remaining_s: float | None = None
) -> asyncio.Task[bytes]:
    """Start an inference and let it reach the engine."""
    task = asyncio.ensure_future(inference.unary(request.SerializeToString(), remaining_s))
    await asyncio.sleep(0)
    return task


def counts(inference: Inference) -> tuple[int, int, int, int]:
    tally = inference.tally
    return tally.requests, tally.answered, tally.failed, tally.cancelled


async def test_an_answer_is_encoded_and_released(inference: Inference, engine: EngineDouble) -> None:
    task = await begin(inference, infer_request(request_id="7"))
    (submission,) = engine.submissions
    assert submission.request_id == "7"
    submission.answer(RESULT)
    response = pb.ModelInferResponse.FromString(await task)
    assert (response.id, list(response.raw_output_contents)) == ("7", [RESULT])
    assert submission.released == 1
    assert counts(inference) == (1, 1, 0, 0)


async def test_the_transports_deadline_is_the_engines_time(
    inference: Inference, engine: EngineDouble
) -> None:
    tasks = [await begin(inference, infer_request(), remaining) for remaining in (None, 0.25, 1e30)]
    assert [each.deadline_ns for each in engine.submissions] == [
        NO_DEADLINE,
        engine.clock_ns + 250_000_000,
        NO_DEADLINE,
    ]
    for submission in engine.submissions:
        submission.answer(RESULT)
    await asyncio.gather(*tasks)


async def test_an_error_names_the_request(inference: Inference, engine: EngineDouble) -> None:
    task = await begin(inference, infer_request(request_id="7"))
    engine.submissions[0].fail(RunFailed("model 'm' failed"))
    with pytest.raises(Refused) as refused:
        await task
    assert refused.value.status == (Code.INTERNAL, "[request id: 7] model 'm' failed", ())
    assert counts(inference) == (1, 0, 1, 0)


async def test_a_refusal_at_the_engines_front_end(inference: Inference, engine: EngineDouble) -> None:
    engine.refuse_submit = QueueFull("Exceeds maximum queue size", 5_000_000)
    with pytest.raises(Refused) as refused:
        await inference.unary(infer_request().SerializeToString(), None)
    assert refused.value.status.code is Code.RESOURCE_EXHAUSTED
    assert refused.value.status.metadata == (("grpc-retry-pushback-ms", "5"),)


async def test_garbage_has_no_request_to_name(inference: Inference) -> None:
    with pytest.raises(Refused) as refused:
        await inference.unary(b"\x3a\xff", None)
    assert refused.value.status.code is Code.INVALID_ARGUMENT
    assert refused.value.status.text.startswith(
        "[request id: <id_unknown>] the message is not a ModelInferRequest"
    )


async def test_a_client_that_goes_cancels_in_the_engine_at_once(
    inference: Inference, engine: EngineDouble
) -> None:
    task = await begin(inference, infer_request())
    task.cancel()
    await asyncio.sleep(0)
    assert engine.submissions[0].cancelled
    with pytest.raises(asyncio.CancelledError):
        await task
    assert counts(inference) == (1, 0, 0, 1)


async def test_an_answer_that_comes_too_late_is_released(inference: Inference, engine: EngineDouble) -> None:
    task = await begin(inference, infer_request())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    engine.submissions[0].answer(RESULT)
    assert engine.submissions[0].released == 1


async def test_an_answer_in_the_turn_of_the_cancellation_is_released(
    inference: Inference, engine: EngineDouble
) -> None:
    task = await begin(inference, infer_request())
    engine.submissions[0].answer(RESULT)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.submissions[0].released == 1


async def test_a_failure_to_encode_still_releases(inference: Inference, engine: EngineDouble) -> None:
    request = infer_request()
    request.outputs.add(name="y").parameters["classification"].int64_param = 1
    task = await begin(inference, request)
    inference.on_answer = Mock(side_effect=ValueError("odd"))
    submission = engine.submissions[0]
    submission.answer(bytes(16))
    with pytest.raises(ValueError, match="odd"):
        await task
    assert submission.released == 1


async def test_not_ready_is_told_before_anything_is_submitted(
    inference: Inference, engine: EngineDouble
) -> None:
    def resolve(name: str, version: str) -> object:
        raise NotReady("Request for unknown model: 'm' has no available versions")

    engine.resolve = resolve  # type: ignore[method-assign, assignment]
    with pytest.raises(Refused) as refused:
        await inference.unary(infer_request().SerializeToString(), None)
    assert refused.value.status.code is Code.UNAVAILABLE
    assert engine.submissions == []


async def test_a_request_that_nobody_waits_for_any_more_costs_nothing(
    inference: Inference, engine: EngineDouble
) -> None:
    task = await begin(inference, infer_request(request_id="7"), remaining_s=0.0)
    with pytest.raises(Refused) as refused:
        await task
    assert refused.value.status.code is Code.DEADLINE_EXCEEDED
    assert not engine.submissions
    assert engine.resolved == 0
