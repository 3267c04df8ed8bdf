"""Whether the controller can do what boxes and people ask of it: read its database, and write it to the disk.

Anybody may ask, so it costs the database one small change in ``FRESH_MS`` at most, and nothing while nobody asks.
"""

from __future__ import annotations

import asyncio
from typing import Final

from appliance.controller.fleet_store import DatabaseTrouble, FleetStore
from appliance.controller.kept import Kept

FRESH_MS: Final = 5000
WAIT_MS: Final = 3000
"""How long the database may take."""
KEY: Final = "health_checks"
"""The number that each look counts up: a write that is on the disk."""


class Health:
    """See the module. Owner: the event loop."""

    def __init__(self, store: FleetStore) -> None:
        self._store = store
        self._kept = Kept(self._look, FRESH_MS)

    async def check(self, now_ms: int) -> None:
        """Raises DatabaseTrouble unless the database is well."""
        look = self._kept.asked(now_ms)
        left_ms = min(max(WAIT_MS - self._kept.age_ms(now_ms), 0), WAIT_MS)
        await asyncio.wait({look}, timeout=left_ms / 1000)
        if not look.done():
            raise DatabaseTrouble(f"the database has not answered for {WAIT_MS / 1000:g} s")
        look.result()

    def _look(self, _: int) -> None:
        with self._store.transaction() as rows:
            rows.count_up(KEY)
        with self._store.look() as view:
            view.number(KEY)
