"""What SIGHUP has read again while requests go on: models, certificates and clients' quotas.

What cannot be used leaves in force what was there, and the log says so. Owner: the event loop's thread; files are read
on other threads, for a slow disk must not stall requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from appliance.config.tree import ApplianceConfig
from appliance.frontend.port import FrontEnd
from appliance.frontend.quota.quotas import Quotas
from appliance.reconciler.reconciler import Reconciler
from appliance.telemetry.log import LogControl
from appliance.telemetry.notify import notify

Until = str | BaseException | None


class Rereading:
    """``reread`` reads the configuration, of which the quotas count (None: they stay as they are); ``failed`` is told
    when models could not even be tried to be read. Only while ``announced`` anything is told to the service manager:
    it would hear that the daemon is ready before it is, or when it is not any more."""

    def __init__(
        self,
        desired: Reconciler,
        front_end: FrontEnd,
        quotas: Quotas | None,
        reread: Callable[[], ApplianceConfig] | None,
        log: LogControl,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._reconciler = desired
        self._front_end = front_end
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
            self._front_end.reload("grpc"),
            self._front_end.reload("http"),
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

    async def _reload_quotas(self) -> None:
        """Raises ConfigInvalid."""
        if self._reread is None:
            return
        quotas = (await asyncio.get_running_loop().run_in_executor(None, self._reread)).quotas
        if self._quotas is not None and quotas != self._quotas.config:
            self._quotas.set(quotas)
            self._log.event("quotas were read again", clients=len(quotas.clients))
