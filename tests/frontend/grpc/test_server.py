"""The gRPC library's server: what it bounds."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from grpc import aio

from appliance.config.grpc import GrpcConfig
from appliance.frontend.grpc import server as grpc_server
from appliance.frontend.grpc.health import HEALTH_SERVICE
from appliance.frontend.grpc.server import GrpcServer
from appliance.frontend.port import Backend
from appliance.telemetry.snapshot import Snapshot
from tests.domain.sample import make_version
from tests.frontend.grpc.engine_double import EngineDouble, LogDouble

AT_MOST = 3
WATCH = f"/{HEALTH_SERVICE}/Watch"


def no_figures() -> Snapshot:
    """Nobody asks over HTTP."""
    raise AssertionError


async def watching(channel: Any) -> Any:
    """A watch that is under way, as soon as there is room for it."""
    while True:
        watch = channel.unary_stream(WATCH)(b"")
        try:
            assert await watch.read()
        except aio.AioRpcError as refused:
            assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # noqa: PT017  it may come late
        else:
            return watch


async def test_rpcs_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "RPCS_MAX", AT_MOST)
    backend = Backend(engine=EngineDouble(make_version()), log=LogDouble(), read=no_figures)
    server = GrpcServer(backend, GrpcConfig(addresses=("127.0.0.1:0",)))
    (address,) = await server.open()
    try:
        for _ in range(2):
            channel: Any
            async with aio.insecure_channel(address) as channel:
                watches = [await watching(channel) for _ in range(AT_MOST)]
                with pytest.raises(aio.AioRpcError) as refused:
                    await channel.unary_stream(WATCH)(b"").read()
                assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert not any(watch.done() for watch in watches)
    finally:
        await server.close()
