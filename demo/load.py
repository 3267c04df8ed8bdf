"""Requests of a site's clients: a few at a time, at a steady rate, each outcome and its version counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

import grpc
import numpy as np

from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from demo.versions import BAD_FROM, INPUTS, NAME

METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"
TIMEOUT_S: Final = 5.0
HARD_SHARE: Final = 0.1
"""Of requests that the flawed version cannot answer."""


class Load:
    """``rate`` requests per second to the gRPC server at ``address``. Owner: one event loop."""

    def __init__(self, address: str, rate: float, seed: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.versions: Counter[str] = Counter()
        self.latest = ""
        self._address = address
        self._pause_s = 1 / rate
        self._random = np.random.default_rng(seed)
        self._asked: set[asyncio.Task[None]] = set()

    @property
    def failed(self) -> int:
        """Requests without an answer."""
        return self.outcomes.total() - self.outcomes["OK"]

    async def run(self) -> None:
        """Ask until it is cancelled; what was asked by then is waited for."""
        async with grpc.aio.insecure_channel(self._address) as channel:
            ask = channel.unary_unary(
                METHOD,
                request_serializer=pb.ModelInferRequest.SerializeToString,
                response_deserializer=pb.ModelInferResponse.FromString,
            )
            try:
                while True:
                    task = asyncio.create_task(self._one(ask))
                    self._asked.add(task)
                    task.add_done_callback(self._asked.discard)
                    await asyncio.sleep(self._pause_s)
            finally:
                await asyncio.gather(*self._asked)

    async def _one(
        self, ask: grpc.aio.UnaryUnaryMultiCallable[pb.ModelInferRequest, pb.ModelInferResponse]
    ) -> None:
        try:
            answer = await ask(self._request(), timeout=TIMEOUT_S, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            self.outcomes[error.code().name] += 1
        else:
            self.outcomes["OK"] += 1
            self.versions[answer.model_version] += 1
            self.latest = answer.model_version

    def _request(self) -> pb.ModelInferRequest:
        row = self._random.random((1, INPUTS), dtype=np.float32) * BAD_FROM
        if self._random.random() < HARD_SHARE:
            row[0, 0] = 1.0
        request = pb.ModelInferRequest(model_name=NAME, raw_input_contents=[row.tobytes()])
        tensor = request.inputs.add(name="x", datatype="FP32", shape=[1, INPUTS])
        assert tensor.name
        return request
