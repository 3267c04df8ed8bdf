"""A client that keeps many requests under way on one stream, for fault tests: every answer counted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import grpc

from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from tests.conformance.grpc.stub import Stub
from tests.faults.leased import message


class StreamClient:
    """Asks ``model`` over one stream, ``depth`` requests at a time, until the block ends, and then takes what is left.
    ``outcomes`` counts "OK" and the first words of errors, ``wrong`` answers to nothing and answers with other bytes;
    ``end`` is the status of the stream."""

    def __init__(self, address: str, model: str, *, depth: int = 16, timeout_s: float | None = 30.0) -> None:
        self.outcomes: Counter[str] = Counter()
        self.wrong = 0
        self.end = ""
        self._stub = Stub(address)
        self._model = model
        self._timeout_s = timeout_s
        self._open: set[str] = set()
        self._room = threading.Semaphore(depth)
        self._stop = threading.Event()
        self._enough = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def unanswered(self) -> int:
        """Requests that were sent and not answered."""
        return len(self._open)

    def wait_for(self, more: int, timeout_s: float = 30.0) -> None:
        """Wait until ``more`` further answers have come."""
        with self._enough:
            goal = self.outcomes.total() + more
            assert self._enough.wait_for(lambda: self.outcomes.total() >= goal, timeout_s), self.outcomes

    def _requests(self) -> Iterator[pb.ModelInferRequest]:
        number = 0
        while self._room.acquire() and not self._stop.is_set():
            number += 1
            self._open.add(str(number))
            yield message(self._model, request_id=str(number))

    def _run(self) -> None:
        try:
            for answer in self._stub.stream(self._requests(), timeout_s=self._timeout_s):
                self._take(answer)
            self.end = "OK"
        except grpc.RpcError as error:
            self.end = error.code().name

    def _take(self, answer: pb.ModelStreamInferResponse) -> None:
        response = answer.infer_response
        known = response.id in self._open
        self._open.discard(response.id)
        good = bool(answer.error_message) or list(response.raw_output_contents) == [b"\0\1\2\3"]
        said = answer.error_message.partition("] ")[2]
        with self._enough:
            self.wrong += int(not (known and good))
            self.outcomes[said or "OK"] += 1
            self._enough.notify_all()
        self._room.release()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._room.release()
        self._thread.join(40.0)
        self._stub.channel.close()
        assert not self._thread.is_alive(), "a client hangs"
