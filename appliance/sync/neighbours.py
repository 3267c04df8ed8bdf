"""What this box offers to its neighbours at the site, where its operator says so: the streams in its spool."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from appliance.domain.errors import AddressUnavailable
from appliance.sync.box import Box
from appliance.sync.carried import spool_of
from appliance.transfer.door import BACKLOG, doors
from appliance.transfer.neighbour import NeighbourServer
from appliance.transfer.spool import Spool

AT_ONCE_MAX: Final = 8
"""Connections of one address: the agent has better things to do with its descriptors."""
IDLE_S: Final = 60.0


@asynccontextmanager
async def offering(box: Box) -> AsyncIterator[None]:
    """Offer them for as long as the context lasts. Raises AddressUnavailable."""
    address = box.settings.fleet.neighbour_address
    host, _, port = address.rpartition(":")
    server = NeighbourServer(Spool(spool_of(box.settings.state)))
    runner = web.AppRunner(
        server.application(), access_log=None, shutdown_timeout=0.1, keepalive_timeout=IDLE_S
    )
    await runner.setup()
    try:
        try:
            for door in doors(host.strip("[]"), int(port), AT_ONCE_MAX):
                await web.SockSite(runner, door, backlog=BACKLOG).start()
        except (OSError, ValueError) as error:
            raise AddressUnavailable(
                f"neighbours cannot be offered anything at '{address}': {error}"
            ) from error
        yield
    finally:
        await runner.cleanup()
