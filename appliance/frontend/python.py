"""The Python front end: the gRPC library's server and the HTTP library's. It is the reference, and serves without Rust.

What both libraries do is theirs: HTTP/2, TLS, keep-alive. What only the native front end can keep is refused when the
configuration is read (``choice``).
"""

from __future__ import annotations

import asyncio

from appliance.config.grpc import GrpcConfig
from appliance.config.http import HttpConfig
from appliance.config.listening import FrontEndKind
from appliance.frontend.grpc.server import GrpcServer
from appliance.frontend.http.application import HttpApplication
from appliance.frontend.http.server import HttpListener
from appliance.frontend.port import Backend, Bound
from appliance.telemetry.snapshot import FrontEndFigures, HttpStatistics


class PythonFrontEnd:
    """FrontEnd over grpcio and aiohttp. Make and use it on the event loop's thread, inside the running loop."""

    def __init__(self, backend: Backend, grpc: GrpcConfig, http: HttpConfig) -> None:
        self._grpc = GrpcServer(backend, grpc)
        self._application = HttpApplication(backend, http)
        self._http = HttpListener(self._application.server, http)

    async def open(self) -> Bound:
        """See FrontEnd."""
        return Bound(await self._grpc.open(), await self._http.open(), await self._application.open())

    def admit(self) -> None:
        """See FrontEnd. Nothing is inherited."""

    async def reload(self, section: str) -> str | None:
        """See FrontEnd."""
        return await (self._grpc.reload() if section == "grpc" else self._http.reload())

    async def send_away(self, grace_s: float) -> None:
        """See FrontEnd."""
        await self._grpc.drain(grace_s)

    async def drain(self, grace_s: float) -> None:
        """See FrontEnd."""
        self._http.stop()
        await asyncio.gather(self._grpc.drain(grace_s), self._application.drain(grace_s))

    async def close(self) -> None:
        """See FrontEnd."""
        try:
            self._http.stop()
            await self._application.close()
            self._http.close()
        finally:
            await self._grpc.close()

    def figures(self) -> FrontEndFigures:
        """See FrontEnd. The gRPC library counts nothing that it would tell."""
        return FrontEndFigures(kind=FrontEndKind.PYTHON.value, counts={}, limits={})

    def http_statistics(self) -> HttpStatistics:
        """See FrontEnd."""
        return self._application.statistics()
