"""The controller as a server: one port with TLS for boxes and for people. The composition root of the controller."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from appliance.controller.comparing import Comparisons
from appliance.controller.contact import Contact
from appliance.controller.device_api import DeviceApi
from appliance.controller.facts import Facts
from appliance.controller.fleet_store import DatabaseTrouble
from appliance.controller.home import Home
from appliance.controller.leftovers import Leftovers
from appliance.controller.monitoring import Monitoring
from appliance.controller.people import People
from appliance.controller.people_api import PeopleApi
from appliance.controller.publishing import Publisher
from appliance.controller.releases import Releases
from appliance.controller.rollout_steps import RolloutSteps
from appliance.controller.rollouts import Rollouts
from appliance.controller.traffic import Traffic
from appliance.domain.address import parse_address
from appliance.domain.errors import OperatorError
from appliance.transfer.door import BACKLOG, doors

_LOG = logging.getLogger(__name__)

NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME: whether a certificate has expired is judged by what is asked with it."""
IDLE_S: Final = 900.0
"""How long an idle connection stays open: a poll over an open one costs a fraction of a new one."""
SHARES: Final = 4
"""How many addresses together take all connections that there can be."""
KEEP_MS: Final = 30 * 24 * 3_600_000
"""How long telemetry is kept."""
SWITCH_INTERVAL_S: Final = 0.0005
"""How long a poll waits at most, at each of its steps, for a thread that has the interpreter: one who looks at all
devices has it for long."""
TIDY_S: Final = 3600.0
RECLAIM_S: Final = 600.0
"""Between looks for blobs that nothing names; what two in a row find goes."""
ROLL_OUT_S: Final = 5.0
ROLL_OUT_PARTS: Final = 20
ROLL_OUT_S_MOST: Final = 300.0
"""Between looks at rollouts that run; and one look in so many parts of the time, where it takes long, but for streams
that it had to build: nothing halts meanwhile."""
Tell = Callable[..., None]
"""Writes a line of the log: what happened, and its fields."""


class _NoNonsense(logging.Filter):
    """Keeps out of the log what anybody can send who has no token: bytes that are no HTTP, a page of it for each."""

    def filter(self, record: logging.LogRecord) -> bool:
        """See logging."""
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def wall_ms() -> int:
    """The controller's clock."""
    return time.time_ns() // 1_000_000


def application(home: Home, clock: Callable[[], int] = wall_ms) -> web.Application:
    """Everything that is served."""
    publisher = Publisher(home.keys)
    releases = Releases(home.store, home.blobs, home.package_keys)
    try:
        releases.judge_again()
    except DatabaseTrouble as error:
        _LOG.warning("who signed the releases is told as it was before this start: %s", error)
    people = People(home.store, home.authority, publisher, releases, home.settings.url)
    contact = Contact(home.store, home.authority, publisher)
    app = web.Application(client_max_size=0)
    traffic = Traffic()
    rollouts = Rollouts(home.store, publisher, releases)
    people_api = PeopleApi(
        people, Facts(home.store), Comparisons(home.store), rollouts, releases, home.store, home.blobs, clock
    )
    app.add_routes(DeviceApi(contact, home.blobs, clock, traffic).routes())
    app.add_routes(people_api.routes())
    app.add_routes(Monitoring(home, publisher, people_api, traffic, clock).routes())
    return app


def server_tls(home: Home) -> ssl.SSLContext:
    """TLS that asks for a box's certificate, and takes those who have none as people."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(str(home.server))
    context.load_verify_locations(cadata=home.authority.pem)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
    context.num_tickets = 1
    return context


async def serve(home: Home, ready: Callable[[str], None], tell: Tell) -> None:
    """Serve until SIGTERM or SIGINT; ``ready`` is told where, and ``tell`` what becomes of leftovers and
    rollouts. Raises OperatorError where it cannot listen."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    logging.getLogger("aiohttp.server").addFilter(_NoNonsense())
    runner = web.AppRunner(application(home), keepalive_timeout=IDLE_S, access_log=None, shutdown_timeout=5.0)
    await runner.setup()
    address = parse_address(home.settings.address)
    if address.path:
        raise OperatorError(f"'{home.settings.address}' is no host:port")
    try:
        at_once = max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // SHARES, 1)
        for door in doors(address.host, address.port, at_once):
            await web.SockSite(runner, door, ssl_context=server_tls(home), backlog=BACKLOG).start()
        host, port = runner.addresses[0][:2]
        ready(f"{host}:{port}")
        jobs = (_tidy(home), _reclaim(home, tell), _roll_out(home, tell))
        chores = [asyncio.create_task(each) for each in jobs]
        await stop.wait()
        for each in chores:
            each.cancel()
    except OSError as error:
        raise OperatorError(
            f"the controller cannot listen at '{home.settings.address}': {error.strerror}"
        ) from error
    finally:
        await runner.cleanup()
        await end_tasks()


async def end_tasks() -> None:
    """Cancel what else runs in this loop, again until nothing does: a connection that had been taken, and whose
    handshake ends meanwhile, begins one more task, which nobody would await."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def _tidy(home: Home) -> None:
    """Forget telemetry that is old."""

    def forget() -> None:
        with home.store.transaction() as rows:
            rows.forget_telemetry(wall_ms() - KEEP_MS)

    while True:
        with suppress(OperatorError):
            await asyncio.to_thread(forget)
        await asyncio.sleep(TIDY_S)


async def _reclaim(home: Home, tell: Tell) -> None:
    """Remove blobs that nothing names, and tell how much that freed. What stands in the way is told once."""
    leftovers, trouble = Leftovers(home.store, home.blobs), ""
    while True:
        found = await asyncio.to_thread(leftovers.look, wall_ms())
        if found.blobs:
            tell("blobs reclaimed", blobs=found.blobs, bytes=found.bytes)
        if found.error and found.error != trouble:
            tell("blobs cannot be reclaimed", error=found.error)
        trouble = found.error
        await asyncio.sleep(RECLAIM_S)


async def _roll_out(home: Home, tell: Tell) -> None:
    """Bring on rollouts that run, and tell what becomes of them. What stands in the way is told once."""
    releases = Releases(home.store, home.blobs, home.package_keys)
    steps, trouble = RolloutSteps(home.store, Publisher(home.keys), releases), ""
    while True:
        began_s = time.monotonic()
        found = await asyncio.to_thread(steps.step, wall_ms())
        took_s = time.monotonic() - began_s
        for each in found.told:
            tell(
                f"rollout {each.state}", number=each.number, model=each.model, version=each.version,
                wave=len(each.begun), reason=each.reason, failed=[device.device for device in each.failed],
            )  # fmt: skip
        if found.error and found.error != trouble:
            tell("a rollout cannot go on now", error=found.error)
        trouble = found.error
        await asyncio.sleep(pause_s(took_s))


def pause_s(took_s: float) -> float:
    """How long after a look at rollouts that ``took_s`` the next one is."""
    return min(max(ROLL_OUT_S, took_s * ROLL_OUT_PARTS), ROLL_OUT_S_MOST)
