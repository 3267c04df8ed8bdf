"""Streams of versions on this box, fetched from whichever source has them.

Sources are asked in order: directories (a bundle on a USB stick), neighbours of the site, the controller. What came is
kept in the spool across kills; what is made of it lies there only while it is installed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from appliance.fleet.documents import Transfer
from appliance.sync.box import Box
from appliance.sync.carried import spool_of
from appliance.sync.link import Link, LinkFailed, LinkTrouble
from appliance.sync.plan import Waits
from appliance.sync.transfers import CameFurther
from appliance.transfer.download import Allowed, NoSource, fetch
from appliance.transfer.source import DirectorySource, HttpSource, Source
from appliance.transfer.spool import Spool

MAKING: Final = "making-"


class Streams:
    """Implements Transfers for ``box``, as far as ``allowed`` lets bytes go over the link and nothing ``waits``. Owner:
    the event loop."""

    def __init__(self, box: Box, allowed: Allowed, waits: Callable[[], Waits]) -> None:
        self._box = box
        self._allowed = allowed
        self._waits = waits
        place = spool_of(box.settings.state)
        self._spool = Spool(place)
        for left in place.glob(f"{MAKING}*"):  # of an agent that was killed
            _remove(left)

    def spooled(self) -> Mapping[str, int]:
        """See Transfers."""
        return self._spool.bytes()

    def waits(self) -> Waits:
        """See Transfers."""
        return self._waits()

    async def fetch(self, way: Transfer) -> None:
        """See Transfers."""
        before = self._spool.size(way)
        async with self._sources() as sources:
            try:
                await fetch(way, sources, self._spool, self._allowed)
            except NoSource as failed:
                kind = CameFurther if self._spool.size(way) > before else LinkFailed
                raise kind(LinkTrouble.LOST, str(failed)) from failed

    def forget(self, wanted: Collection[str]) -> None:
        """See Transfers."""
        self._spool.keep_only(wanted)

    @asynccontextmanager
    async def _sources(self) -> AsyncIterator[Sequence[Source]]:
        box = self._box
        fleet = box.fleet
        near: list[Source] = [DirectorySource(f"'{each}'", Path(each)) for each in fleet.directories]
        async with Link(box.identity.url, box.identity.tls()) as link:
            near += [
                HttpSource(f"the neighbour {url}", url, lambda: link.session, over_link=False)
                for url in fleet.neighbours
            ]
            yield (*near, HttpSource("the controller", box.identity.url, lambda: link.session))


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink(missing_ok=True)
    folder.rmdir()
