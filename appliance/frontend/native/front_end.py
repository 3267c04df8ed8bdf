"""The front door over ``edge_appliance_door``, our HTTP/2 server in Rust, which never takes the interpreter's lock.

Listening sockets and certificates are opened here; the door carries calls, and ``dispatch`` leads them to what
serves them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from edge_appliance_door import Door, LaneMemory, Tls

from appliance.config.grpc import DoorConfig, DoorKind
from appliance.config.quotas import QuotasConfig
from appliance.domain.errors import OperatorError
from appliance.engine.fastpath.direct import DirectEngine
from appliance.engine.fastpath.front import HttpFront
from appliance.engine.port import EnginePort
from appliance.frontend.grpc.door import DoorStatistics, LogControl
from appliance.frontend.grpc.services import Services
from appliance.frontend.listening.access import unix_access
from appliance.frontend.listening.certificates import bearer_of, read_certificates
from appliance.frontend.listening.sockets import Listeners, inherited
from appliance.frontend.native.dispatch import Dispatch, Methods
from appliance.frontend.native.http import NativeFront
from appliance.frontend.native.limits import PROTOCOL, SETTINGS, limits_of
from appliance.frontend.native.quotas import clients_of, native_quotas
from appliance.frontend.quota.quotas import Quotas
from appliance.telemetry.snapshot import DoorFigures
from appliance.telemetry.trace import Tracer

__all__ = ["LaneMemory", "NativeDoor"]
SECTION: Final = "grpc"


class NativeDoor:
    """FrontDoor over ``edge_appliance_door``. When it fails, which it cannot get over, it calls ``failed``. With
    ``direct`` it serves by itself what the engine grants. Make and use it on the event loop's thread, inside the
    running loop."""

    def __init__(
        self,
        engine: EnginePort,
        config: DoorConfig,
        log: LogControl,
        failed: Callable[[BaseException], None],
        direct: DirectEngine | None = None,
        tracer: Tracer | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self._quotas = quotas or native_quotas(QuotasConfig(), lambda what, **_: None)
        self._direct = direct
        self._config = config
        self._failed = failed
        self._services = Services(engine, config, log, tracer)
        self._listeners = Listeners()
        self._tls: Tls | None = None
        self._dispatch: Dispatch | None = None
        self._front = NativeFront()

    async def open(self) -> tuple[str, ...]:
        """See FrontDoor."""
        config = self._config
        if not config.addresses:
            return ()
        certificates = read_certificates(config, SECTION)
        available = inherited(os.environ, os.getpid())
        access = unix_access(config.unix_mode, config.unix_group)
        bound = self._listeners.open(config.addresses, available, reuse_port=config.reuse_port, access=access)
        methods = Methods(self._services)
        try:
            self._tls = tls = Tls(*certificates, config.tls_client_names) if certificates else None
            door = self._listeners.hand_over(
                lambda listeners: Door(
                    listeners=listeners,
                    methods=methods.table(),
                    limits=limits_of(config),
                    tls=tls,
                    quotas=clients_of(self._quotas),
                    inferences=methods.inferences(),
                )
            )
            self._dispatch = Dispatch(
                door, self._services, methods, self._direct, self._failed, self._front, self._quotas
            )
            self._dispatch.start()
        except (OSError, ValueError) as error:
            await self.close()
            raise OperatorError(f"the native door cannot be opened: {error}") from error
        return bound

    def admit(self) -> None:
        """See FrontDoor."""
        if self._dispatch is not None:
            try:
                self._listeners.hand_over_inherited(self._dispatch.listen)
            except OSError as error:
                raise OperatorError(f"the native door cannot take over the sockets: {error}") from error

    def announce_stop(self) -> None:
        """See FrontDoor."""
        self._services.announce_stop()

    async def reload(self) -> str | None:
        """See FrontDoor. The files are read off the loop's thread: a slow disk must not stall requests."""
        if self._tls is None:
            return None
        loop = asyncio.get_running_loop()
        certificates = await loop.run_in_executor(None, read_certificates, self._config, SECTION)
        assert certificates is not None
        try:
            self._tls.reload(*certificates)
        except ValueError as error:
            raise OperatorError(f"the native door refuses the certificates: {error}") from error
        bearer = await loop.run_in_executor(None, bearer_of, self._config)
        return bearer.until if bearer else ""

    async def drain(self, grace_s: float) -> None:
        """See FrontDoor."""
        self._services.drain()
        if self._dispatch is not None:
            await self._dispatch.drain(grace_s)

    async def close(self) -> None:
        """See FrontDoor."""
        dispatch, self._dispatch = self._dispatch, None
        if dispatch is not None:
            await dispatch.close()
        self._listeners.close()

    def front(self) -> HttpFront:
        """See FrontDoor."""
        return self._front

    def statistics(self) -> DoorStatistics:
        """See FrontDoor."""
        return self._services.statistics()

    def figures(self) -> DoorFigures:
        """See FrontDoor."""
        counts = self._dispatch.counts() if self._dispatch is not None else {}
        bounds = {**SETTINGS, **PROTOCOL}
        limits = {label: counts[name] for name, label in bounds.items() if name in counts}
        return DoorFigures(door=DoorKind.NATIVE.value, counts=counts, limits=limits)
