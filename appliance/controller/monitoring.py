"""What is asked by programs that watch the controller: ``/health``, without a token, by who spreads requests or wakes
people, and ``/metrics`` by Prometheus, with a token of the least role.

Figures of the fleet take a look at all devices. They are told for ``FRESH_MS``, so that however many scrape, boxes that
poll have one such look beside them at most.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Final

from aiohttp import web
from cryptography import x509

from appliance.controller import tables
from appliance.controller.health import Health
from appliance.controller.home import Home
from appliance.controller.kept import Kept
from appliance.controller.metrics import controller_families, fleet_families, rollout_families
from appliance.controller.people_api import PeopleApi, failed
from appliance.controller.publishing import Publisher
from appliance.controller.root import root_plan
from appliance.controller.standings import standings
from appliance.controller.traffic import Traffic
from appliance.domain.errors import OperatorError
from appliance.telemetry.metrics.exposition import CONTENT_TYPE, exposition
from appliance.telemetry.metrics.process import ProcessMetrics

ROLE: Final = "viewer"
FRESH_MS: Final = 10_000
HEALTHY: Final = b'{"status":"ok"}'


class Monitoring:
    """See the module. ``people`` knows whose a token is. Raises OperatorError where a certificate cannot be read."""

    def __init__(
        self,
        home: Home,
        publisher: Publisher,
        people: PeopleApi,
        traffic: Traffic,
        wall_ms: Callable[[], int],
    ) -> None:
        self._home = home
        self._publisher = publisher
        self._people = people
        self._traffic = traffic
        self._wall_ms = wall_ms
        self._health = Health(home.store)
        self._fleet = Kept(self._fleet_text, FRESH_MS)
        self._process = ProcessMetrics()
        self._expiries = expiries(home)

    def routes(self) -> list[web.RouteDef]:
        """For the application."""
        return [web.get("/health", self._healthy), web.get("/metrics", self._metrics)]

    async def _healthy(self, _: web.Request) -> web.Response:
        try:
            await self._health.check(self._wall_ms())
        except Exception as error:  # noqa: BLE001  a defect ends its own request
            return failed(error)
        return web.Response(body=HEALTHY, content_type="application/json")

    async def _metrics(self, request: web.Request) -> web.Response:
        try:
            await self._people.let_in(request, ROLE)
            fleet = await asyncio.shield(self._fleet.asked(self._wall_ms()))
            free_bytes = (await asyncio.to_thread(shutil.disk_usage, self._home.server.parent)).free
            own = exposition(controller_families(self._expiries, free_bytes, self._traffic))
            text = "".join((*own, self._process.text())).encode()
            # As a file: as one piece, that of a large fleet would keep the event loop from all boxes.
            return web.Response(body=BytesIO(fleet + text), headers={"Content-Type": CONTENT_TYPE})
        except Exception as error:  # noqa: BLE001  a defect ends its own request
            return failed(error)

    def _fleet_text(self, now_ms: int) -> bytes:
        with self._home.store.look() as view:
            found = standings(view, self._publisher, {})
            states = Counter(row.state for row in view.all(tables.rollouts, "state"))
        families = (*fleet_families(found, now_ms), *rollout_families(states))
        return "".join(exposition(families)).encode()


def expiries(home: Home) -> Mapping[str, float]:
    """When what the controller is trusted by expires, in seconds since 1970. It does not change while the controller
    runs. The root names the keys that the controller signs with. Raises OperatorError."""
    with home.store.look() as view:
        root = root_plan(view.all(tables.roots)[-1].data)
    try:
        server = x509.load_pem_x509_certificate(home.server.read_bytes())
    except (OSError, ValueError) as error:
        raise OperatorError(f"the server's certificate '{home.server}' cannot be read: {error}") from error
    return {
        "authority": home.authority.certificate.not_valid_after_utc.timestamp(),
        "root": root.expires.timestamp(),
        "server": server.not_valid_after_utc.timestamp(),
    }
