"""The serving daemon: opens its parts in order and closes them front end first.

Start: workers (the zygote is executed before any socket listens), models, then the front end. Stop: nothing is
ready any more, clients are sent away, what was accepted is answered within the grace, the front end closes, workers
leave, the arena goes. SIGTERM and SIGINT drain, a second one cuts the grace short, and one during the start ends that;
SIGHUP reads the models again, once the front end is open if it came before.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import uvloop

from appliance.config.listening import FrontEndKind
from appliance.config.tree import ApplianceConfig
from appliance.daemon.parts import make_parts
from appliance.daemon.signals import Shutdown, first_of
from appliance.daemon.watchdog import Watchdog
from appliance.domain.errors import OperatorError, WorkerError
from appliance.engine.port import IndexEntry
from appliance.frontend.choice import (
    chosen,
    passed_over,
)
from appliance.frontend.listening.sockets import (
    descriptor_limit,
    descriptor_shortage,
    raise_descriptor_limit,
)
from appliance.frontend.port import Bound
from appliance.maintenance.heap import Heap
from appliance.maintenance.interpreter import RESERVE_BYTES, reserve
from appliance.process.priority import SHORT_TURN_NS, take_turns
from appliance.repository.directory import RepositoryScan
from appliance.runtimes.distributions import clash
from appliance.telemetry.log import LogControl, configure
from appliance.telemetry.notify import notify
from appliance.workers.jail.cgroup import move_to_leaf
from appliance.workers.jail.entry import close_memory
from appliance.workers.jail.support import kernel_support

EXIT_OK = 0
EXIT_OPERATOR = 2
EXIT_SOFTWARE = 70
DRAIN_POLL_S = 0.005
SWITCH_INTERVAL_S = 0.0005
"""How long the event loop waits at most for a thread that has the interpreter, as while a model's files are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What the daemon tells whoever started it, once the first load has settled. ``bound`` is where the front end
    listens."""

    front_end: FrontEndKind
    bound: Bound
    index: tuple[IndexEntry, ...]


def run(
    config: ApplianceConfig,
    announce: Callable[[Started], None] = lambda started: None,
    reread: Callable[[], ApplianceConfig] | None = None,
) -> int:
    """Serve until told to stop; gives the exit status: 0, 2 when the configuration or the environment is wrong, 70 when
    the engine or the front end failed and a new start is the only cure. ``reread`` reads the configuration again, of
    which clients' quotas are taken over at SIGHUP, which the caller may block until then."""
    raise_descriptor_limit()
    close_memory()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    take_turns(SHORT_TURN_NS)  # all its threads: the runs of large models have the same processors
    try:
        log = configure(config.log)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(config, log, announce, reread))
    except OperatorError as error:
        print(f"appliance: {error}", file=sys.stderr)
        return EXIT_OPERATOR


async def _serve(
    config: ApplianceConfig,
    log: LogControl,
    announce: Callable[[Started], None],
    reread: Callable[[], ApplianceConfig] | None,
) -> int:
    try:
        return await Daemon(config, log, reread).serve(announce)
    except OperatorError as error:
        if config.log.file:  # else both would be told at one place
            log.event("cannot serve", error=str(error))
        raise


class Daemon:
    """Owns every part of the running daemon. Made inside a running event loop."""

    def __init__(
        self,
        config: ApplianceConfig,
        log: LogControl,
        reread: Callable[[], ApplianceConfig] | None = None,
    ) -> None:
        self._config = config
        self._log = log
        self._end = Shutdown(log)
        self._parts = make_parts(config, log, self._end, reread)
        self._room: list[bytes] = []
        self._watchdog = Watchdog(asyncio.get_running_loop())
        self._heap = Heap(asyncio.get_running_loop(), lambda: self._parts.engine.live_requests > 0)

    async def serve(self, announce: Callable[[Started], None]) -> int:
        """Open, serve until a signal, drain, close; gives the exit status. Raises OperatorError when it cannot open."""
        self._catch_stop()
        self._watchdog.start()
        try:
            first = await self._unless_stopped(self._prepare())
            if first is not None:
                await self._open_and_serve(first, announce)
        finally:
            await self._close()
        return EXIT_SOFTWARE if self._end.failed else EXIT_OK

    async def _prepare(self) -> RepositoryScan:
        """What the source holds, once workers can be had. Raises OperatorError."""
        self._warn_about_the_front_end()
        self._warn_of_few_descriptors()
        self._warn_of_runtimes()
        self._prepare_the_jail()
        first = await self._parts.reconciler.begin()
        if self._parts.scrubbing is not None:
            await self._parts.scrubbing.disk.look()
        try:
            await self._parts.pool.open()
        except WorkerError as error:
            raise OperatorError(f"no worker can be started: {error}") from error
        return first

    async def _unless_stopped(self, work: Coroutine[Any, Any, RepositoryScan]) -> RepositoryScan | None:
        """What ``work`` comes to; None when a signal to stop comes first."""
        done = asyncio.Event()
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: done.set())
        await first_of(done, self._end.stop)
        if task.done():
            return task.result()
        notify(STOPPING="1")
        task.cancel()
        await asyncio.wait([task])
        return None

    async def _open_and_serve(self, first: RepositoryScan, announce: Callable[[Started], None]) -> None:
        self._parts.ticker.attach(self._parts.engine)
        self._parts.devices.start(asyncio.get_running_loop(), self._parts.engine)
        self._parts.reconciler.take(first)
        bound = await self._parts.front_end.open()
        self._parts.listening.bound = bound
        for port in bound._fields:
            await self._parts.rereading.certificates.read(port)
        if self._parts.control is not None:
            await self._parts.control.open()
        self._catch_reload()
        await self._first_load()
        if not self._end.stop.is_set():  # who waits there is for the next start then
            self._parts.front_end.admit()
        self._parts.reconciler.watch()
        if self._parts.scrubbing is not None:
            self._parts.scrubbing.start()
        self._parts.recent.watch(asyncio.get_running_loop(), self._parts.engine)
        if self._parts.outlet is not None:
            self._parts.outlet.start()
        self._parts.collector.calm()
        self._heap.watch()
        self._room = reserve(RESERVE_BYTES)
        self._parts.engine.watch(self._parts.collector.changed)
        self._watchdog.serves(self._parts.engine)
        self._announce(
            announce,
            Started(
                front_end=chosen(self._config.frontend.kind),
                bound=bound,
                index=self._parts.engine.index(ready_only=False),
            ),
        )
        await self._end.stop.wait()
        if not self._end.failed:
            await self._end.step("draining", self._drain)

    def _announce(self, announce: Callable[[Started], None], started: Started) -> None:
        self._log.event(
            "serving",
            front_end=started.front_end.value,
            grpc=list(started.bound.grpc),
            http=list(started.bound.http),
            metrics=list(started.bound.metrics),
            models=len(started.index),
        )
        notify(READY="1", STATUS=f"serving {started.bound} ({started.front_end.value} front end)")
        self._parts.rereading.announced = True
        announce(started)

    async def _first_load(self) -> None:
        """Wait until every model serves or was given up, or until a signal."""
        settled = asyncio.Event()
        end = self._parts.engine.watch(lambda: settled.set() if self._parts.engine.ready else None)
        try:
            if not self._parts.engine.ready:
                await first_of(settled, self._end.stop)
        finally:
            end()

    # --- signals

    def _catch_stop(self) -> None:
        """The system keeps a SIGHUP that comes from here on until ``_catch_reload``."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._end.asked)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])

    def _catch_reload(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._on_reload)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])

    def _on_reload(self) -> None:
        if not self._end.stop.is_set():
            self._parts.rereading.begin(self._config.place)

    # --- the end

    async def _drain(self) -> None:
        """Answer what was accepted, bounded by the grace. Readiness turns first, wherever it is told; then clients of
        gRPC are sent away, to whatever listens next; only then is anything refused."""
        self._parts.engine.announce_stop()
        self._parts.rereading.announced = False
        self._watchdog.stops()
        notify(STOPPING="1")
        self._log.event("draining", requests=self._parts.engine.live_requests)
        await self._end.step("the end of looking at the models", self._parts.reconciler.stop)
        await first_of(self._end.hurry, timeout_s=self._config.daemon.drain_notice_s)
        deadline = time.monotonic() + self._config.daemon.drain_grace_s
        send_away = partial(self._parts.front_end.send_away, self._config.daemon.drain_grace_s)
        await first_of(self._end.hurry, doing=self._end.step("sending clients away", send_away))
        self._parts.engine.drain()
        while (
            self._parts.engine.live_requests and time.monotonic() < deadline and not self._end.hurry.is_set()
        ):
            await first_of(self._end.hurry, timeout_s=DRAIN_POLL_S)
        left = max(0.1, deadline - time.monotonic())
        if self._parts.engine.live_requests:
            self._log.event("grace is over", requests=self._parts.engine.live_requests)
        await self._parts.front_end.drain(left)

    async def _close(self) -> None:
        """Close every part, front end first, whatever becomes of the others."""
        for what, close in self._parts.closing:
            await self._end.step(what, close)
        self._watchdog.stop()
        self._heap.close()
        self._log.event("stopped")

    # --- what is worth a word before it starts

    def _warn_about_the_front_end(self) -> None:
        """What was set or installed and is not used."""
        if reason := passed_over(self._config.frontend.kind):
            self._log.event("the native front end is passed over", reason=reason)
        http = self._config.http
        if self._config.grpc.tls_client_ca and http.addresses and not http.tls_client_ca:
            reason = "grpc.tls_client_ca asks nobody there; set http.tls_client_ca, or keep http.addresses on loopback"
            self._log.event("models can be asked over HTTP without a certificate", reason=reason)

    def _prepare_the_jail(self) -> None:
        """Have cgroups for workers; tell what a model file that takes its worker over could do on this machine."""
        if lacking := kernel_support().lacking:
            self._log.event("workers cannot be kept from everything", lacking=list(lacking))
        if reason := move_to_leaf():
            self._log.event("workers have no cgroups of their own", reason=reason)

    def _warn_of_runtimes(self) -> None:
        """A runtime that was installed for two kinds of devices at once."""
        for runtime in self._config.repository.runtimes:
            if reason := clash(runtime):
                self._log.event("a runtime is installed twice", runtime=runtime, reason=reason)

    def _warn_of_few_descriptors(self) -> None:
        """An HTTP connection that the native front end passes on to Python is three."""
        each = 3 if chosen(self._config.frontend.kind) is FrontEndKind.NATIVE else 1
        each += bool(self._config.metrics.addresses)
        connections = self._config.grpc.max_connections + each * self._config.http.max_connections
        if reason := descriptor_shortage(connections, descriptor_limit()):
            self._log.event("connections can use up the descriptors that workers need", reason=reason)
