"""How much of the store's disk is taken and left, and when packed forms were built: looked at now and then on another
thread, for a disk that hangs must not hold up requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from appliance.config.store import StoreConfig
from appliance.domain.errors import StoreUnavailable
from appliance.store.census import census_of
from appliance.store.layout import BLOBS, BUILDING_FORM, FORMS, form_digest
from appliance.workers.forms import FORM_FILE

PERIOD_S: Final = 30.0


class Space(NamedTuple):
    """``taken_bytes`` are those that the quota counts, blobs and packed forms; ``free_bytes`` the disk has left.
    ``forms`` says of packed forms, by the manifest digest of their version, when they were built (seconds since
    1970)."""

    taken_bytes: int = 0
    free_bytes: int = 0
    forms: Mapping[str, float] = MappingProxyType({})


class SpaceWatch:
    """Keeps the last look at the store in ``state``. Owner: the event loop's thread."""

    def __init__(self, state: Path, config: StoreConfig) -> None:
        self._state = state.absolute()
        self._config = config
        self._task: asyncio.Task[None] | None = None
        self.space = Space()

    async def look(self) -> None:
        """Look now. What cannot be looked at stays as it was."""
        with contextlib.suppress(StoreUnavailable, OSError):
            self.space = await asyncio.to_thread(space_of, self._state, self._config)

    def start(self) -> None:
        """Look now and then."""
        self._task = asyncio.create_task(self._look_now_and_then())

    async def stop(self) -> None:
        """Look no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _look_now_and_then(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(PERIOD_S)


def space_of(state: Path, config: StoreConfig) -> Space:
    """What is taken and left as of now. Raises StoreUnavailable and OSError."""
    with census_of(state, config) as census:
        taken_bytes = census.taken_bytes() if (state / BLOBS).is_dir() else 0  # nothing was installed so far
        return Space(taken_bytes, census.free_bytes, dict(_built(state / FORMS)))


def _built(forms: Path) -> Iterator[tuple[str, float]]:
    """Forms that are whole and may be used: the others have no document, or still another name."""
    for document in forms.glob(f"*/{FORM_FILE}"):
        name = document.parent.name
        if not name.startswith(BUILDING_FORM) and (digest := form_digest(name)):
            yield digest, document.stat().st_mtime
