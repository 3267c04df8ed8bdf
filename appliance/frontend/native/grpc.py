"""gRPC by ``edge_appliance_native``, our HTTP/2 server in Rust, which never takes the interpreter's lock.

The server carries calls, and ``dispatch`` leads them to what serves them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from edge_appliance_native import NativeServer
from edge_appliance_native import Quotas as Clients

from appliance.config.grpc import GrpcConfig
from appliance.config.listening import FrontEndKind
from appliance.domain.errors import OperatorError
from appliance.engine.fastpath.direct import DirectEngine
from appliance.frontend.grpc.services import Services
from appliance.frontend.native.dispatch import Dispatch, Methods
from appliance.frontend.native.http import NativeHttp
from appliance.frontend.native.kept import KeptSockets
from appliance.frontend.native.package import CONSTANTS, PROTOCOL, SETTINGS, limits_of
from appliance.frontend.native.ports import NativePort
from appliance.frontend.port import Backend
from appliance.frontend.quotas import Quotas
from appliance.telemetry.snapshot import FrontEndFigures

SECTION: Final = "grpc"


class NativeGrpc:
    """The gRPC side of the native front end. When that fails, which it cannot get over, it calls ``failed``. With
    ``direct`` it serves by itself what the engine leases to it; ``quotas`` are asked for each inference. Make and use
    it on the event loop's thread, inside the running loop."""

    def __init__(
        self,
        backend: Backend,
        config: GrpcConfig,
        failed: Callable[[BaseException], None],
        http: NativeHttp,
        quotas: Quotas,
        kept: KeptSockets,
        direct: DirectEngine | None = None,
    ) -> None:
        self._config = config
        self._failed = failed
        self._http = http
        self._quotas = quotas
        self._direct = direct
        self._services = Services(backend, config)
        self._port = NativePort(SECTION, config, kept)
        self._dispatch: Dispatch | None = None

    async def open(self) -> tuple[str, ...]:
        """Listen, if there are addresses, and be ready for HTTP in any case; gives the addresses as bound. Raises
        AddressUnavailable, and OperatorError for certificates that cannot be used."""
        methods = Methods(self._services)
        bound, server = self._port.open(
            lambda listeners, tls: NativeServer(
                listeners=listeners,
                methods=methods.table(),
                limits=limits_of(self._config),
                tls=tls,
                quotas=_clients(self._quotas),
                inferences=methods.inferences(),
            )
        )
        try:
            self._dispatch = Dispatch(
                server, self._services, methods, self._direct, self._failed, self._http, self._quotas
            )
            self._dispatch.start()
        except (OSError, ValueError) as error:
            await self.close()
            raise OperatorError(f"the native front end cannot be opened: {error}") from error
        return bound

    def admit(self) -> None:
        """Accept connections on inherited sockets as well, which ``open`` left alone. Raises OperatorError."""
        if self._dispatch is not None:
            self._port.admit(self._dispatch.listen)

    async def reload(self) -> str | None:
        """See FrontEnd."""
        return await self._port.reload()

    async def drain(self, grace_s: float) -> None:
        """Take no more requests, and wait up to ``grace_s`` seconds for those under way."""
        self._services.drain()
        if self._dispatch is not None:
            await self._dispatch.drain(grace_s)

    async def close(self) -> None:
        """Close at once what is still open. May be called twice, and without ``open``."""
        dispatch, self._dispatch = self._dispatch, None
        if dispatch is not None:
            await dispatch.close()
        self._port.close()

    def figures(self) -> FrontEndFigures:
        """What ``/metrics`` tells of the front end."""
        counts = self._dispatch.counts() if self._dispatch is not None else {}
        bounds = {**SETTINGS, **CONSTANTS, **PROTOCOL}
        limits = {label: counts[name] for name, label in bounds.items() if name in counts}
        return FrontEndFigures(kind=FrontEndKind.NATIVE.value, counts=counts, limits=limits)


def _clients(quotas: Quotas) -> Clients:
    """What the server asks by itself."""
    assert isinstance(quotas.clients, Clients), "quotas of another front end"
    return quotas.clients
