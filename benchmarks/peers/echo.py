"""A bare grpc.aio server that answers every call with a few fixed bytes: what the load generator is checked against.

`python -m benchmarks.peers.echo --port PORT`. Readiness calls get a true answer, everything else an empty message.
"""

import argparse
from typing import Any

import grpc
import grpc.aio
import uvloop

READY = b"\x08\x01"  # field 1, true: ServerReadyResponse and ModelReadyResponse alike
OPTIONS = [("grpc.max_receive_message_length", -1)]


class Echo(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Handles every method; knows no protobuf."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """A handler that answers with fixed bytes."""
        answer = READY if handler_call_details.method.endswith("Ready") else b""

        async def behaviour(request: bytes, context: object) -> bytes:
            return answer

        return grpc.unary_unary_rpc_method_handler(behaviour)


async def serve(port: int) -> None:
    """Serve until killed."""
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((Echo(),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
