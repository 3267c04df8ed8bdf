"""A plain grpc.aio server with the model in its own process: what one writes without a serving framework.

No engine, no batching, no isolation, no deadlines: a servicer on protobuf messages, uvloop, ONNX Runtime with one
thread. `python -m benchmarks.peers.plain_aio --models DIR --port PORT`.
"""

import argparse
import asyncio
import gc
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import uvloop

from benchmarks.peers.session import Session
from benchmarks.peers.wire import compile_oip

DTYPES = {"FP32": np.float32, "FP64": np.float64, "INT64": np.int64, "INT32": np.int32}
CONFIG_TYPES = {"FP32": 11, "FP64": 12, "INT64": 9, "INT32": 8}
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
MAX_BATCH_SIZE = 32


def make_servicer(pb: Any, base: Any, sessions: dict[str, Session]) -> Any:
    """The servicer over the loaded models; `base` is the generated servicer class."""

    class Servicer(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self.served = dict.fromkeys(sessions, 0)

        async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802
            return pb.ServerLiveResponse(live=True)

        async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
            return pb.ServerReadyResponse(ready=True)

        async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
            return pb.ModelReadyResponse(ready=request.name in sessions)

        async def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
            return pb.ServerMetadataResponse(
                name="plain_aio", version="1", extensions=["model_configuration", "statistics"]
            )

        async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
            session = await self._find(request.name, context)
            return metadata(pb, request.name, session)

        async def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
            session = await self._find(request.name, context)
            return pb.ModelConfigResponse(config=config(pb, request.name, session))

        async def ModelStatistics(self, request: Any, context: Any) -> Any:  # noqa: N802
            return statistics(pb, request.name, self.served.get(request.name, 0))

        async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
            session = sessions.get(request.model_name) or await self._find(request.model_name, context)
            self.served[request.model_name] += 1
            return infer(pb, session, request)

        async def _find(self, name: str, context: Any) -> Session:
            if name not in sessions:
                await context.abort(grpc.StatusCode.NOT_FOUND, f"no model is called {name!r}")
            return sessions[name]

    return Servicer()


def infer(pb: Any, session: Session, request: Any) -> Any:
    """Run the request's raw tensors through the model and encode all outputs raw."""
    feed = {
        tensor.name: np.frombuffer(raw, DTYPES[tensor.datatype]).reshape(tensor.shape)
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    }
    response = pb.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    for (name, datatype, _), result in zip(session.outputs, session.run(feed), strict=True):
        response.outputs.add(name=name, datatype=datatype, shape=result.shape)
        response.raw_output_contents.append(result.tobytes())
    return response


def metadata(pb: Any, name: str, session: Session) -> Any:
    """What a client asks for to learn tensor names and shapes."""
    response = pb.ModelMetadataResponse(name=name, versions=["1"], platform="onnxruntime_onnx")
    for ports, target in ((session.inputs, response.inputs), (session.outputs, response.outputs)):
        for port, datatype, shape in ports:
            target.add(name=port, datatype=datatype, shape=shape)
    return response


def config(pb: Any, name: str, session: Session) -> Any:
    """The same as a model configuration: dimensions without the batch."""
    answer = pb.ModelConfig(name=name, platform="onnxruntime_onnx", max_batch_size=MAX_BATCH_SIZE)
    for ports, target in ((session.inputs, answer.input), (session.outputs, answer.output)):
        for port, datatype, shape in ports:
            target.add(name=port, data_type=CONFIG_TYPES[datatype], dims=shape[1:])
    return answer


def statistics(pb: Any, name: str, served: int) -> Any:
    """Counts only; load generators subtract two of these."""
    response = pb.ModelStatisticsResponse()
    entry = response.model_stats.add(name=name, version="1", inference_count=served, execution_count=served)
    entry.inference_stats.success.count = served
    entry.inference_stats.queue.count = served  # what perf_analyzer looks at to see which version served
    return response


async def serve(sessions: dict[str, Session], port: int) -> None:
    """Serve the loaded models until killed."""
    pb, pb_grpc = compile_oip()
    server = grpc.aio.server(options=OPTIONS)
    servicer = make_servicer(pb, pb_grpc.GRPCInferenceServiceServicer, sessions)
    pb_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    gc.collect()
    gc.freeze()
    try:
        await server.wait_for_termination()
    except asyncio.CancelledError:
        await server.stop(0)


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    files = sorted(arguments.models.glob("*/1/model.onnx"))
    uvloop.run(serve({file.parts[-3]: Session(file) for file in files}, arguments.port))


if __name__ == "__main__":
    main()
