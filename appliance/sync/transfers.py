"""How bytes come to the box, as the agent needs it: a port. ``appliance.transfer`` has what is behind it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from appliance.fleet.documents import Transfer
from appliance.sync.link import LinkFailed
from appliance.sync.plan import Waits


class CameFurther(LinkFailed):
    """A stream of which more came before the link was lost."""


class Transfers(Protocol):
    """Streams that came, whole or in part, and the way to have more of them."""

    def spooled(self) -> Mapping[str, int]:
        """The bytes of each stream that are here and proved right, by its digest."""

    def waits(self) -> Waits:
        """Why no model may be transferred now; None where one may."""

    async def fetch(self, way: Transfer) -> None:
        """Have the whole stream here; goes on where it was. Raises CameFurther, LinkFailed and OSError, and keeps what
        came."""

    def forget(self, wanted: Collection[str]) -> None:
        """Remove all streams but those of these digests."""
