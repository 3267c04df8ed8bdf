"""What signals ask of the daemon: to end, which a part that fails asks, too, or to read again what may change.

Owner: the event loop's thread; files are read on other threads, for a slow disk must not stall requests.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from appliance.config.tree import ApplianceConfig
from appliance.frontend.listening.certificates import CertificateEnds
from appliance.frontend.port import FrontEnd
from appliance.frontend.quotas import Quotas
from appliance.reconciler.reconciler import Reconciler
from appliance.telemetry.log import LogControl
from appliance.telemetry.notify import notify

Until = str | BaseException | None


class Shutdown:
    """When the daemon ends, and how its parts are closed: each of them, whatever becomes of the others.

    ``stop`` is set when the daemon is to end, ``hurry`` when it is not to wait for anything any more; ``failed``
    says that a part broke, and only a new start can be trusted.
    """

    def __init__(self, log: LogControl) -> None:
        self._log = log
        self._asked = 0
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.failed = False

    def asked(self) -> None:
        """Stop, as a signal asks for; the second one cuts the grace short."""
        self._asked += 1
        if self._asked > 1:
            self.hurry.set()
        self.stop.set()

    def failed_part(self, part: str, error: BaseException) -> None:
        """Stop because nothing that ``part`` holds can be trusted: it broke its own rules, or lost its thread."""
        self._log.event(f"{part} failed; stopping", error="".join(traceback.format_exception(error)))
        self.failed = True
        self.stop.set()

    async def step(self, what: str, close: Callable[[], Awaitable[None] | None]) -> None:
        """Take a step on the way out. What fails is told, shows in the exit status, and keeps nothing from its end."""
        try:
            done = close()
            if done is not None:
                await done
        except Exception as error:  # noqa: BLE001  whatever it is, the others are still to be closed
            self.failed_part(what, error)


class Rereading:
    """What SIGHUP has read again while requests go on: models, certificates and clients' quotas. What cannot be used
    leaves in force what was there, and the log says so.

    ``reread`` reads the configuration, of which the quotas count (None: they stay as they are); ``failed`` is told
    when models could not even be tried to be read. Only while ``announced`` anything is told to the service manager:
    it would hear that the daemon is ready before it is, or when it is not any more.
    """

    def __init__(
        self,
        reconciler: Reconciler,
        front_end: FrontEnd,
        certificates: CertificateEnds,
        quotas: Quotas | None,
        reread: Callable[[], ApplianceConfig] | None,
        log: LogControl,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._reconciler = reconciler
        self._front_end = front_end
        self.certificates = certificates
        self._quotas = quotas
        self._reread = reread
        self._log = log
        self._failed = failed
        self.announced = False

    def begin(self, place: str) -> None:
        """Read everything again; ``place`` is where the models are, for the log."""
        if self.announced:
            notify(RELOADING="1", MONOTONIC_USEC=str(time.monotonic_ns() // 1000))
        self._log.event("reading the models again", directory=place)
        reading = asyncio.gather(
            self._reconciler.reread(),
            self._reload_port("grpc"),
            self._reload_port("http"),
            self._reload_quotas(),
            return_exceptions=True,
        )
        reading.add_done_callback(self._ended)

    def _ended(
        self, reading: asyncio.Future[tuple[BaseException | None, Until, Until, BaseException | None]]
    ) -> None:
        if reading.cancelled():
            return
        failed, grpc, http, problems = reading.result()
        if problems is not None:
            self._log.event("quotas cannot be read again; the old ones stay", error=str(problems))
        self._tell("grpc", grpc)
        self._tell("http", http)
        if failed is not None:
            self._failed(failed)
        if self.announced:
            notify(READY="1")

    def _tell(self, port: str, until: Until) -> None:
        """What became of the certificates of ``port``."""
        if isinstance(until, BaseException):
            self._log.event("certificates cannot be used; the old ones stay", port=port, error=str(until))
        elif until is not None:
            reason = "" if until else "no client takes that of the server now; look at its dates and its use"
            self._log.event("certificates were read again", port=port, until=until, reason=reason)

    async def _reload_port(self, port: str) -> str | None:
        """Raises OperatorError."""
        until = await self._front_end.reload(port)
        if until is not None:
            await self.certificates.read(port)
        return until

    async def _reload_quotas(self) -> None:
        """Raises ConfigInvalid."""
        if self._reread is None:
            return
        quotas = (await asyncio.get_running_loop().run_in_executor(None, self._reread)).quotas
        if self._quotas is not None and quotas != self._quotas.config:
            self._quotas.set(quotas)
            self._log.event("quotas were read again", clients=len(quotas.clients))


async def first_of(
    *events: asyncio.Event, timeout_s: float | None = None, doing: Coroutine[Any, Any, None] | None = None
) -> None:
    """Wait until one of ``events`` is set, the time is over or something is done, which is given up otherwise."""
    waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(event.wait()) for event in events]
    if doing is not None:
        waits.append(asyncio.ensure_future(doing))
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
