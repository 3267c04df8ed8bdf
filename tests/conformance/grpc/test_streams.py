"""ModelStreamInfer through the public client and by hand."""

from __future__ import annotations

import queue
import random
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton

from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from tests.appliance_process import ApplianceProcess
from tests.conformance.grpc.streaming import Sending, ask, leased, teach_streamed
from tests.conformance.grpc.stub import Stub, failure_of
from tests.fronts import EVERY_WAY, TEMPLATED

pytestmark = pytest.mark.parametrize("way", EVERY_WAY, indirect=True)
NATIVE_KINDS = ("plain", "named", "final", "wide", "outputs", "version")
"""Those of KINDS that the front end can serve by itself."""
EACH = 5


@pytest.fixture(autouse=True)
def _taught(way: str, server: ApplianceProcess, stub: Stub) -> None:
    """Where the front end serves by itself, it does so from the first request on."""
    if way == TEMPLATED:
        teach_streamed(server, stub, ask("pair", "t"))


def test_answers_come_as_they_finish(stub: Stub) -> None:
    sending = Sending(ask("snail", "last"), ask("pair", "first"))
    answers = stub.stream(sending)
    assert next(answers).infer_response.id == "first"
    sending.end()
    assert [answer.infer_response.id for answer in answers] == ["last"]


def test_errors_are_told_in_band_and_the_stream_goes_on(stub: Stub) -> None:
    sending = Sending(ask("nobody", "a"), b"\xff", ask("failing", "c"))
    answers = stub.stream(sending)
    told = {answer.infer_response.id: answer.error_message for answer in (next(answers) for _ in range(3))}
    assert told["a"].startswith("Request for unknown model: 'nobody' is not found")
    assert told[""].startswith("[request id: <id_unknown>] the message is not a ModelInferRequest")
    assert told["c"].startswith("[request id: c] model 'failing' failed")
    sending.send(ask("pair", "d"))
    answer = next(answers)
    assert (answer.error_message, answer.infer_response.id) == ("", "d")
    assert answer.infer_response.raw_output_contents[0] == b"\1\2\3\4"
    sending.end()
    assert list(answers) == []


def test_real_statuses_end_the_stream(stub: Stub) -> None:
    answers = stub.stream(Sending(ask("nobody", "a")), metadata=(("triton_grpc_error", "true"),))
    with pytest.raises(grpc.RpcError) as ended:
        next(answers)
    failure = failure_of(ended.value)
    assert failure.code == "NOT_FOUND"
    assert failure.text.startswith("Request for unknown model")


def test_the_last_response_is_marked_when_asked(stub: Stub) -> None:
    sending = Sending(ask("pair", "a", triton_enable_empty_final_response=True))
    sending.end()
    (answer,) = stub.stream(sending)
    assert answer.infer_response.parameters["triton_final_response"].bool_param is True


def test_more_requests_than_the_window_are_all_answered(
    way: str, stub: Stub, server: ApplianceProcess
) -> None:
    before = leased(server)
    answers = stub.stream(ask("pair", str(number)) for number in range(2000))
    ids = [answer.infer_response.id for answer in answers]
    assert sorted(ids) == sorted(str(number) for number in range(2000))
    check_leased(way, leased(server) - before, 2000)


def kinds() -> dict[str, Any]:
    """Requests of every kind, most of which only the engine serves."""
    add_sub = pb.ModelInferRequest(model_name="add_sub")
    for name in ("INPUT0", "INPUT1"):
        add_sub.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        add_sub.raw_input_contents.append(np.arange(16, dtype=np.int32).tobytes())
    chosen = pb.ModelInferRequest()
    chosen.CopyFrom(add_sub)
    chosen.outputs.add(name="OUTPUT1")
    typed = pb.ModelInferRequest(model_name="add_sub")
    for name in ("INPUT0", "INPUT1"):
        typed.inputs.add(name=name, datatype="INT32", shape=[1, 16]).contents.int_contents.extend(range(16))
    classes = pb.ModelInferRequest()
    classes.CopyFrom(add_sub)
    classes.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = 2
    text = pb.ModelInferRequest(model_name="identity_bytes")
    text.inputs.add(name="x", datatype="BYTES", shape=[1, 1])
    text.raw_input_contents.append(b"\2\0\0\0ab")
    old = ask("pair", "")
    old.model_version = "3"
    short = ask("pair", "")
    short.raw_input_contents[0] = b"\1"
    return {
        "plain": ask("pair", ""),
        "named": ask("pair", "", flag=True),
        "final": ask("pair", "", triton_enable_empty_final_response=True),
        "version": old,
        "wide": add_sub,
        "outputs": chosen,
        "typed": typed,
        "classes": classes,
        "text": text,
        "short": short,
        "unknown": ask("nobody", ""),
        "failing": ask("failing", ""),
    }


def test_requests_of_all_kinds_on_one_stream_are_answered_as_alone(
    way: str, stub: Stub, server: ApplianceProcess
) -> None:
    asked = kinds()
    said = {kind: alone(stub, request) for kind, request in asked.items()}
    if way == TEMPLATED:
        teach_streamed(server, stub, *(asked[kind] for kind in NATIVE_KINDS))
    messages = []
    for kind, request in asked.items():
        for number in range(EACH):
            message = pb.ModelInferRequest()
            message.CopyFrom(request)
            message.id = f"{kind}/{number}"
            messages.append(message)
    random.Random(7).shuffle(messages)
    before = leased(server)
    told = {answer.infer_response.id: answer for answer in stub.stream(iter(messages))}
    assert set(told) == {message.id for message in messages}
    for request_id, answer in told.items():
        kind = request_id.partition("/")[0]
        last = answer.infer_response.parameters.pop("triton_final_response", None)
        assert (last is not None and last.bool_param) == (kind == "final")
        answer.infer_response.id = ""
        expected = said[kind]
        if isinstance(expected, str):
            assert answer.error_message == expected.replace("<id_unknown>", request_id), request_id
        else:
            assert (answer.error_message, answer.infer_response) == ("", expected), request_id
    # What only the engine serves may end a lease of the same model for a while.
    check_leased(way, leased(server) - before, EACH * len(NATIVE_KINDS), at_least=EACH)


def check_leased(way: str, came: int, all_of_them: int, at_least: int = -1) -> None:
    """As many answers came without the engine as must have: all of them, or ``at_least`` some, once they were taught.
    The way called native teaches nothing beforehand, but learns as it goes."""
    least = all_of_them if at_least < 0 else at_least
    assert (least if way == TEMPLATED else 0) <= came <= (0 if way == "grpcio" else all_of_them)


def alone(stub: Stub, request: pb.ModelInferRequest) -> pb.ModelInferResponse | str:
    """The answer to a request outside of any stream, or the error's text."""
    try:
        return stub.infer(request)
    except grpc.RpcError as error:
        return failure_of(error).text


def test_each_request_of_a_stream_is_the_front_ends_own(
    way: str, stub: Stub, server: ApplianceProcess
) -> None:
    """One at a time, and many at once."""
    before = leased(server)
    sending = Sending()
    answers = stub.stream(sending)
    for number in range(20):
        sending.send(ask("pair", f"single {number}"))
        assert next(answers).infer_response.id == f"single {number}"
    for number in range(20):
        sending.send(ask("pair", f"crowd {number}"))
    sending.end()
    assert {answer.infer_response.id for answer in answers} == {f"crowd {number}" for number in range(20)}
    check_leased(way, leased(server) - before, 40)


def test_a_large_request_on_a_stream_goes_into_its_slot_as_it_comes(
    way: str, stub: Stub, server: ApplianceProcess
) -> None:
    request = pb.ModelInferRequest(model_name="identity_fp32")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 50_000])
    request.raw_input_contents.append(np.arange(50_000, dtype=np.float32).tobytes())
    if way == TEMPLATED:
        teach_streamed(server, stub, request)
    expected = stub.infer(request)
    before = leased(server)
    answers = [answer.infer_response for answer in stub.stream(iter([request] * 4))]
    assert answers == [expected] * 4
    check_leased(way, leased(server) - before, 4)


def test_compressed_messages_are_served_as_well(way: str, stub: Stub, server: ApplianceProcess) -> None:
    before = leased(server)
    answers = stub.stream(iter([ask("pair", "z"), ask("pair", "z")]), compression=grpc.Compression.Gzip)
    assert [answer.infer_response.raw_output_contents[0] for answer in answers] == [b"\1\2\3\4"] * 2
    check_leased(way, leased(server) - before, 2)


def test_the_answers_before_a_real_status_come_first(stub: Stub) -> None:
    sending = Sending(ask("pair", "good"))
    answers = stub.stream(sending, metadata=(("triton_grpc_error", "true"),))
    assert next(answers).infer_response.id == "good"
    sending.send(ask("nobody", "bad"))
    with pytest.raises(grpc.RpcError) as ended:
        next(answers)
    assert failure_of(ended.value).code == "NOT_FOUND"


def test_a_cancelled_stream_drops_what_waits(stub: Stub, server: ApplianceProcess) -> None:
    answers = stub.stream(Sending(*[ask("snail", str(number)) for number in range(3)]))
    server.until("all of them", lambda now: now["queued_requests"] + now["running_requests"] == 3)
    answers.cancel()
    server.until("nothing waiting", lambda now: now["queued_requests"] == 0)
    assert stub.infer(ask("pair", "after")).id == "after"


def test_an_empty_stream(stub: Stub) -> None:
    assert list(stub.stream(iter(()))) == []


def test_the_public_client_streams(server: ApplianceProcess) -> None:
    seen: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    client = triton.InferenceServerClient(server.grpc)
    client.start_stream(callback=lambda result, error: seen.put((result, error)))
    tensor = triton.InferInput("x", [1, 4], "UINT8")
    tensor.set_data_from_numpy(np.array([[1, 2, 3, 4]], np.uint8))
    for number in range(10):
        client.async_stream_infer("pair", [tensor], request_id=str(number))
    client.async_stream_infer("nobody", [tensor], request_id="wrong")
    outcomes = [seen.get(timeout=30) for _ in range(11)]
    client.stop_stream()
    client.close()
    assert {result.get_response().id for result, _ in outcomes if result} == {
        str(number) for number in range(10)
    }
    (error,) = [error for _, error in outcomes if error]
    assert "Request for unknown model: 'nobody' is not found" in str(error)
