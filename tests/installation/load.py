"""Clients that ask for digits over gRPC until there is a file /run/enough: run in the machine of ``machine.py``.

Says once when the first was answered, then as JSON what came of all, and the longest that one waited.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path

import grpc

from appliance.frontend.grpc.wire_pb import inference_pb2 as pb

DEADLINE_S = 120.0
PAUSE_S = 0.002
ENOUGH = Path("/run/enough")


def enough() -> bool:
    """Whether it was said to end."""
    return ENOUGH.exists()


class Load:
    """What came of the requests of all clients."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.longest_s = 0.0

    async def client(self) -> None:
        """Ask over one connection, one request after the other."""
        request = pb.ModelInferRequest(model_name="digits")
        request.inputs.add(name="image", datatype="FP32", shape=[1, 8, 8])
        request.raw_input_contents.append(bytes(256))
        async with grpc.aio.insecure_channel("127.0.0.1:8001") as channel:
            infer = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                request_serializer=pb.ModelInferRequest.SerializeToString,
                response_deserializer=pb.ModelInferResponse.FromString,
            )
            while not enough():
                begun = time.monotonic()
                try:
                    await infer(request, timeout=DEADLINE_S)
                    self._answered()
                except grpc.aio.AioRpcError as error:
                    self.counts[f"{error.code().name}: {error.details()}"] += 1
                self.longest_s = max(self.longest_s, time.monotonic() - begun)
                await asyncio.sleep(PAUSE_S)

    def _answered(self) -> None:
        if not self.counts["answered"]:
            print("answered", flush=True)
        self.counts["answered"] += 1


async def main(clients: int) -> None:
    """Have so many of them ask."""
    load = Load()
    await asyncio.gather(*(load.client() for _ in range(clients)))
    print(json.dumps({**load.counts, "longest_s": round(load.longest_s, 2)}))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
