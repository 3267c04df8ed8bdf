"""gRPC by ``edge_appliance_native``, our HTTP/2 server in Rust, which never takes the interpreter's lock.

Listening sockets and certificates are opened here; the server carries calls, and ``dispatch`` leads them to what serves
them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from edge_appliance_native import NativeServer, Tls
from edge_appliance_native import Quotas as Clients

from appliance.config.grpc import GrpcConfig
from appliance.config.listening import FrontEndKind
from appliance.domain.errors import OperatorError
from appliance.engine.fastpath.direct import DirectEngine
from appliance.frontend.grpc.inference import GrpcStatistics
from appliance.frontend.grpc.services import Services
from appliance.frontend.listening.access import unix_access
from appliance.frontend.listening.certificates import bearer_of, read_certificates
from appliance.frontend.listening.sockets import Listeners, inherited
from appliance.frontend.native.dispatch import Dispatch, Methods
from appliance.frontend.native.http import NativeHttp
from appliance.frontend.native.limits import CONSTANTS, PROTOCOL, SETTINGS, limits_of
from appliance.frontend.port import Backend
from appliance.frontend.quota.quotas import Quotas
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
        direct: DirectEngine | None = None,
    ) -> None:
        self._config = config
        self._failed = failed
        self._http = http
        self._quotas = quotas
        self._direct = direct
        self._services = Services(backend, config)
        self._listeners = Listeners(SECTION)
        self._tls: Tls | None = None
        self._dispatch: Dispatch | None = None

    async def open(self) -> tuple[str, ...]:
        """Listen, if there are addresses, and be ready for HTTP in any case; gives the addresses as bound. Raises
        AddressUnavailable, and OperatorError for certificates that cannot be used."""
        config = self._config
        certificates = read_certificates(config, SECTION) if config.addresses else None
        available = inherited(os.environ, os.getpid())
        access = unix_access(config.unix_mode, config.unix_group)
        bound = self._listeners.open(config.addresses, available, reuse_port=config.reuse_port, access=access)
        methods = Methods(self._services)
        try:
            self._tls = tls = Tls(*certificates, config.tls_client_names) if certificates else None
            server = self._listeners.hand_over(
                lambda listeners: NativeServer(
                    listeners=listeners,
                    methods=methods.table(),
                    limits=limits_of(config),
                    tls=tls,
                    quotas=_clients(self._quotas),
                    inferences=methods.inferences(),
                )
            )
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
            try:
                self._listeners.hand_over_inherited(self._dispatch.listen)
            except OSError as error:
                raise OperatorError(f"the native front end cannot take over the sockets: {error}") from error

    def announce_stop(self) -> None:
        """Health turns NOT_SERVING; requests are still served."""
        self._services.announce_stop()

    async def reload(self) -> str | None:
        """Show the certificates as they are now from the next connection on; gives until when the server's holds ("":
        no client takes it now), None where there are none. Raises OperatorError. The files are read off the loop's
        thread: a slow disk must not stall requests."""
        if self._tls is None:
            return None
        loop = asyncio.get_running_loop()
        certificates = await loop.run_in_executor(None, read_certificates, self._config, SECTION)
        assert certificates is not None
        try:
            self._tls.reload(*certificates)
        except ValueError as error:
            raise OperatorError(f"the native front end refuses the certificates: {error}") from error
        bearer = await loop.run_in_executor(None, bearer_of, self._config)
        return bearer.until if bearer else ""

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
        self._listeners.close()

    def statistics(self) -> GrpcStatistics:
        """A value to show."""
        return self._services.statistics()

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
