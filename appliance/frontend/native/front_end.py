"""The native front end: a server in Rust listens for gRPC and HTTP on one thread; what it does not serve by itself
comes here."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from edge_appliance_native import LaneMemory
from edge_appliance_native import Quotas as Clients

from appliance.config.grpc import GrpcConfig
from appliance.config.http import HttpConfig
from appliance.config.quotas import QuotasConfig
from appliance.engine.fastpath.direct import DirectEngine
from appliance.frontend.http.application import HttpApplication
from appliance.frontend.listening.sockets import inherited
from appliance.frontend.native.grpc import NativeGrpc
from appliance.frontend.native.http import NativeHttp
from appliance.frontend.native.kept import KeptSockets
from appliance.frontend.port import Backend, Bound
from appliance.frontend.quotas import Quotas
from appliance.telemetry.snapshot import FrontEndFigures, HttpStatistics

__all__ = ["LaneMemory", "NativeFrontEnd", "native_quotas"]


def native_quotas(config: QuotasConfig, report: Callable[..., None]) -> Quotas:
    """Quotas on the clock of the native front end."""
    return Quotas(Clients(), config, time.monotonic_ns, report)


class NativeFrontEnd:
    """FrontEnd over ``edge_appliance_native``; ``failed`` is called when its thread ends: nothing is served any more.
    What ``direct`` leases to it, it serves by itself. Make and use it on the event loop's thread, inside the running
    loop."""

    def __init__(
        self,
        backend: Backend,
        grpc: GrpcConfig,
        http: HttpConfig,
        quotas: Quotas,
        failed: Callable[[BaseException], None],
        direct: DirectEngine | None = None,
    ) -> None:
        self._kept = KeptSockets(inherited(os.environ, os.getpid()))
        self._http = NativeHttp(http, self._kept)
        self._grpc = NativeGrpc(backend, grpc, failed, self._http, quotas, self._kept, direct)
        self._application = HttpApplication(
            backend,
            http,
            listener=self._http.figures,
            quotas=quotas,
        )

    async def open(self) -> Bound:
        """See FrontEnd."""
        grpc, http = await self._grpc.open(), self._http.open(self._application)
        return Bound(grpc, http, await self._application.open())

    def admit(self) -> None:
        """See FrontEnd."""
        self._kept.end()
        self._grpc.admit()
        self._http.admit()

    async def reload(self, section: str) -> str | None:
        """See FrontEnd."""
        return await (self._grpc.reload() if section == "grpc" else self._http.reload())

    async def send_away(self, grace_s: float) -> None:
        """See FrontEnd."""
        await self._grpc.drain(grace_s)

    async def drain(self, grace_s: float) -> None:
        """See FrontEnd."""
        await asyncio.gather(self._grpc.drain(grace_s), self._application.drain(grace_s))

    async def close(self) -> None:
        """See FrontEnd. HTTP first: its last answers may have to go through the server."""
        try:
            await self._application.close()
            await self._http.end()
        finally:
            await self._grpc.close()

    def figures(self) -> FrontEndFigures:
        """See FrontEnd."""
        return self._grpc.figures()

    def http_statistics(self) -> HttpStatistics:
        """See FrontEnd."""
        return self._application.statistics()
