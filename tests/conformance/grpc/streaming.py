"""Streams of inferences, made by hand: the client's side, and requests until the front end serves them by itself."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any, Final

from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from tests.appliance_process import ApplianceProcess
from tests.conformance.grpc.stub import Stub

ATTEMPTS: Final = 50


def ask(model: str, request_id: str, **parameters: bool) -> pb.ModelInferRequest:
    """A request for a fake model."""
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


def leased(server: ApplianceProcess) -> int:
    """How many answers came without the engine."""
    return sum(int(entry["leased"]) for entry in server.status()["models"])


def teach_streamed(server: ApplianceProcess, stub: Stub, *requests: pb.ModelInferRequest) -> None:
    """Ask over a stream, one at a time, until the front end serves each of these by itself; fails when it does not."""
    sending = Sending()
    answers = stub.stream(sending)
    for request in requests:
        before = leased(server)
        for _ in range(ATTEMPTS):
            sending.send(request)
            assert not next(answers).error_message
            if leased(server) > before:
                break
        else:
            raise AssertionError(
                f"the front end never serves '{request.model_name}' by itself; its log:\n{server.log()}"
            )
    sending.end()
    assert list(answers) == []
