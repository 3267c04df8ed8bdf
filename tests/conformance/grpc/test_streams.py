"""ModelStreamInfer through the public client and by hand."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton

from appliance.door.wire_pb import inference_pb2 as pb
from tests.appliance_process import ApplianceProcess
from tests.conformance.grpc.stub import Stub, failure_of


def ask(model: str, request_id: str, **parameters: bool) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model, id=request_id)
    request.inputs.add(name="x", datatype="UINT8", shape=[1, 4])
    request.raw_input_contents.append(b"\1\2\3\4")
    for key, value in parameters.items():
        request.parameters[key].bool_param = value
    return request


class Sending:
    """The client's side of a stream: yields what is put until it is ended."""

    def __init__(self, *requests: Any) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for request in requests:
            self._queue.put(request)

    def send(self, request: Any) -> None:
        self._queue.put(request)

    def end(self) -> None:
        self._queue.put(None)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        request = self._queue.get()
        if request is None:
            raise StopIteration
        return request


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
    assert told["a"].startswith("[request id: a] Request for unknown model: 'nobody' is not found")
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
    assert failure.text.startswith("[request id: a] Request for unknown model")


def test_the_last_response_is_marked_when_asked(stub: Stub) -> None:
    sending = Sending(ask("pair", "a", triton_enable_empty_final_response=True))
    sending.end()
    (answer,) = stub.stream(sending)
    assert answer.infer_response.parameters["triton_final_response"].bool_param is True


def test_more_requests_than_the_window_are_all_answered(stub: Stub) -> None:
    answers = stub.stream(ask("pair", str(number)) for number in range(2000))
    assert {answer.infer_response.id for answer in answers} == {str(number) for number in range(2000)}


def test_a_cancelled_stream_drops_what_waits(stub: Stub, server: ApplianceProcess) -> None:
    answers = stub.stream(Sending(*[ask("snail", str(number)) for number in range(3)]))
    server.until("two waiting", lambda now: now["queued_requests"] == 2)
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
    assert "[request id: wrong] Request for unknown model: 'nobody' is not found" in str(error)
